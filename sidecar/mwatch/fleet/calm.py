# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""When a large job need not be evaluated again: nothing but time has passed, and little of that.

An evaluation looks at every rank, so one of thousands of pods costs a tenth of a second. A job is
calm while its last evaluation found nothing, no pod and no object of the cluster has reported a
change since then, and its progress is younger than half of what its phase may take: so a stall is
still found at the second in which it becomes one.
"""

from __future__ import annotations

from typing import Any

from mwatch.engine.engine import Assessment
from mwatch.fleet.visibility import PodView, Polled
from mwatch.model.job import Job
from mwatch.model.kube.facts import KubeFacts
from mwatch.model.snapshot.snapshot_wire import PodSnapshot

MIN_PODS = 64
LONGEST_SECONDS = 5.0
_SHARE = 0.5


class Calm:
    def __init__(self) -> None:
        self._has_changed = True
        self._evaluated_at = 0.0

    def evaluated(self, now: float) -> None:
        self._has_changed = False
        self._evaluated_at = now

    def note_poll(self, polled: Polled, before: PodView) -> None:
        if self._has_changed:
            return
        new, old = polled.snapshot, before.snapshot
        if new is None or old is None or before.problem:
            self._has_changed = True
        elif not polled.is_steady:
            self._has_changed = _has_changes(new) or _material(new) != _material(old)

    def note_facts(self, new: KubeFacts, old: KubeFacts) -> None:
        if not self._has_changed:
            self._has_changed = any(
                getattr(new, name) != getattr(old, name)
                for name in ("job", "pods", "events", "nodes", "workload", "ours", "left")
            )

    def is_calm(
        self, job: Job, last: Assessment | None, deadline: float | None, now: float
    ) -> bool:
        """`last`: its last assessment; `deadline`: how long it may make no progress."""
        if self._has_changed or last is None or last.findings or deadline is None:
            return False
        silence = now - job.attempt.last_progress
        return now - self._evaluated_at < LONGEST_SECONDS and silence < _SHARE * deadline


def _has_changes(new: PodSnapshot) -> bool:
    parts = new.events, new.wrapper, new.stored, new.pod
    return any(parts) or new.gap


def _material(snapshot: PodSnapshot) -> tuple[Any, ...]:
    view = snapshot.view
    return (
        (view.attempt, view.phase, view.is_blind, view.action),
        snapshot.sources,
        [(each.detector, each.cause) for each in snapshot.findings],
        [each.what[:3] for each in snapshot.signs],  # source, state and rank
        len(snapshot.beats),
    )
