# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the independent witnesses of a stall say, and which of them contradict it.

Being busy is not progress: a rank that waits for another one spins on its CPU. So CPU time that
moves contradicts neither a stopped rank nor a collective that does not end; a flat GPU only while
nobody knows that the busy rank stands in a collective.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from mwatch.decide import silence
from mwatch.decide.spinning import COLLECTIVES, SPINNING_PHASES, Spinning
from mwatch.model.decision import Witness
from mwatch.model.finding import Finding
from mwatch.model.job import Job, SignSeen
from mwatch.model.observation import Sight, SignSource, SignState
from mwatch.model.settings import Settings

_STILL = frozenset({SignState.FLAT, SignState.STOPPED, SignState.DEAD})
_OUT_OF_LINE = frozenset({SignState.STUCK, SignState.NEVER_JOINED, SignState.OUT_OF_STEP})
AGREES: dict[SignSource, frozenset[SignState]] = {
    SignSource.PROCESS: frozenset({SignState.STOPPED, SignState.DEAD}),
    SignSource.CPU_TIME: _STILL,
    SignSource.GPU_ACTIVITY: _STILL,
    SignSource.NCCL_RAS: _OUT_OF_LINE | {SignState.FLAT, SignState.BEHIND},
    SignSource.FLIGHT_RECORDER: _OUT_OF_LINE,
    SignSource.STACKS: frozenset({SignState.FLAT, SignState.STUCK}),
    SignSource.TENSORBOARD: frozenset(),  # written with the log: no second witness of silence
}
"""Every rank in the same place says nothing: a healthy job looks so at most moments."""

_NAMES_A_RANK = frozenset(
    {SignState.DEAD, SignState.STOPPED, SignState.NEVER_JOINED, SignState.OUT_OF_STEP}
)
"""One such rank explains why all others wait."""
_LASTING = frozenset({SignState.DEAD, SignState.NEVER_JOINED, SignState.OUT_OF_STEP})
"""Told once, by a dump or a death; only progress takes it back."""
_BUSY = frozenset({SignSource.CPU_TIME, SignSource.STACKS})
_MAX_HEARD = 16
"""Witnesses that are named: there may be one for each of ten thousand ranks."""

TIMEOUT_FAULTS = frozenset(
    {
        "collective-timeout",
        "collective-timeout-status",
        "desync-report",
        "ft-no-heartbeat",
        "ft-section-timeout",
        "gil-hang",
        "global-timeout-signal",
        "gloo-timeout",
        "monitor-ends-hang",
        "monitor-ends-timeout",
        "store-barrier-timeout",
        "watchdog-heartbeat",
        "watchdog-stuck",
    }
)
"""Entries of the catalogue by which somebody inside the job says that it hangs."""


class Heard(NamedTuple):
    agreeing: tuple[Witness, ...]
    disagreeing: tuple[Witness, ...]
    missing: str
    """Where nobody agrees: what there is to go by."""


class _Agreed:
    """Of tens of thousands of ranks, what matters about those that agree."""

    def __init__(self, agreeing: Sequence[SignSeen], *, is_told: bool) -> None:
        self.is_told = is_told
        dead = (seen.at for seen in agreeing if seen.sign.state is SignState.DEAD)
        self.last_death = max(dead, default=None)
        self.of_collectives = any(seen.sign.source in COLLECTIVES for seen in agreeing)
        named = [seen for seen in agreeing if seen.sign.state in _NAMES_A_RANK]
        self._ranks = {seen.sign.rank for seen in named if seen.sign.rank is not None}
        self._streams = {seen.stream for seen in named if seen.sign.rank is None}

    def names_another(self, moving: SignSeen) -> bool:
        """One rank, or one pod, that explains why the busy one waits."""
        rank = moving.sign.rank
        return (
            len(self._ranks) > (rank in self._ranks)
            or len(self._streams) > (moving.stream in self._streams)
        )  # fmt: skip


def hear(job: Job, finding: Finding, settings: Settings) -> Heard:
    signs = [seen for seen in job.attempt.signs.values() if _counts(job, seen, settings)]
    agreeing = [seen for seen in signs if _agrees(job, seen)]
    told = (*_faults(job, finding, settings), *_gone(job, settings))
    spinning = Spinning(job, signs, settings)
    agreed = _Agreed(agreeing, is_told=bool(told))
    against = (
        seen
        for seen in signs
        if seen.sign.state is SignState.MOVING
        and not spinning.only_spins(seen)
        and _contradicts(job, seen, agreed)
    )
    return Heard(
        (*told, *(_witness(seen, True) for seen in agreeing[:_MAX_HEARD])),
        tuple(_witness(seen, False) for seen in islice(against, _MAX_HEARD)),
        "" if agreeing else _missing(job, settings),
    )


def _counts(job: Job, seen: SignSeen, settings: Settings) -> bool:
    """A sign from before the last progress speaks of another time.

    News of a step that was under way when a rank died may still come after its death.
    """
    if seen.sign.state in _LASTING:
        return seen.at >= job.attempt.last_progress - silence.step_seconds(job, settings)
    is_fresh = job.now - seen.at <= settings.hang.sign_seconds
    return is_fresh and seen.at >= job.attempt.last_progress


def _agrees(job: Job, seen: SignSeen) -> bool:
    if seen.sign.source is SignSource.STACKS and job.sees(Sight.PROBE):
        return False  # taken by the probe, which read the progress too
    return seen.sign.state in AGREES[seen.sign.source]


def _contradicts(job: Job, moving: SignSeen, agreed: _Agreed) -> bool:
    if moving.sign.source is SignSource.PROCESS:
        return False  # alive is not moving
    if agreed.last_death is not None and agreed.last_death >= moving.at:
        return False
    if moving.sign.source not in _BUSY:
        return True
    if agreed.is_told or agreed.names_another(moving):
        return False
    return not (agreed.of_collectives and job.attempt.phase in SPINNING_PHASES)


def _faults(job: Job, finding: Finding, settings: Settings) -> Iterator[Witness]:
    """The first line of each kind that came with or after the last progress."""
    earliest = job.attempt.last_progress - silence.step_seconds(job, settings)
    wanted = TIMEOUT_FAULTS | ({finding.fault} if finding.fault else set())
    told: set[str] = set()
    for seen in job.attempt.faults:
        id = seen.fault.id
        if id in wanted and id not in told and seen.at >= earliest:
            told.add(id)
            yield Witness("log", True, seen.entry.title if seen.entry else id)


def _gone(job: Job, settings: Settings) -> Iterator[Witness]:
    """Pods that are gone, and did not say that all was well."""
    earliest = job.attempt.last_progress - silence.step_seconds(job, settings)
    for gone in job.attempt.gone.values():
        if gone.exit.exit_code != 0 and gone.at >= earliest:
            yield Witness("process", True, f"{gone.stream}: {gone.exit.reason or 'gone'}")


def _witness(seen: SignSeen, agrees: bool) -> Witness:
    sign = seen.sign
    who = sign.source.value if sign.rank is None else f"{sign.source} of rank {sign.rank}"
    return Witness(who, agrees, sign.text or sign.state.value)


def _missing(job: Job, settings: Settings) -> str:
    useless = sorted(
        {
            f"{seen.sign.source} says {seen.sign.state}"
            if _counts(job, seen, settings)
            else f"{seen.sign.source} has not spoken since"
            for seen in job.attempt.signs.values()
        }
    )
    if not useless:
        return "no independent witness can be heard"
    return f"no independent witness agrees: {', '.join(useless)}"
