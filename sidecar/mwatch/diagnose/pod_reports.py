# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the pods of a job tell: their sidecars by the API server's proxy, else their logs.

All pods at the same time, within one limit. A pod whose sidecar answers needs no log: the
sidecar has read it. Who may not use the proxy gets the logs alone, and is told.
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
from mwatch.kube.pod_logs import PodLog, read_log
from mwatch.kube.pod_proxy import pod_page
from mwatch.manifests.containers import trainer_of
from mwatch.manifests.names import PORT, PORT_NAME, SIDECAR
from mwatch.model.kube.fields import items, mapping, number, text
from mwatch.model.kube.job import JobKind
from mwatch.model.kube.pod import Container, KubePod
from mwatch.model.snapshot.snapshot_wire import PodSnapshot, from_wire
from mwatch.runtime.fanout import TimedOut, gather

MAX_PODS = 512
"""More are not asked: the first and last of them, and those in trouble, are."""
_CALL_SECONDS = 2.0
_ROUNDS = 6
"""Of one sidecar: a long answer comes in parts."""
_TRAINER = {JobKind.PYTORCH_JOB: "pytorch", JobKind.TRAIN_JOB: "node"}


class PodReport(NamedTuple):
    pod: KubePod
    container: str
    """That trains."""
    snapshot: PodSnapshot | None = None
    received_at: float = 0.0
    sidecar: str = ""
    """Why its sidecar did not answer; empty: it did, or there is none."""
    is_forbidden: bool = False
    """The proxy may not be used."""
    logs: tuple[PodLog, ...] = ()
    """The oldest first."""
    problem: str = ""
    """Why its log was not read."""
    raw: Mapping[str, Any] = {}
    """The snapshot as it came."""

    @property
    def has_told(self) -> bool:
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
    """In the order of the pods. `wants_logs`: also of those whose sidecar answers."""
    chosen = sorted(pods, key=_urgency)[:MAX_PODS]
    asks: dict[str, Callable[[], Any]] = {}
    blank: dict[str, PodReport] = {}
    for pod in chosen:
        body = bodies.get(pod.name, {})
        blank[pod.name] = PodReport(pod, trainer_name(kind, body))
        asks[pod.name] = partial(_ask, access, blank[pod.name], _port(pod, body), wants_logs)
    told = gather(asks, seconds=seconds)
    by_name = {
        name: blank[name]._replace(problem=each.why) if isinstance(each, TimedOut) else each
        for name, each in told.items()
    }
    return [by_name[pod.name] for pod in pods if pod.name in by_name]


def trainer_name(kind: JobKind, body: Mapping[str, Any]) -> str:
    spec = mapping(body, "spec")
    found = trainer_of(spec, _TRAINER.get(kind)) or trainer_of(spec, None)
    return text(found, "name")


def _urgency(pod: KubePod) -> tuple[int, int]:
    """In trouble, then rank 0's, then the others as they come."""
    is_well = pod.phase == "Running" and not pod.restarts and not pod.is_deleting
    return int(is_well), pod.replica_index or 0


def _port(pod: KubePod, body: Mapping[str, Any]) -> int | None:
    """Of its sidecar; None: it has none that runs."""
    if not any(each.name == SIDECAR and each.is_running for each in pod.containers):
        return None
    every = [*items(body, "spec", "containers"), *items(body, "spec", "initContainers")]
    ports = (one for each in every for one in items(each, "ports") if one.get("name") == PORT_NAME)
    return next((number(each, "containerPort") for each in ports), None) or PORT


def ask_sidecar(access: Access, pod: KubePod, body: Mapping[str, Any]) -> PodReport:
    """Of one pod, and no log."""
    return _by_sidecar(access, PodReport(pod, ""), _port(pod, body))


def _by_sidecar(access: Access, words: PodReport, port: int | None) -> PodReport:
    if port is None:
        return words
    try:
        return _snapshot(access, words, port)
    except MwatchError as error:
        forbidden = isinstance(error, NoPermission)
        return words._replace(sidecar=str(error), is_forbidden=forbidden)


def _ask(access: Access, words: PodReport, port: int | None, wants_logs: bool) -> PodReport:
    pod = words.pod
    words = _by_sidecar(access, words, port)
    has_begun = any(each.name == words.container for each in pod.containers)
    if (words.snapshot is None or wants_logs) and has_begun and pod.phase != "Pending":
        return _logs(access, words)
    return words


def _snapshot(access: Access, words: PodReport, port: int) -> PodReport:
    """All parts of it as one, its newest state and every event."""
    pod, whole, cursor = words.pod, words, ""
    for _ in range(_ROUNDS):
        path = "/v1/snapshot" + (f"?after={cursor}" if cursor else "")
        raw = pod_page(access, pod.namespace, pod.name, port, path, seconds=_CALL_SECONDS)
        at = time.time()
        try:
            part = from_wire(raw)
        except ValueError as error:
            return words._replace(sidecar=str(error))
        if part.who.uid not in (None, pod.uid):
            return words._replace(sidecar=f"it is the sidecar of another pod ({part.who.pod})")
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


def _logs(access: Access, words: PodReport) -> PodReport:
    pod, trainer = words.pod, words.trainer
    found: list[PodLog] = []
    problem = ""
    for is_previous in (True, False):
        if is_previous and (trainer is None or not trainer.restarts):
            continue
        try:
            found.append(
                read_log(access, pod.namespace, pod.name, words.container, seconds=_CALL_SECONDS,
                         is_previous=is_previous)
            )  # fmt: skip
        except MwatchError as error:
            problem = str(error)
    return words._replace(logs=tuple(found), problem="" if found else problem)
