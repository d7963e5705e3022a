# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A real run, made-up hardware and a made-up fleet, watched by a real Prometheus until all is over.

When the fault is found, sent, fixed and gone, the training is stopped; Prometheus stays, and
whoever asks it asks for the moment at which all was still there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from monitoring import fake_fleet
from monitoring.fake_dcgm import fake_dcgm
from monitoring.fake_pod import NAMESPACE, POD, fake_pod
from monitoring.live_training import RUN, training
from monitoring.panel_queries import TIMES, PanelQuery
from monitoring.prometheus import Target, alertmanager, prometheus, quick_rules
from monitoring.receiver import Receiver, receiving
from monitoring.server import Server
from support.waiting import until

FAULT_AT = 45
STALLED = "MwatchStalled"
STALL_SECONDS = 240.0
"""Two starts of torch, a stall and its fixing, on a machine that may be busy with others."""


class Watched(NamedTuple):
    prometheus: Server
    alertmanager: Server
    receiver: Receiver
    began: float
    ended: float
    """The last moment at which the training was still there."""
    sent: list[dict[str, Any]]
    """What Alertmanager itself had of the stall while it fired."""

    def ask(self, query: PanelQuery, run: str) -> list[Any]:
        """The series that are numbers at some moment."""
        expr = query.filled(run=run, namespace=".*", pod=".*", **TIMES)
        return self.values(expr, is_instant=query.is_instant)

    def values(self, expr: str, *, is_instant: bool) -> list[Any]:
        if is_instant:
            found = self.prometheus.get("/api/v1/query", query=expr, time=str(self.ended))
        else:
            times = {"start": str(self.began), "end": str(self.ended), "step": "1"}
            found = self.prometheus.get("/api/v1/query_range", query=expr, **times)
        assert found["status"] == "success"
        return [each for each in found["data"]["result"] if _has_number(each)]


def _has_number(series: dict[str, Any]) -> bool:
    values = series.get("values") or [series["value"]]
    return any(value != "NaN" for _, value in values)


@contextmanager
def watched_run(
    folder: Path, *, fault_at: int = FAULT_AT, linger_seconds: float = 0.0
) -> Iterator[Watched]:
    """A rank waits for its data from iteration `fault_at` on. `linger_seconds`: how long the run
    is watched when all is over."""
    rules = folder / "rules"
    rules.mkdir()
    with ExitStack() as stack:
        receiver = stack.enter_context(receiving())
        manager = stack.enter_context(alertmanager(folder, receiver.url))
        pod = stack.enter_context(fake_pod())
        fleet = stack.enter_context(fake_fleet.fake_fleet())
        old, new = stack.enter_context(fake_dcgm())
        began = time.time()
        with training(folder, f"data@{fault_at}:rank=1") as (_, address):
            targets = (
                Target("mwatch", address),
                Target("mwatch-pods", pod, {"namespace": NAMESPACE, "pod": POD}),
                Target("mwatch-controller", fleet, fake_fleet.PLACE),
                Target("dcgm-old", old),
                Target("dcgm-new", new),
            )
            server = stack.enter_context(
                prometheus(folder, targets, rules=quick_rules(rules), alertmanager=manager.address)
            )
            sent = _wait_for_the_story(server, manager, receiver, fault_at)
            time.sleep(linger_seconds)
            ended = time.time()
        yield Watched(server, manager, receiver, began, ended, sent)


def _wait_for_the_story(
    server: Server, manager: Server, receiver: Receiver, fault_at: int
) -> list[dict[str, Any]]:
    """Stalled, sent, restarted, past the fault, no longer stalled."""

    def stalled() -> list[dict[str, Any]]:
        everything: list[dict[str, Any]] = manager.get("/api/v2/alerts")
        return [each for each in everything if each["labels"]["alertname"] == STALLED]

    # Before it is sent: afterwards a busy machine may look only when it is over.
    sent: list[dict[str, Any]] = until(stalled, STALL_SECONDS)
    until(lambda: receiver.alerts(STALLED, RUN), STALL_SECONDS)
    past = f'mwatch_attempt{{run="{RUN}"}} == 2 and mwatch_iteration{{run="{RUN}"}} > {fault_at}'
    until(lambda: server.get("/api/v1/query", query=past)["data"]["result"], STALL_SECONDS)
    until(lambda: receiver.alerts(STALLED, RUN)[-1]["status"] == "resolved", STALL_SECONDS)
    return sent
