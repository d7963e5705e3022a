# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's HTTP server: `/metrics`, `/v1/jobs`, the next attempt of a wrapper, and the HTML
pages of `controller.page`.

The loop updates the values at each turn; requests read the newest values in their own threads.
Secrets are scrubbed from each string. A wrapper's request is trusted only with the token of its
job.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from mwatch import json_codec
from mwatch.config.controller import DEFAULT_HOST, ControllerSettings
from mwatch.controller.page import FleetPages, snapshot_of
from mwatch.errors import InputError
from mwatch.export.http.server import Page, Pages, Request, Server, standard_pages
from mwatch.export.metrics import catalog
from mwatch.export.metrics.catalog import Metric, Value
from mwatch.export.metrics.prometheus import Exporter
from mwatch.fleet.job_monitor import JobMonitor
from mwatch.kube.mirror import MirrorStatus
from mwatch.model.decision import Decision
from mwatch.model.finding import Verdict
from mwatch.model.kube.gang import Reason
from mwatch.model.kube.restart_state import DOING, HELD
from mwatch.model.snapshot.snapshot import Snapshot
from mwatch.remediate.gates import HeldBy
from mwatch.remediate.manager import Remediation
from mwatch.remediate.status import RemediationStatus
from mwatch.report.run_report import decision_json, finding_json
from mwatch.runtime.self_monitoring import OwnUse
from mwatch.stats import MonotonicCounters

VERSION = 1
MAX_FINDINGS = 32
_MAX_SILENT = 16
_MINUTES_SECONDS = 300.0
_NO_REASON = "none"
_REASONS = frozenset({*map(str, HeldBy), *map(str, Reason)})


class ControllerStats(NamedTuple):
    """Statistics of the controller itself, at one turn."""

    is_leader: bool
    polls: int
    failures: Mapping[str, int]
    api_calls: int
    mirrors: Mapping[str, MirrorStatus]
    relists: int
    errors: int
    loop_seconds: float
    remediation: Sequence[RemediationStatus] = ()
    ledger_errors: int = 0
    notified: Mapping[str, int] = {}


class FleetMetrics:
    def __init__(self, started_at: float) -> None:
        self._use = OwnUse(started_at)
        self._spent = MonotonicCounters()
        self._loops: deque[tuple[float, float]] = deque()
        self._newest: dict[str, Snapshot] = {}
        self._evaluations: dict[str, int] = {}
        self._values: tuple[Value, ...] = ()
        self._ticked = time.monotonic()

    def update(self, jobs: Iterable[JobMonitor], stats: ControllerStats, now: float) -> None:
        listed = list(jobs)
        self._spent.keep(each.kube.uid for each in listed)
        made = {each.kube.uid: self._made(each, now) for each in listed}
        self._newest = {uid: each for uid, each in made.items() if each is not None}
        self._evaluations = {each.kube.uid: each.evaluations for each in listed}
        self._values = tuple(self._own(listed, stats, now))
        self._ticked = time.monotonic()

    def snapshots(self) -> tuple[Snapshot, ...]:
        return tuple(self._newest.values())

    def of(self, uid: str) -> Snapshot | None:
        return self._newest.get(uid)

    def own(self) -> tuple[Value, ...]:
        return self._values

    def since_tick(self) -> float:
        return time.monotonic() - self._ticked

    def _made(self, job: JobMonitor, now: float) -> Snapshot | None:
        """Reuse the last snapshot while the job is calm: making one visits every rank."""
        known = self._newest.get(job.kube.uid)
        is_same = self._evaluations.get(job.kube.uid) == job.evaluations
        if known is not None and is_same and job.assessment is not None:
            return known
        return snapshot_of(job, self._spent, now)

    def _own(self, jobs: list[JobMonitor], stats: ControllerStats, now: float) -> Iterator[Value]:
        acting = sum(each.is_acting for each in jobs)
        seen = [each.seen(now) for each in jobs]
        yield from _each(catalog.CONTROLLER_JOBS, {"act": acting, "observe": len(jobs) - acting})
        answering = sum(len(each.answering) for each in seen)
        silent = sum(len(each.silent) for each in seen)
        yield from _each(catalog.CONTROLLER_PODS, {"answering": answering, "silent": silent})
        yield from _actions(stats.remediation)
        yield from _each(catalog.CONTROLLER_POLL_FAILURES, stats.failures)
        yield from _each(catalog.CONTROLLER_NOTIFICATIONS, stats.notified)
        ages = {name: each.age_seconds for name, each in stats.mirrors.items()}
        known = {name: age for name, age in ages.items() if age is not None}
        yield from _each(catalog.CONTROLLER_VIEW_AGE, known)
        yield from _each(catalog.CONTROLLER_OLD_VIEW_AGE, known)
        self._loops.append((now, stats.loop_seconds))
        while self._loops and now - self._loops[0][0] > _MINUTES_SECONDS:
            self._loops.popleft()
        plain: dict[Metric, float | None] = {
            catalog.CONTROLLER_LEADER: stats.is_leader,
            catalog.CONTROLLER_POLLS: stats.polls,
            catalog.CONTROLLER_API_CALLS: stats.api_calls,
            catalog.CONTROLLER_RELISTS: stats.relists,
            catalog.CONTROLLER_LOOP: stats.loop_seconds,
            catalog.CONTROLLER_LOOP_LONGEST: max(seconds for _, seconds in self._loops),
            catalog.CONTROLLER_STARTED: self._use.started_at,
            catalog.CONTROLLER_ERRORS: stats.errors,
            catalog.CONTROLLER_LEDGER_ERRORS: stats.ledger_errors,
            catalog.CONTROLLER_CPU: self._use.cpu_seconds(),
            catalog.CONTROLLER_MEMORY: self._use.resident_bytes(),
        }
        for metric, value in plain.items():
            if value is not None:
                yield Value(metric, (), value)


