# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One size: the job starts, the controller watches it at rest, a pod stops, the gang is deleted."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from benchmarks.cluster import processes, training_job
from benchmarks.cluster.calls import Call, Calls, counted, within
from benchmarks.cluster.controller import POLL_SECONDS, Controller
from benchmarks.cluster.figures import Figures
from benchmarks.cluster.fleet_orders import FleetProcess, waited
from benchmarks.cluster.site import NAMESPACE, BenchPlane, controller_kubeconfig
from benchmarks.cluster.training_job import NAME
from benchmarks.page import Browser

_SEEN_SECONDS = 180.0
_SETTLE_SECONDS = 30.0
_VERDICT_SECONDS = 180.0
_DECISION_SECONDS = 600.0
_DELETED_SECONDS = 600.0
_MINUTE = 60.0


class Rest(NamedTuple):
    cpu: float
    memory_bytes: int
    polls_per_second: float
    fleet_cpu: float
    calls_per_minute: float


class Fall(NamedTuple):
    """What happened after the stop, in seconds since then."""

    verdict: float | None
    decided: float | None
    first_delete: float | None
    last_delete: float | None
    calls: list[Call]


class Trial:
    def __init__(self, plane: BenchPlane, fleet: FleetProcess, pods: int, *,
                 rest_seconds: float, cores: processes.Cores) -> None:  # fmt: skip
        self._plane, self._fleet, self._pods = plane, fleet, pods
        self._rest_seconds = rest_seconds
        self._cores = cores
        self._calls = Calls(plane.folder)

    def run(self) -> Figures:
        plane, pods = self._plane, self._pods
        self._cores.free(plane.namespaces.first)
        took = training_job.start(plane, pods)
        self._say(f"all run after {took:.0f} s")
        self._places = training_job.places(plane)
        self._fleet.settle(self._places)
        self._cores.part(plane.namespaces.first)
        controller = Controller(plane, controller_kubeconfig(plane), self._cores.measured,
                                name=f"controller-{pods}")  # fmt: skip
        try:
            return self._measured(controller, took)
        finally:
            controller.close()
            self._cores.free(plane.namespaces.first)

    def clear(self) -> None:
        """For the next one."""
        training_job.remove(self._plane)

    def _measured(self, controller: Controller, took: float) -> Figures:
        seen = controller.wait_for("all pods seen", self._are_seen, _SEEN_SECONDS)
        self._say("seen" if seen else "not all seen")
        rest = self._rest(controller)
        self._say(f"at rest: {rest.cpu:.1%} of a core, {rest.memory_bytes >> 20} MiB")
        page_cpu = self._with_pages(controller)
        self._say(f"with its pages open: {page_cpu:.1%} of a core")
        fall = self._fall(controller)
        return Figures(
            pods=self._pods,
            start_seconds=took,
            seen_seconds=None if seen is None else seen - controller.began,
            cpu=rest.cpu,
            page_cpu=page_cpu,
            memory_bytes=rest.memory_bytes,
            peak_bytes=processes.memory_bytes(controller.pid, "VmHWM"),
            polls_per_second=rest.polls_per_second,
            polled_share=rest.polls_per_second * POLL_SECONDS / self._pods,
            fleet_cpu=rest.fleet_cpu,
            calls_per_minute=rest.calls_per_minute,
            verdict_seconds=fall.verdict,
            decided_seconds=fall.decided,
            first_delete_seconds=_between(fall.decided, fall.first_delete),
            last_delete_seconds=_between(fall.decided, fall.last_delete),
            acting_calls=len(fall.calls),
            deletes=sum(_is_delete(call) for call in fall.calls),
            most_calls=counted(fall.calls),
            delete_seconds=_median_delete(fall.calls),
        )

    def _are_seen(self, job: dict[str, Any]) -> bool:
        return bool(job) and (job.get("pods") or {}).get("answering", 0) >= self._pods

    def _rest(self, controller: Controller) -> Rest:
        time.sleep(_SETTLE_SECONDS)
        before, fleet = processes.cpu_seconds(controller.pid), self._fleet.use()
        self._calls.new()
        seconds = waited(self._rest_seconds)
        after, used = processes.cpu_seconds(controller.pid), self._fleet.use()
        return Rest(
            (after - before) / seconds,
            processes.memory_bytes(controller.pid),
            (used.snapshots - fleet.snapshots) / seconds,
            (used.cpu_seconds - fleet.cpu_seconds) / seconds,
            len(self._calls.new()) * _MINUTE / seconds,
        )

    def _with_pages(self, controller: Controller) -> float:
        """The page of the fleet in one browser and that of the job in another."""
        paths = ("/", f"/jobs/{NAMESPACE}/{NAME}")
        browsers = [Browser(controller.get, path) for path in paths]
        began, before = time.monotonic(), processes.cpu_seconds(controller.pid)
        while time.monotonic() - began < self._rest_seconds:
            for each in browsers:
                if time.monotonic() >= each.due:
                    each.ask()
            time.sleep(0.1)
        return (processes.cpu_seconds(controller.pid) - before) / (time.monotonic() - began)

    def _fall(self, controller: Controller) -> Fall:
        place = self._places[self._pods // 2]
        at = self._fleet.stop(place.number)
        verdict = controller.wait_for(
            "a verdict that names the pod", lambda job: _blames(job, place.name), _VERDICT_SECONDS
        )
        self._say(f"verdict after {_shown(at, verdict)}")
        decided = controller.wait_for("a decision", _is_decided, _DECISION_SECONDS)
        due = (controller.job().get("decision") or {}).get("act_at")
        planned = None if due is None else datetime.fromisoformat(due).timestamp()
        self._say(f"decision after {_shown(at, decided)}, due after {_shown(at, planned)}")
        calls = self._until_deleted(at) if decided else [*within(self._calls.new(), at, 9e99)]
        deletes = [call for call in calls if _is_delete(call)]
        first = min((call.began_at for call in deletes), default=None)
        last = max((call.ended_at for call in deletes), default=None)
        self._say(f"until the first delete: {_timeline(at, first, calls)}")
        is_whole = len(deletes) >= self._pods
        self._say(f"{len(deletes)} pods deleted after {_shown(at, last)}")
        used = [call for call in calls if last is None or call.began_at <= last]
        return Fall(
            _since(at, verdict),
            _since(at, decided),
            _since(at, first),
            _since(at, last) if is_whole else None,
            used,
        )

    def _until_deleted(self, at: float) -> list[Call]:
        until, found = time.monotonic() + _DELETED_SECONDS, list[Call]()
        while time.monotonic() < until:
            found += within(self._calls.new(), at, 9e99)
            if sum(map(_is_delete, found)) >= self._pods:
                break
            time.sleep(1.0)
        return found

    def _say(self, words: str) -> None:
        print(f"{self._pods} pods: {words}", file=sys.stderr, flush=True)


def _blames(job: dict[str, Any], pod: str) -> bool:
    verdict = job.get("verdict") or {}
    culprit = verdict.get("culprit") or {}
    return verdict.get("cause") == "hang" and culprit.get("pod") == pod


def _is_decided(job: dict[str, Any]) -> bool:
    """Or already being done: it may go by between two looks."""
    action = (job.get("decision") or {}).get("action")
    doing = (job.get("remediation") or {}).get("doing")
    return action == "restart" or doing in ("evidence", "restarting", "recovering")


def _timeline(at: float, first: float | None, calls: Sequence[Call]) -> str:
    """Each call before the first delete: when it began after the stop, and how long it took."""
    before = (call for call in calls if first is not None and call.began_at < first)
    shown = sorted(call for call in before if call.verb != "watch")
    return ", ".join(
        f"{call.began_at - at:.1f} s {call.name} ({call.ended_at - call.began_at:.2f})"
        for call in shown
    )


def _is_delete(call: Call) -> bool:
    return call.verb == "delete" and call.resource == "pods" and 200 <= call.code < 300


def _median_delete(calls: Sequence[Call]) -> float | None:
    took = [call.ended_at - call.began_at for call in calls if _is_delete(call)]
    return statistics.median(took) if took else None


def _since(at: float, moment: float | None) -> float | None:
    return None if moment is None else moment - at


def _between(one: float | None, two: float | None) -> float | None:
    return None if one is None or two is None else two - one


def _shown(at: float, moment: float | None) -> str:
    return "no time" if moment is None else f"{moment - at:.1f} s"
