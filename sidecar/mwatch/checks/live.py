# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of a running job: its manifest as the API server has it, cluster, volume and progress.

Each check reports problems, reports none, or reports why it was not possible. A sidecar reports
only sizes and names of files, not their content.
"""

from __future__ import annotations

from collections.abc import Iterator

from mwatch.checks import every
from mwatch.checks.pods import SAVE, has_arguments, named, training, volume_of
from mwatch.model.checks import (
    CLAIMS,
    CRD,
    LOGS,
    NODES,
    SERVICES,
    VOLUME,
    Check,
    CheckHit,
    CheckLevel,
    CheckState,
    NotChecked,
    Outcome,
    Problem,
    Replica,
    Running,
    RunningCheck,
)
from mwatch.model.kube.node import HYPERPOD_HEALTH, KubeNode
from mwatch.model.kube.pod import SIDECAR
from mwatch.model.observation import StoredCheckpoint
from mwatch.model.snapshot.pod import DataFile, Mount

_TRAIN, _OTHERS = "--train-data-path", ("--valid-data-path", "--test-data-path")
_PER_PARAMETER = 14  # bytes in a checkpoint that includes the optimizer
_VOCABULARY = 50257
_OWN = frozenset({"overlay", "tmpfs", "ramfs", "rootfs"})
"""File systems that are lost with the container or the pod."""
_OVERDUE = 2.0
_MIN_OVERDUE_SECONDS = 600.0
_NO_SIDECAR = "no sidecar reports the volume; use mwatch inject"
_TENSORBOARD = "--tensorboard-dir"
_OF_A_CRD = ("PyTorchJob", "JobSet", "TrainJob")
_LATE = 3.0
_LEAST_SECONDS = 60.0
_BY_ARGUMENTS = frozenset({"world-size", "batch", "heads", "layers", "save-load", "save-volume"})
_DROPPED = frozenset({"misplaced-policy"})  # checks of fields that the API server drops
_GONE = "the API server keeps nothing of it; give the file: mwatch diagnose -f FILE"
_HIDDEN = "the trainer's arguments stand neither in the manifest nor in what it printed"


Hits = list[CheckHit] | NotChecked


def _hit(what: str, fix: str, level: CheckLevel | None = None) -> CheckHit:
    return CheckHit((), what, fix, level)


def _data_files(running: Running) -> Hits:
    """Training, validation and test must not share data files, and each file needs its index."""
    found = list(_shared(running))
    files = _files(running)
    if files is None and _TRAIN not in running.lists:
        return NotChecked(running.why(VOLUME, _NO_SIDECAR))
    for pod, each in files or ():
        if each.bin_bytes is not None and not each.is_unobservable and not each.idx_bytes:
            state = "is not there" if each.idx_bytes is None else "is empty"
            found.append(_hit(f"{pod}: {each.prefix}.idx {state}", "run preprocess_data.py again"))
        if each.bin_bytes == 0:
            found.append(_hit(f"{pod}: {each.prefix}.bin is empty", "prepare the data again"))
    return found


def _shared(running: Running) -> Iterator[CheckHit]:
    train = set(_prefixes(running.lists.get(_TRAIN, ())))
    if _TRAIN in running.lists and not train:
        yield _hit("no data file is left for training", "use fewer files to validate and test")
    for flag in _OTHERS:
        both = train & set(_prefixes(running.lists.get(flag, ())))
        if both:
            what = f"{len(both)} files of {flag} are trained on as well, such as {min(both)}"
            fix = "the folder needs more than twice as many .bin files as CHUNKS"
            yield _hit(what, fix)


def _prefixes(words: tuple[str, ...]) -> list[str]:
    """The path prefixes, without the weights of the data sets."""
    return [each for each in words if not _is_number(each)]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _data_prefix(running: Running) -> Hits:
    files = _files(running)
    if files is None:
        return NotChecked(running.why(VOLUME, _NO_SIDECAR))
    seen = [(pod, each) for pod, each in files if not each.is_unobservable]
    if not seen:
        return NotChecked("the data folder is not mounted in the sidecars")
    return [
        _hit(f"{pod}: there is no {each.prefix}.bin", "check --data-path and the mount")
        for pod, each in seen
        if each.bin_bytes is None
    ]


def _files(running: Running) -> list[tuple[str, DataFile]] | None:
    found = [(pod, each) for pod, facts in running.pods.items() for each in facts.data]
    return found or None


def _save_mount(running: Running) -> Hits:
    mounts = _save_mounts(running)
    if not mounts:
        return NotChecked(running.why(VOLUME, _NO_SIDECAR))
    return [
        _hit(
            f"{pod} saves to {each.path}, which is on {each.kind}: it dies with the pod",
            "mount a volume that all pods share there",
        )
        for pod, each in mounts
        if each.kind in _OWN
    ]


def _save_mounts(running: Running) -> list[tuple[str, Mount]]:
    save = running.arguments.get("--save") or (running.stored.folder if running.stored else None)
    found = [(pod, each) for pod, facts in running.pods.items() for each in facts.mounts]
    return [(pod, each) for pod, each in found if save is None or each.path == save]


def _space(running: Running) -> Hits:
    free = [
        (each.free_bytes, pod) for pod, each in _save_mounts(running) if each.free_bytes is not None
    ]
    if not free:
        return NotChecked(running.why(VOLUME, _NO_SIDECAR))
    size = _checkpoint_bytes(running)
    if size is None:
        return NotChecked("the size of a checkpoint is unknown")
    least, pod = min(free)
    if least >= 2 * size:
        return []
    message = f"{pod}: {least / 1e9:.1f} GB are free for checkpoints of {size / 1e9:.1f} GB"
    return [_hit(message, "make room for two of them, or the next save fails")]


def _checkpoint_bytes(running: Running) -> float | None:
    stored = running.stored.checkpoints if running.stored is not None else ()
    sizes = [each.size_bytes for each in stored if each.size_bytes and each.state == "complete"]
    if sizes:
        return float(max(sizes))
    layers, hidden = (
        running.arguments.get(each) or "" for each in ("--num-layers", "--hidden-size")
    )
    if not (layers.isdigit() and hidden.isdigit()):
        return None
    width = int(hidden)
    return float(_PER_PARAMETER * (12 * int(layers) * width * width + _VOCABULARY * width))


def _tracker(running: Running) -> Hits:
    stored = running.stored
    if stored is None:
        return NotChecked(running.why(VOLUME, "no sidecar reports the save folder"))
    if not stored.checkpoints:
        return []
    named = next((each.tracker for each in running.pods.values() if each.tracker), None)
    by_number = {str(each.iteration): each for each in stored.checkpoints}
    found: list[CheckHit] = []
    if named is None:
        what = f"there is no tracker file in {stored.folder}: a restart starts from random"
        fix = "write the newest complete iteration into latest_checkpointed_iteration.txt"
        found.append(_hit(what, fix))
    elif named in by_number and by_number[named].state == "incomplete":
        why = by_number[named].reason or "it is not complete"
        fix = "name the newest complete one: mwatch checkpoints JOB lists them"
        found.append(_hit(f"the tracker file names iteration {named}: {why}", fix))
    return found + _overdue(running, max(stored.checkpoints, key=lambda each: each.iteration))


def _overdue(running: Running, newest: StoredCheckpoint) -> list[CheckHit]:
    reported = running.progress
    if not reported.save_interval or not reported.step_seconds or newest.written_at is None:
        return []
    if running.facts.job is None or running.facts.job.finished:
        return []
    usual = reported.save_interval * reported.step_seconds
    age = running.facts.now - newest.written_at
    if age <= max(_OVERDUE * usual, _MIN_OVERDUE_SECONDS):
        return []
    what = f"the newest checkpoint ({newest.iteration}) is {age / 60:.0f} min old; "
    what += f"one is due every {usual / 60:.0f} min"
    return [_hit(what, "see whether saves fail or hang")]


def _running_save_load(running: Running) -> Hits:
    """Check the arguments of the running trainer; a script may add some to the manifest's."""
    given = running.arguments
    if not given:
        return NotChecked(running.why(LOGS, "the arguments of the trainer are unknown"))
    save, load = given.get("--save"), given.get("--load")
    if not save:
        return [_hit("it runs without --save: nothing to resume from", "give --save, --load")]
    if not load:
        message = "it runs without --load: a restart begins at iteration 0"
        return [_hit(message, f"give --load {save}")]
    if save != load:
        message = f"it saves to {save} and loads from {load}: a restart goes back to the old one"
        return [_hit(message, "make them equal")]
    return []


