# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What of the pods' snapshots is news for the job's engine.

Events are told once and in order. What can be seen at all is judged over all pods, so a pod's own
changes of sight are left out. Wrappers count attempts: once one of them has begun the next, what
other pods still do and print is of the last one, and only their last words count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mwatch.app.pod_sight import PodSight, Polled
from mwatch.model.event import Error, Fault
from mwatch.model.observation import AttemptStart, Observed, ProcessExit, SightChange, Stored
from mwatch.model.snapshot_wire import PodSnapshot
from mwatch.model.wrapper import WrapperState

_LAST_WORDS = (ProcessExit, Error, Fault)
_SAME_SECONDS = 10.0
"""Between two looks that found the folder the same: the later one knows what was saved since."""


def merged(newest: PodSnapshot, before: PodSnapshot | None) -> PodSnapshot:
    """With the parts that the sidecar leaves out because we know them; events are not kept."""
    if before is None:
        return replace(newest, events=())
    return replace(
        newest,
        events=(),
        wrapper=newest.wrapper or before.wrapper,
        stored=newest.stored or before.stored,
        pod=newest.pod or before.pod,
    )


class JobStreams:
    """Of one job."""

    def __init__(self) -> None:
        self._attempt = 0
        """The newest that any wrapper was told to have begun."""
        self._of_pod: dict[str, int] = {}
        """By UID: the attempt that its wrapper was last told to have begun."""
        self._stored: Observed | None = None
        """The newest look into the save folder that was told."""

    def news(self, polled: Polled, sight: PodSight) -> Iterator[Observed]:
        """In order. `sight`: as before this poll."""
        snapshot = self._with_folder(polled, sight)
        told = (each for each in snapshot.observed(polled.at) if self._is_new(each))
        every = [*_untold_start(polled, sight), *told]
        attempt = self._of_pod.get(polled.uid)
        is_known = attempt is not None
        if attempt is None:
            attempt = _before(every, snapshot.wrapper)
        for observed in every:
            what = observed.what
            if isinstance(what, AttemptStart) and what.attempt is not None:
                attempt = what.attempt
                self._attempt = max(self._attempt, attempt)
            is_late = attempt < self._attempt
            is_last_word = is_known and isinstance(what, _LAST_WORDS)
            if isinstance(what, AttemptStart) or not is_late or is_last_word:
                yield observed
        self._of_pod[polled.uid] = attempt

    def runs(self, uid: str, attempt: int) -> bool:
        """Whether that is the attempt that a pod's wrapper was last told to have begun."""
        return self._of_pod.get(uid) == attempt

    def keep(self, uids: set[str]) -> None:
        """Others are gone."""
        for uid in [uid for uid in self._of_pod if uid not in uids]:
            del self._of_pod[uid]

    def _with_folder(self, polled: Polled, sight: PodSight) -> PodSnapshot:
        """Of a look that found the folder as it was only the time is sent."""
        snapshot = polled.snapshot
        assert snapshot is not None
        at, known = snapshot.stored_at, sight.snapshot
        if snapshot.stored is not None or at is None or known is None:
            return snapshot
        if self._stored and at + snapshot.shift(polled.at) <= self._stored.at + _SAME_SECONDS:
            return snapshot
        return replace(snapshot, stored=known.stored)

    def _is_new(self, observed: Observed) -> bool:
        """All pods see the same save folder: what one has told need not be told by all, and an
        older look of another pod does not know what was saved since."""
        if not isinstance(observed.what, Stored):
            return not isinstance(observed.what, SightChange)
        before = self._stored
        if before is not None:
            wait = _SAME_SECONDS if observed.what == before.what else 0.0
            if observed.at <= before.at + wait:
                return False
        self._stored = observed
        return True


def _before(every: list[Observed], wrapper: WrapperState | None) -> int:
    """In which attempt a pod was that we have just met, before the first thing it tells."""
    starts = (each.what.attempt for each in every if isinstance(each.what, AttemptStart))
    first = next((number for number in starts if number is not None), None)
    if first is not None:
        return first - 1
    return 0 if wrapper is None else wrapper.attempt


def _untold_start(polled: Polled, sight: PodSight) -> list[Observed]:
    """The attempt began before all that the sidecar still has."""
    snapshot = polled.snapshot
    if snapshot is None or snapshot.wrapper is None or not polled.is_whole:
        return []
    wrapper = snapshot.wrapper
    known = None if sight.snapshot is None else sight.snapshot.wrapper
    if known is not None and (not snapshot.gap or known.attempt == wrapper.attempt):
        return []
    starts = (each.what for each in snapshot.events if isinstance(each.what, AttemptStart))
    if any(start.attempt == wrapper.attempt for start in starts):
        return []
    at = wrapper.started_at + snapshot.shift(polled.at)
    start = AttemptStart(wrapper.attempt, wrapper.resume_from, None)
    return [Observed(min(at, polled.at), snapshot.who.pod, start)]
