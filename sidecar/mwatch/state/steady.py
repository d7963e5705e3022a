# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""All records of one pod in which nothing but time and iterations have passed, folded at once.

The result is that of folding each of them, for a third of the cost: thousands of pods send such an
answer every few seconds, and next to none is the first to show an iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mwatch.model.job import Attempt, Job, SignSeen
from mwatch.model.observation import Beat, Observed, Sign, Source
from mwatch.model.phase import JobPhase
from mwatch.state.fold import fold


def fold_steady(
    job: Job,
    stream: str,
    beats: Sequence[Observed],
    progressed: Mapping[int, float],
    shift: float,
) -> None:
    """`progressed`: by rank, when its iteration last rose. `shift`: to add to all times here."""
    is_plain = _is_plain(job, stream)
    for observed in beats:
        beat, at = observed.what, observed.at + shift
        assert isinstance(beat, Beat)
        risen = progressed.get(beat.rank)
        risen_at = at if risen is None else risen + shift
        if not is_plain or not _followed(job.attempt, stream, beat, at, risen_at):
            if risen_at < at:
                fold(job, Observed(risen_at, stream, beat))
            fold(job, Observed(at, stream, beat))
            is_plain = is_plain or _is_plain(job, stream)
        elif at > job.now:
            job.now = at


def confirm_signs(job: Job, stream: str, signs: Sequence[Observed], shift: float) -> None:
    """Each witness still reports the same."""
    is_plain = _is_plain(job, stream)
    for observed in signs:
        sign, at = observed.what, observed.at + shift
        assert isinstance(sign, Sign)
        key = (sign.source, sign.rank, stream)
        before = job.attempt.signs.get(key)
        if is_plain and before is not None and before.sign.state is sign.state:
            job.attempt.signs[key] = SignSeen(at, stream, sign, before.since)
        else:
            fold(job, Observed(at, stream, sign))


def _is_plain(job: Job, name: str) -> bool:
    """Whether the pod takes part in the current attempt, and is known to be reachable."""
    stream, attempt, probe = job.streams.get(name), job.attempt, job.sources.get(Source.PROBE)
    return (
        stream is not None
        and stream.attempt == attempt.number
        and attempt.phase is not JobPhase.ENDED
        and name not in attempt.unreachable
        and probe is not None
        and probe.is_up
    )


def _followed(attempt: Attempt, stream: str, beat: Beat, at: float, risen_at: float) -> bool:
    """Update the rank; False: it leads, is new, or is the first to finish an iteration."""
    state = attempt.ranks.get(beat.rank)
    if state is None or beat.attempt is not None or 0 not in attempt.ranks or beat.rank == 0:
        return False
    iteration, furthest = beat.iteration, attempt.iteration
    if iteration is not None and (furthest is None or iteration > furthest):
        return False
    if at < state.at:
        return True
    moment = risen_at if state.at <= risen_at < at else at
    if iteration != state.iteration:
        state.iteration = iteration
        state.progressed_at = state.moved_at = moment
    if beat.phase != state.phase or beat.stack != state.stack:
        state.phase, state.stack = beat.phase, beat.stack
        state.moved_at = moment
    state.at, state.pid, state.stream = at, beat.pid, stream
    return True