def _actions(jobs: Sequence[RemediationStatus]) -> Iterator[Value]:
    """A state that no job is in is exported as 0; a reason that applies to no job is left out."""
    found = Counter({(doing, _NO_REASON): 0 for doing in DOING if doing != HELD})
    found.update((each.doing, _reason(each)) for each in jobs)
    for labels, count in sorted(found.items()):
        yield Value(catalog.CONTROLLER_ACTIONS, labels, count)


def _reason(status: RemediationStatus) -> str:
    if status.doing != HELD or not status.held_by:
        return _NO_REASON
    return status.held_by if status.held_by in _REASONS else "other"


def _each(metric: Metric, amounts: Mapping[str, float]) -> Iterator[Value]:
    for name, amount in sorted(amounts.items()):
        yield Value(metric, (name,), amount)


_JSON = "application/json"
_BEARER = "bearer "
_POD = "mwatch-pod"
_AFTER = "mwatch-after"
_WORD = "mwatch-word"
"""Headers of a wrapper's request: its pod, its last attempt, its node's number and nonce."""
_MAX_WORD = 100


class ControllerPages:
    def __init__(
        self,
        namespace: str,
        metrics: FleetMetrics,
        remediation: Remediation,
        is_leader: Callable[[], bool],
        live: FleetPages | None = None,
    ) -> None:
        """`live`: the HTML pages."""
        self._live = live
        self._namespace = namespace
        self._metrics = metrics
        self._remediation = remediation
        self._is_leader = is_leader
        self._lock = threading.Lock()
        self._jobs: list[dict[str, Any]] = []

    def update(self, jobs: list[dict[str, Any]]) -> None:
        with self._lock:
            self._jobs = jobs

    def pages(self) -> Pages:
        metrics, place = self._metrics, f"/v1/jobs/{self._namespace}"
        exporter = Exporter(
            metrics.snapshots, besides={"run_namespace": self._namespace}, own=metrics.own
        )
        return {
            **({} if self._live is None else self._live.pages()),
            **standard_pages(metrics.snapshots, metrics.since_tick, exporter),
            "/v1/jobs": lambda request: _page(self.document()),
            f"{place}/{{}}": self._one,
            f"{place}/{{}}/attempt": self._attempt,
        }

    def document(self) -> dict[str, Any]:
        with self._lock:
            jobs = self._jobs
        return {
            "version": VERSION,
            "namespace": self._namespace,
            "leader": self._is_leader(),
            "jobs": jobs,
        }

    def _one(self, request: Request) -> Page:
        kind = parse_qs(request.query).get("kind", [""])[0]
        with self._lock:
            found = [
                each
                for each in self._jobs
                if each["name"] == request.parameter and kind in ("", each["kind"])
            ]
        if not found:
            return _error(f"no watched job {request.parameter} in {self._namespace}")
        return _page({"version": VERSION, **found[0]})

    def _attempt(self, request: Request) -> Page:
        headers = {name.lower(): value for name, value in request.headers.items()}
        answer = self._remediation.answer(
            self._namespace, request.parameter, _token(headers),
            pod=headers.get(_POD, ""), after=_number(headers.get(_AFTER, "")),
            word=headers.get(_WORD, "")[:_MAX_WORD],
        )  # fmt: skip
        if answer is None:
            return _error(f"{request.parameter}: no such job, or the token is missing or wrong")
        return Page(json_codec.encode(answer), _JSON)


