# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of one running job: sidecars, probe, token, clocks, volumes, flight recorder and RAS.

All data comes from the pod objects and the sidecars' snapshots; no Secret is read. On request, the
image pull is tested by a temporary pod that runs `--version`. It is scheduled like the pods of the
job and uses their pull secrets.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from mwatch.diagnose.cluster_facts import job_pods
from mwatch.diagnose.doctor.lines import DoctorLine, names, ok, problem, skipped
from mwatch.diagnose.pod_reports import PodReport, ask_sidecar, sidecar_port
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError, NoCredentials
from mwatch.kube.pod_pages import Port
from mwatch.kube.resources import PODS, ApiResource
from mwatch.manifests.parts import SIDECAR, TOKEN_VOLUME, VOLUME
from mwatch.model.kube.fields import items, mapping, part, quantity, text
from mwatch.model.kube.job import KubeJob
from mwatch.model.kube.pod import KubePod
from mwatch.model.observation import Beat, StoredCheckpoints
from mwatch.runtime.fanout import TimedOut, gather

_SECONDS = 6.0
_CALL_SECONDS = 3.0
_MAX_PODS = 512
_MAX_SKEW_SECONDS = 5.0
_BEAT_SECONDS = 30.0
_LEAST_VOLUME = 1 << 30
_GIB = float(1 << 30)
_RECORDER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_RAS = "NCCL_RAS_ENABLE"
_INJECT = "mwatch inject -f job.yaml | kubectl apply -f -"


class JobPods(NamedTuple):
    job: KubeJob
    running: tuple[tuple[Mapping[str, Any], KubePod], ...]
    """Running pods, as JSON and parsed."""
    reports: tuple[PodReport, ...]
    """Reports of the running pods that have a sidecar."""

    @property
    def answers(self) -> list[PodReport]:
        return [each for each in self.reports if each.snapshot is not None]


Check = Callable[[JobPods], DoctorLine]


def read_pods(access: Access, job: KubeJob) -> JobPods:
    running = [each for each in job_pods(access, job) if each[1].phase == "Running"][:_MAX_PODS]
    with_sidecar = [each for each in running if sidecar_port(each[1], each[0]) is not None]
    asks = {pod.name: partial(ask_sidecar, access, pod, body) for body, pod in with_sidecar}
    answers = gather(asks, seconds=_SECONDS)
    reports = []
    for _, pod in with_sidecar:
        answer = answers[pod.name]
        missed = isinstance(answer, TimedOut)
        reports.append(PodReport(pod, "", sidecar=answer.why) if missed else answer)
    return JobPods(job, tuple(running), tuple(reports))


def check_job(access: Access, pods: JobPods) -> list[DoctorLine]:
    if not pods.running:
        return [skipped("sidecars", f"{pods.job.name} has no running pod")]
    found = [_sidecars(pods)]
    if pods.answers:
        found.append(_token(access, pods))
        found += [each(pods) for each in (_clocks, _probe, _recorder, _ras, _storage)]
    found.append(_volume(pods))
    return found


def _sidecars(pods: JobPods) -> DoctorLine:
    name, wanted = "sidecars", len(pods.running)
    bare = [pod.name for _, pod in pods.running if not _has_sidecar(pod)]
    if bare:
        return problem(name, f"no sidecar in {len(bare)} of {wanted} pods: {names(bare)}", _INJECT)
    silent = [each for each in pods.reports if each.snapshot is None]
    if silent:
        first = silent[0]
        what = f"{len(silent)} of {wanted} do not answer ({first.pod.name}: {first.sidecar})"
        fix = f"kubectl logs -n {first.pod.namespace} {first.pod.name} -c {SIDECAR}"
        return problem(name, what, fix)
    return ok(name, f"all {wanted} answer on port {sidecar_port(*reversed(pods.running[0]))}")


def _has_sidecar(pod: KubePod) -> bool:
    return any(each.name == SIDECAR for each in pod.containers)


def _token(access: Access, pods: JobPods) -> DoctorLine:
    """A sidecar with a token refuses requests without it; one without a token refuses all."""
    name, pod = "token", pods.answers[0].pod
    body = next(body for body, each in pods.running if each.uid == pod.uid)
    volumes = {text(each, "name"): each for each in items(body, "spec", "volumes")}
    if TOKEN_VOLUME not in volumes:
        fix = f"give the job a name and inject it again: {_INJECT}"
        return problem(name, f"{pod.name} mounts no token: no restart in place", fix)
    port = Port(PODS, pod.namespace, pod.name, sidecar_port(pod, body) or 0)
    try:
        access.page(f"{port.path}/v1/evidence/none.tgz", None, _CALL_SECONDS)
    except NoCredentials:
        return ok(name, "the sidecar asks for the job's token")
    except KubeError as error:
        if pods.job.mode != "act":
            return skipped(name, "not needed: the job is only observed")
        secret = text(volumes[TOKEN_VOLUME], "secret", "secretName")
        fix = f"a controller creates Secret {secret} for a job in mode act; check its rights"
        return problem(name, f"{pod.name}: {error}", fix)
    return skipped(name, "the sidecar answers without asking for a token")