def _sidecar_kept(running: Running) -> Hits:
    """A CRD whose schema lacks restartPolicy drops it, and a native sidecar then blocks the pod."""
    pruned = [each.name for each in running.workload.replicas if _is_pruned(each)]
    if pruned:
        what = f"{', '.join(pruned)}: the sidecar is an init container that never ends, and the pod"
        what += " waits for it: the CRD has dropped its restartPolicy"
        return [_hit(what, "mwatch inject --sidecar container, or a newer training operator")]
    if running.workload.kind not in _OF_A_CRD:
        return []
    if running.keeps_sidecar is None:
        return NotChecked(running.why(CRD, "the CRD was not read"))
    if running.keeps_sidecar:
        return []
    message = f"the CRD of {running.workload.kind} drops restartPolicy of init containers"
    return [_hit(message, "use mwatch inject --sidecar container, or auto", CheckLevel.INFO)]


def _is_pruned(replica: Replica) -> bool:
    containers = named(replica.pod.get("initContainers"))
    ours = (each for each in containers if str(each.get("name")) == SIDECAR)
    return any(each.get("restartPolicy") != "Always" for each in ours)


def _nodes(running: Running) -> Hits:
    nodes = running.facts.nodes
    names = {pod.node for pod in running.facts.pods if pod.node and not pod.is_over}
    if nodes is None:
        return NotChecked(running.why(NODES, "the nodes may not be read"))
    if not names:
        return NotChecked("no pod is on a node")
    known = {each.name: each for each in nodes}
    found = [
        _hit(f"node {name} is gone, and pods of the job are on it", "see mwatch restart")
        for name in sorted(names)
        if name not in known
    ]
    for each in (known[name] for name in sorted(names) if name in known):
        found += [_hit(f"node {each.name} {text}", fix) for text, fix in _node_problems(each)]
    return found