_MAX_CONNECTIONS = 128
"""All wrappers of a gang request their attempt at the same time."""


def listen(settings: ControllerSettings, pages: Pages) -> Server:
    """InputError if the port is taken."""
    hosts = (settings.host, "0.0.0.0") if settings.host == DEFAULT_HOST else (settings.host,)
    error: OSError | None = None
    for host in hosts:  # a host without IPv6 needs the second
        try:
            return Server(pages, port=settings.port, host=host, max_connections=_MAX_CONNECTIONS)
        except OSError as failed:
            error = failed
    problem = f"cannot listen on {settings.host} port {settings.port}: {error and error.strerror}"
    raise InputError(f"{problem}; name another with --port")


def _token(headers: Mapping[str, str]) -> str:
    given = headers.get("authorization", "")
    return given[len(_BEARER) :].strip() if given.lower().startswith(_BEARER) else ""


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _error(text: str) -> Page:
    return Page(f"{text}\n".encode(), status=HTTPStatus.NOT_FOUND)


def _page(document: dict[str, Any]) -> Page:
    return Page(json_codec.encode_scrubbed(document), _JSON)


def job_json(watch: JobMonitor, status: RemediationStatus, now: float) -> dict[str, Any]:
    kube, job, assessment = watch.kube, watch.engine.job, watch.assessment
    found = watch.verdict
    seen = watch.seen(now)
    return {
        "kind": kube.kind.value,
        "namespace": kube.namespace,
        "name": kube.name,
        "uid": kube.uid,
        "mode": kube.mode,
        "phase": None if watch.phase is None else watch.phase.value,
        "attempt": watch.attempt,
        "iteration": job.attempt.iteration,
        "total_iterations": job.layout.total_iterations,
        "world_size": job.layout.world_size,
        "progress_at": _iso(job.attempt.progress_at) if job.has_started else None,
        "verdict": None if found is None else _verdict(found),
        "decision": None if assessment is None else _decision(assessment.decision),
        "findings": [] if assessment is None else [
            finding_json(each, _iso) for each in assessment.findings[:MAX_FINDINGS]
        ],
        "pods": {
            "wanted": kube.pods_wanted,
            "running": len(seen.answering) + len(seen.silent),
            "answering": len(seen.answering),
            "silent": [
                {"pod": each.pod.name, "problem": each.problem or "no answer yet"}
                for each in seen.silent[:_MAX_SILENT]
            ],
        },
        "finished": kube.finished or None,
        "remediation": status.to_json(),
        "view_age_seconds": watch.view_age_seconds,
        # deprecated, until 0.3: the names of the two keys above in 0.1
        "hands": status.to_json(),
        "sight_age_seconds": watch.view_age_seconds,
    }  # fmt: skip


def _verdict(found: Verdict) -> dict[str, Any]:
    return {
        "cause": found.cause.value,
        "summary": found.summary,
        "since": {"iteration": found.since_iteration, "time": _iso(found.since_time)},
        "culprit": json_codec.to_builtins(found.culprit),
        "confidence": found.confidence,
    }


def _decision(decision: Decision) -> dict[str, Any]:
    return {**decision_json(decision), "act_at": _iso(decision.act_at)}


def _iso(at: float | None) -> str | None:
    return None if not at else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