def _clocks(pods: JobPods) -> DoctorLine:
    name = "clocks of pods"
    skews = {
        each.pod.name: -each.snapshot.shift(each.received_at)
        for each in pods.answers
        if each.snapshot is not None
    }
    worst = max(skews, key=lambda pod: abs(skews[pod]))
    if abs(skews[worst]) <= _MAX_SKEW_SECONDS:
        return ok(name, f"{len(skews)} within {_MAX_SKEW_SECONDS:.0f} s of this machine")
    side = "ahead of" if skews[worst] > 0 else "behind"
    node = next(each.pod.node for each in pods.answers if each.pod.name == worst)
    what = f"{worst} is {abs(skews[worst]):.0f} s {side} this machine"
    return problem(name, what, f"run an NTP client on node {node} (and here)")


def _probe(pods: JobPods) -> DoctorLine:
    """Check that every rank writes its probe record, which it does each second."""
    name, alive, world = "probe", set[int](), 0
    for each in pods.answers:
        assert each.snapshot is not None
        world = max(world, each.snapshot.view.world_size or 0)
        for observed in each.snapshot.beats:
            if isinstance(observed.what, Beat):
                world = max(world, observed.what.world_size or 0)
                if each.snapshot.at - observed.at < _BEAT_SECONDS:
                    alive.add(observed.what.rank)
    if not world:
        return skipped(name, "no rank has started yet")
    silent = [str(rank) for rank in range(world) if rank not in alive]
    if not silent:
        return ok(name, f"alive in all {world} ranks")
    which = f"{len(silent)} of {world} ranks: {names(silent, 8)}"
    what = f"no record within {_BEAT_SECONDS:.0f} s of {which}"
    fix = (
        f"mwatch diagnose {pods.job.name} -n {pods.job.namespace}; if it is healthy, the trainer "
        "replaces PYTHONPATH, or MWATCH_PROBE is off"
    )
    return problem(name, what, fix)


def _recorder(pods: JobPods) -> DoctorLine:
    name, values = "flight recorder", [_env(pods, each) for each in _RECORDER]
    given = next((each for each in values if each is not None), None)
    if given is not None and not (given.isdigit() and int(given) > 0):
        fix = f"remove {_RECORDER[0]} from the manifest: mwatch-run sets 2000"
        return problem(name, f"turned off in the manifest ({given or 'empty'})", fix)
    if given is None and not _is_wrapped(pods):
        return problem(name, "off: the trainer does not run under mwatch-run", _INJECT)
    return ok(name, f"{given or 2000} records a rank")


def _ras(pods: JobPods) -> DoctorLine:
    name = "NCCL RAS"
    if _env(pods, _RAS) == "0":
        return problem(name, f"turned off in the manifest ({_RAS}=0)", f"remove {_RAS}")
    known = [each.snapshot.nccl for each in pods.answers if each.snapshot is not None]
    communicators = [each.communicators for each in known if each is not None]
    if communicators:
        return ok(name, f"{max(communicators)} communicators")
    return skipped(name, "no RAS answers: NCCL before 2.24, another back end, or not asked yet")


def _storage(pods: JobPods) -> DoctorLine:
    """Check whether another checkpoint fits on the volume."""
    name = "checkpoint volume"
    for each in pods.answers:
        snapshot = each.snapshot
        if snapshot is None or snapshot.storage is None or snapshot.storage.free_bytes is None:
            continue
        stored = None if snapshot.stored is None else snapshot.stored.what
        sizes = (
            [one.size_bytes or 0 for one in stored.checkpoints]
            if isinstance(stored, StoredCheckpoints)
            else []
        )
        free, needed = snapshot.storage.free_bytes, max(sizes, default=0)
        what = f"{free / _GIB:.1f} GiB free, a checkpoint takes {needed / _GIB:.1f} GiB"
        if free < needed:
            return problem(name, what, "delete old checkpoints, or enlarge the volume")
        return ok(name, what)
    fix = "mwatch inject --checkpoints DIR"
    return skipped(name, "no sidecar sees the save folder", fix)


def _volume(pods: JobPods) -> DoctorLine:
    """Check the volume that wrapper and sidecar share."""
    name, body = "mwatch volume", pods.running[0][0]
    found = [each for each in items(body, "spec", "volumes") if text(each, "name") == VOLUME]
    if not found:
        return skipped(name, "the pods have none", _INJECT)
    limit = part(mapping(found[0], "emptyDir"), "sizeLimit")
    size = quantity(limit) if limit is not None else None
    if size is None:
        return ok(name, "no size limit")
    if size < _LEAST_VOLUME:
        what = f"sizeLimit {limit}: Kubernetes evicts the pod when mwatch fills it"
        return problem(name, what, "give it 1Gi or more")
    return ok(name, f"sizeLimit {limit}")