def _node_problems(node: KubeNode) -> Iterator[tuple[str, str]]:
    if not node.is_ready:
        reported = node.unready_text or "its kubelet does not report"
        yield f"is not ready: {reported}", f"kubectl describe node {node.name}"
    if node.is_replaced:
        health = node.labels.get(HYPERPOD_HEALTH, "")
        yield f"is {health} by HyperPod", "wait until it is replaced; its auto-resume restarts"
    for taint in node.taints:
        if taint.effect == "NoExecute" and node.is_ready:
            yield f"drives pods off: taint {taint.key}", f"kubectl describe node {node.name}"


def _reclaim(running: Running) -> Hits:
    if running.claims is None:
        return NotChecked(running.why(CLAIMS, "claims and storage classes were not read"))
    wanted = _save_claims(running)
    if not wanted:
        return NotChecked("the claim that holds the checkpoints is unknown")
    by_name = {each.name: each for each in running.claims}
    known = [by_name[name] for name in wanted if name in by_name]
    if not known or any(not each.reclaim for each in known):
        return NotChecked(running.why(CLAIMS, "the storage class of the claim was not read"))
    return [
        _hit(
            f"claim {each.name} has reclaim policy Delete (storage class {each.storage_class}): "
            "deleting the claim deletes the checkpoints",
            "set persistentVolumeReclaimPolicy of its volume to Retain",
        )
        for each in known
        if each.reclaim == "Delete"
    ]


def _save_claims(running: Running) -> list[str]:
    names = []
    for each in training(running.workload):
        save = running.arguments.get("--save") or each.text(*SAVE, "save_folder")
        volume = volume_of(each, save) if save else None
        claim = (volume or {}).get("persistentVolumeClaim")
        if isinstance(claim, dict) and claim.get("claimName"):
            names.append(str(claim["claimName"]))
    return list(dict.fromkeys(names))


def _tensorboard(running: Running) -> Hits:
    replicas = training(running.workload)
    is_set = _TENSORBOARD in running.arguments or any(_TENSORBOARD in e.arguments for e in replicas)
    if not is_set:
        return []
    if running.services is None:
        return NotChecked(running.why(SERVICES, "the Services were not read"))
    if any("tensorboard" in each.lower() for each in running.services):
        return []
    message = f"{_TENSORBOARD} is set, and no Service in the namespace shows it"
    return [_hit(message, "run tensorboard --logdir there, or use mwatch's dashboards")]


def _rendezvous(running: Running) -> Hits:
    if not running.facts.pods:
        return NotChecked("there are no pods")
    ids = running.rendezvous
    if len(set(ids.values())) < 2:
        return []
    created = {pod.name: pod.created_at or 0.0 for pod in running.facts.pods}
    newest = max(ids, key=lambda pod: created.get(pod, 0.0))
    other = min(pod for pod in ids if ids[pod] != ids[newest])
    what = f"RDZV_ID differs between pods ({newest} has {ids[newest]}, {other} another)"
    return [_hit(f"{what}: they never meet", "restart all of them together: mwatch restart JOB")]


def _last_rank(running: Running) -> Hits:
    """Check that the last rank, which may be in any pod, still prints iteration lines."""
    reported, job = running.progress, running.facts.job
    if job is None or job.finished:
        return []
    if not any(pod.phase == "Running" for pod in running.facts.pods):
        return NotChecked("no pod runs")
    if not reported.read_pods:
        return NotChecked(running.why(LOGS, "no log could be read"))
    if reported.line_at is None:
        if reported.iteration is not None:
            return []  # the probe reports iterations, whatever is printed
        missing = len(running.facts.pods) - reported.read_pods
        if missing > 0:
            return NotChecked(
                f"no iteration line in {reported.read_pods} logs; {missing} were not read"
            )
        what = f"no pod of {reported.read_pods} has printed an iteration line"
        fix = "is --log-interval too large, or does it still start?"
        return [_hit(what, fix, CheckLevel.WARNING)]
    age = running.facts.now - reported.line_at
    if reported.line_seconds is None or age <= max(_LATE * reported.line_seconds, _LEAST_SECONDS):
        return []
    pods = ", ".join(reported.line_pods[:2])
    what = f"the last iteration line ({pods}) is {age:.0f} s old; one came every "
    what += f"{reported.line_seconds:.0f} s"
    return [_hit(what, "see the verdict: it hangs, saves or evaluates")]


