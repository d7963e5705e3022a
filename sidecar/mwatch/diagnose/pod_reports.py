# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Collects reports from the pods of a job: sidecar snapshots via the API server's proxy, else logs.

All pods are queried in parallel, within one time limit. The log of a pod whose sidecar responds is
not read, because the sidecar has already read it. Without permission for pods/proxy only logs are
read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from mwatch.errors import MwatchError
from mwatch.kube.access import Access
from mwatch.kube.errors import NoPermission
from mwatch.kube.pod_pages import PodLog, pod_page, read_log
from mwatch.manifests.containers import trainer_of
from mwatch.manifests.parts import PORT, PORT_NAME, SIDECAR
from mwatch.model.kube.fields import items, mapping, number, text
from mwatch.model.kube.job import JobKind
from mwatch.model.kube.pod import Container, KubePod
from mwatch.model.snapshot.snapshot_wire import PodSnapshot, from_wire
from mwatch.runtime.fanout import TimedOut, gather

MAX_PODS = 512
"""Above this number only the most urgent pods are queried; see `_urgency`."""
_CALL_SECONDS = 2.0
_ROUNDS = 6
"""Maximum number of requests to one sidecar; a long snapshot is sent in parts."""
_TRAINER = {JobKind.PYTORCH_JOB: "pytorch", JobKind.TRAIN_JOB: "node"}


class PodReport(NamedTuple):
    pod: KubePod
    container: str
    """The training container."""
    snapshot: PodSnapshot | None = None
    received_at: float = 0.0
    sidecar: str = ""
    """Why the sidecar did not answer; empty if it did, or if there is none."""
    is_forbidden: bool = False
    """The user lacks `get` on pods/proxy."""
    logs: tuple[PodLog, ...] = ()
    """Oldest first."""
    problem: str = ""
    """Why the log was not read."""
    raw: Mapping[str, Any] = {}
    """The snapshot as received."""

    @property
    def has_data(self) -> bool:
        return self.snapshot is not None or bool(self.logs)

    @property
    def trainer(self) -> Container | None:
        return next((each for each in self.pod.containers if each.name == self.container), None)


def query_pods(
    access: Access,
    kind: JobKind,
    pods: Sequence[KubePod],
    bodies: Mapping[str, Mapping[str, Any]],
    *,
    seconds: float,
    wants_logs: bool = False,
) -> list[PodReport]:
    """Query all pods; `wants_logs`: read logs even of pods whose sidecar responds."""
    chosen = sorted(pods, key=_urgency)[:MAX_PODS]
    asks: dict[str, Callable[[], Any]] = {}
    blank: dict[str, PodReport] = {}
    for pod in chosen:
        body = bodies.get(pod.name, {})
        blank[pod.name] = PodReport(pod, trainer_name(kind, body))
        asks[pod.name] = partial(_ask, access, blank[pod.name], sidecar_port(pod, body), wants_logs)
    by_name = {
        name: blank[name]._replace(problem=each.why) if isinstance(each, TimedOut) else each
        for name, each in gather(asks, seconds=seconds).items()
    }
    return [by_name[pod.name] for pod in pods if pod.name in by_name]


def trainer_name(kind: JobKind, body: Mapping[str, Any]) -> str:
    spec = mapping(body, "spec")
    found = trainer_of(spec, _TRAINER.get(kind)) or trainer_of(spec, None)
    return text(found, "name")


def _urgency(pod: KubePod) -> tuple[int, int]:
    """Sort key: pods with problems first, then the pod of rank 0, then the others in order."""
    is_well = pod.phase == "Running" and not pod.restarts and not pod.is_deleting
    return int(is_well), pod.replica_index or 0


def sidecar_port(pod: KubePod, body: Mapping[str, Any]) -> int | None:
    """Return the port of the running sidecar, if there is one."""
    if not any(each.name == SIDECAR and each.is_running for each in pod.containers):
        return None
    every = [*items(body, "spec", "containers"), *items(body, "spec", "initContainers")]
    ports = (one for each in every for one in items(each, "ports") if one.get("name") == PORT_NAME)
    return next((number(each, "containerPort") for each in ports), None) or PORT


def ask_sidecar(access: Access, pod: KubePod, body: Mapping[str, Any]) -> PodReport:
    return _by_sidecar(access, PodReport(pod, ""), sidecar_port(pod, body))


def _by_sidecar(access: Access, report: PodReport, port: int | None) -> PodReport:
    if port is None:
        return report
    try:
        return _snapshot(access, report, port)
    except MwatchError as error:
        forbidden = isinstance(error, NoPermission)
        return report._replace(sidecar=str(error), is_forbidden=forbidden)


def _ask(access: Access, report: PodReport, port: int | None, wants_logs: bool) -> PodReport:
    pod = report.pod
    report = _by_sidecar(access, report, port)
    has_begun = any(each.name == report.container for each in pod.containers)
    if (report.snapshot is None or wants_logs) and has_begun and pod.phase != "Pending":
        return read_logs(access, report)
    return report


def _snapshot(access: Access, report: PodReport, port: int) -> PodReport:
    """Fetch all parts of a snapshot and join them: the newest state and every event."""
    pod, whole, cursor = report.pod, report, ""
    for _ in range(_ROUNDS):
        path = "/v1/snapshot" + (f"?after={cursor}" if cursor else "")
        raw = pod_page(access, pod.namespace, pod.name, port, path, seconds=_CALL_SECONDS)
        at = time.time()
        try:
            part = from_wire(raw)
        except ValueError as error:
            return report._replace(sidecar=str(error))
        if part.who.uid not in (None, pod.uid):
            return report._replace(sidecar=f"the sidecar of another pod ({part.who.pod}) answered")
        whole = _joined(whole, part, at, raw)
        if part.cursor == cursor or not part.events:
            break
        cursor = part.cursor
    return whole


def _joined(whole: PodReport, part: PodSnapshot, at: float, raw: Mapping[str, Any]) -> PodReport:
    known = whole.snapshot
    if known is None:
        return whole._replace(snapshot=part, received_at=at, raw=raw)
    merged = replace(
        part,
        events=known.events + part.events,
        wrapper=part.wrapper or known.wrapper,
        stored=part.stored or known.stored,
        pod=part.pod or known.pod,
        gap=known.gap,
    )
    return whole._replace(snapshot=merged, received_at=at)


def read_logs(access: Access, report: PodReport) -> PodReport:
    """Read the log of the training container, and the one before its last restart."""
    pod, trainer = report.pod, report.trainer
    found: list[PodLog] = []
    problem = ""
    for is_previous in (True, False):
        if is_previous and (trainer is None or not trainer.restarts):
            continue
        try:
            found.append(
                read_log(access, pod.namespace, pod.name, report.container, seconds=_CALL_SECONDS,
                         is_previous=is_previous)
            )  # fmt: skip
        except MwatchError as error:
            problem = str(error)
    return report._replace(logs=tuple(found), problem="" if found else problem)