def _env(pods: JobPods, name: str) -> str | None:
    """Return the value in the manifest of the first pod; None if it is not set there."""
    body = pods.running[0][0]
    found: Sequence[str] = [
        text(each, "value")
        for container in items(body, "spec", "containers")
        for each in items(container, "env")
        if text(each, "name") == name
    ]
    return found[0] if found else None


def _is_wrapped(pods: JobPods) -> bool:
    return any(each.snapshot is not None and each.snapshot.wrapper for each in pods.answers)


_DEPLOYMENTS = ApiResource("apps", "v1", "deployments", "Deployment")
_CONTROLLER = "mwatch-controller"
_PULL_SECONDS = 120.0
_LOOK_SECONDS = 0.5
_FAILED = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_COPIED = ("nodeSelector", "tolerations", "imagePullSecrets", "serviceAccountName")


class PullTimes(NamedTuple):
    seconds: float = _PULL_SECONDS
    look_seconds: float = _LOOK_SECONDS
    wait: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic


def image_of(
    access: Access, namespace: str, pod: Mapping[str, Any] | None
) -> tuple[str, Mapping[str, Any]]:
    """Return the image of the job's sidecar, or of the controller, and its pod spec."""
    spec = mapping(pod, "spec") if pod is not None else {}
    for each in (*items(spec, "initContainers"), *items(spec, "containers")):
        if text(each, "name") == SIDECAR:
            return text(each, "image"), spec
    answer = access.get(_DEPLOYMENTS, namespace, _CONTROLLER)
    spec = mapping(answer.body, "spec", "template", "spec") if answer.is_ok else {}
    images = [text(each, "image") for each in items(spec, "containers")]
    return (images[0], spec) if images else ("", {})


def check_pull(
    access: Access,
    namespace: str,
    pod: Mapping[str, Any] | None,
    times: PullTimes | None = None,
) -> DoctorLine:
    """Test whether the nodes can pull the image. `pod`: a pod of the job, as JSON."""
    name = "image pull"
    try:
        image, spec = image_of(access, namespace, pod)
        if not image:
            return skipped(name, "neither a sidecar nor a controller names an image")
        return _tried(access, namespace, image, spec, times or PullTimes())
    except KubeError as error:
        return skipped(name, str(error))


def _tried(
    access: Access, namespace: str, image: str, spec: Mapping[str, Any], times: PullTimes
) -> DoctorLine:
    name, body = "image pull", _pod(image, spec)
    made = access.create(PODS, namespace, body)
    uid = text(made.body, "metadata", "uid")
    if not made.is_ok or not uid:
        return skipped(name, f"no pod could be created: {made.text}")
    pod, problem_left = body["metadata"]["name"], ""
    try:
        line = _followed(access, namespace, pod, image, times)
    finally:
        try:
            access.delete(PODS, namespace, pod, uid=uid, grace_seconds=0)
        except KubeError as error:
            problem_left = str(error)
    if problem_left:
        what = f"pod {pod} could not be removed: {problem_left}"
        return problem(name, what, f"kubectl delete pod -n {namespace} {pod}")
    return line


def _followed(access: Access, namespace: str, pod: str, image: str, times: PullTimes) -> DoctorLine:
    name, until = "image pull", times.clock() + times.seconds
    while True:
        found = access.get(PODS, namespace, pod)
        state, why = _state(found.body)
        if state == "pulled":
            return ok(name, f"{image} was pulled on {text(found.body, 'spec', 'nodeName')}")
        if state == "failed":
            fix = "correct the reference (mwatch inject --image) or add imagePullSecrets"
            return problem(name, f"{image}: {why}", fix)
        if times.clock() > until:
            what = f"{image}: not pulled within {times.seconds:.0f} s ({why})"
            return problem(name, what, f"kubectl get events -n {namespace}")
        times.wait(times.look_seconds)


def _pod(image: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    copied = {key: spec[key] for key in _COPIED if spec.get(key)}
    container = {
        "name": SIDECAR, "image": image, "imagePullPolicy": "Always", "args": ["--version"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }  # fmt: skip
    about = {
        "name": f"mwatch-doctor-{secrets.token_hex(4)}",
        "labels": {"app.kubernetes.io/managed-by": "mwatch"},
    }
    return {
        "metadata": about,
        "spec": {
            **copied, "restartPolicy": "Never", "activeDeadlineSeconds": 300,
            "automountServiceAccountToken": False, "containers": [container],
        },
    }  # fmt: skip


def _state(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return `pulled`, `failed` or `waiting`, and the reason."""
    for each in items(body, "status", "containerStatuses"):
        waiting = text(each, "state", "waiting", "reason")
        if text(each, "imageID") or part(each, "state", "running") is not None:
            return "pulled", ""
        if waiting in _FAILED:
            return "failed", text(each, "state", "waiting", "message") or waiting
        return "waiting", waiting
    conditions = items(body, "status", "conditions")
    return "waiting", next(
        (text(each, "message") for each in conditions if text(each, "message")), ""
    )