def _random(running: Running) -> Hits:
    reported = running.progress
    if not reported.read_pods:
        return NotChecked(running.why(LOGS, "no log could be read"))
    restarts = sum(pod.restarts for pod in running.facts.pods)
    stored = running.stored.checkpoints if running.stored is not None else ()
    is_saved = any(each.state == "complete" for each in stored)
    has_past = reported.attempts > 1 or restarts or is_saved
    if not reported.random_start or not has_past:
        return []
    what = f"it was restarted, and starts from random: {reported.random_start}"
    return [_hit(what, "stop it, and check --load and the tracker file")]


def _early(running: Running) -> Hits:
    reported, job = running.progress, running.facts.job
    if job is None or job.finished != "Succeeded" or reported.is_done or reported.asked_to_end:
        return []
    if reported.iteration is None or reported.total_iterations is None:
        return NotChecked(running.why(LOGS, "no log shows how far it got"))
    if reported.iteration >= reported.total_iterations:
        return []
    what = f"{job.kind.value} is Succeeded, but training stopped at iteration "
    what += f"{reported.iteration} of {reported.total_iterations}"
    fix = "look for a masked exit code ('| tee' without pipefail), then start it again"
    return [_hit(what, fix)]


RUNNING: tuple[RunningCheck, ...] = (
    RunningCheck(
        "data-files", CheckLevel.ERROR, "data files are whole, and not shared", _data_files
    ),
    RunningCheck("data-prefix", CheckLevel.ERROR, "the data that is named is there", _data_prefix),
    RunningCheck(
        "running-save-load", CheckLevel.ERROR, "--save and --load as it runs", _running_save_load
    ),
    RunningCheck("save-mount", CheckLevel.ERROR, "the save folder outlives the pod", _save_mount),
    RunningCheck("save-space", CheckLevel.ERROR, "there is room for two checkpoints", _space),
    RunningCheck("tracker", CheckLevel.WARNING, "the tracker names a whole, recent one", _tracker),
    RunningCheck("sidecar-kept", CheckLevel.ERROR, "the CRD keeps a native sidecar", _sidecar_kept),
    RunningCheck("nodes", CheckLevel.ERROR, "the nodes of the job are well", _nodes),
    RunningCheck("reclaim", CheckLevel.WARNING, "checkpoints outlive their claim", _reclaim),
    RunningCheck("tensorboard", CheckLevel.INFO, "TensorBoard can be reached", _tensorboard),
    RunningCheck("pod-rendezvous-id", CheckLevel.ERROR, "the pods have one RDZV_ID", _rendezvous),
    RunningCheck(
        "last-rank", CheckLevel.ERROR, "iteration lines come, and come in time", _last_rank
    ),
    RunningCheck("random-start", CheckLevel.ERROR, "a restart goes on from a checkpoint", _random),
    RunningCheck("early-success", CheckLevel.ERROR, "Succeeded means that it is done", _early),
)


def look(running: Running) -> list[Outcome]:
    title = f"{running.workload.kind}/{running.workload.name}"
    made = [_of_manifest(each, running) for each in every.ALL]
    return made + [_of_running(each, running, title) for each in RUNNING]


def _of_manifest(check: Check, running: Running) -> Outcome:
    workload = running.workload
    if check.id in _DROPPED:
        if running.applied is None:
            return Outcome(check.id, check.about, CheckState.NOT_OBSERVABLE, why=_GONE)
        workload = running.applied
    found = tuple(every.look(workload, (check,)))
    if found:
        return Outcome(check.id, check.about, CheckState.FOUND, found)
    if check.id in _BY_ARGUMENTS and not any(map(has_arguments, training(workload))):
        return Outcome(check.id, check.about, CheckState.NOT_OBSERVABLE, why=_HIDDEN)
    return Outcome(check.id, check.about, CheckState.FINE)


def _of_running(check: RunningCheck, running: Running, title: str) -> Outcome:
    seen = check.look(running)
    if isinstance(seen, NotChecked):
        return Outcome(check.id, check.about, CheckState.NOT_OBSERVABLE, why=seen.why)
    found = [
        Problem(check.id, each.level or check.level, title, each.what, each.fix) for each in seen
    ]
    state = CheckState.FOUND if found else CheckState.FINE
    return Outcome(check.id, check.about, state, tuple(found))
