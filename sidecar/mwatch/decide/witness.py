# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Two witnesses before an action: who says so, and who says otherwise.

A hang is believed when progress is silent and somebody else agrees who does not read progress.
A death carries its own proof, unless training goes on after it. What a witness measures, and
how well, is the business of its source.

Ranks that are busy and get nowhere: they wait for another one with all of a core.

No GPU works, and whoever is busy is known to wait in a collective. What all signs say together is
judged once, for each of many thousand ranks asks for it.

What the independent witnesses of a stall say, and which of them contradict it.

Being busy is not progress: a rank that waits for another one spins on its CPU. So CPU time that
moves contradicts neither a stopped rank nor a collective that does not end; a flat GPU only while
nobody knows that the busy rank stands in a collective.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from mwatch.decide import silence
from mwatch.decide.policy import RULES, Proof
from mwatch.model.decision import Witness
from mwatch.model.finding import Finding
from mwatch.model.job import Job, ProcessGone, RankState, SignSeen
from mwatch.model.observation import SignSource, SignState, Source
from mwatch.model.phase import JobPhase
from mwatch.model.settings import Settings

COLLECTIVES = frozenset({SignSource.NCCL_RAS, SignSource.FLIGHT_RECORDER})
SPINNING_PHASES = frozenset({JobPhase.TRAINING, JobPhase.EVALUATING})
"""In the others a busy CPU does real work: it compiles, reads or writes."""
_IN_LINE = frozenset({SignState.ALL_EQUAL, SignState.FLAT})
_WAITING = "collective"
"""Where the probe sees a rank that waits for others."""


class Spinning:
    def __init__(self, job: Job, signs: Sequence[SignSeen], settings: Settings) -> None:
        self._attempt = job.attempt
        self._signs = signs
        self._stands = silence.step_seconds(job, settings)

    def only_spins(self, moving: SignSeen) -> bool:
        """`moving`: a sign that says so."""
        if moving.sign.source is not SignSource.CPU_TIME or not self._rest:
            return False
        if self._are_in_line:
            return True
        ranks = self._ranks(moving)
        return bool(ranks) and all(map(self._waits, ranks))

    @cached_property
    def _rest(self) -> bool:
        """All GPUs, as far as they are seen, in a phase in which they should work."""
        if self._attempt.phase not in SPINNING_PHASES:
            return False
        of_gpus = (seen for seen in self._signs if seen.sign.source is SignSource.GPU_ACTIVITY)
        states = [seen.sign.state for seen in of_gpus]
        return SignState.MOVING not in states and states.count(SignState.FLAT) * 2 > len(states)

    @cached_property
    def _are_in_line(self) -> bool:
        return any(
            seen.sign.source in COLLECTIVES and seen.sign.state in _IN_LINE for seen in self._signs
        )

    @cached_property
    def _by_stream(self) -> dict[str, list[RankState]]:
        found: dict[str, list[RankState]] = defaultdict(list)
        for rank in self._attempt.ranks.values():
            found[rank.stream].append(rank)
        return found

    def _ranks(self, moving: SignSeen) -> list[RankState]:
        """Whom it speaks of: one rank, or all of its pod."""
        if moving.sign.rank is None:
            return self._by_stream.get(moving.stream, [])
        rank = self._attempt.ranks.get(moving.sign.rank)
        return [] if rank is None else [rank]

    def _waits(self, rank: RankState) -> bool:
        return rank.phase == _WAITING and rank.at - rank.moved_at >= self._stands


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
_MAX_KEPT = 16
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


class WitnessReports(NamedTuple):
    agreeing: tuple[Witness, ...]
    disagreeing: tuple[Witness, ...]
    missing: str
    """Where nobody agrees: what there is to go by."""


class _Agreed:
    """Of tens of thousands of ranks, what matters about those that agree."""

    def __init__(self, agreeing: Sequence[SignSeen], *, is_reported: bool) -> None:
        self.is_reported = is_reported
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


def hear(job: Job, finding: Finding, settings: Settings) -> WitnessReports:
    signs = [seen for seen in job.attempt.signs.values() if _counts(job, seen, settings)]
    agreeing = [seen for seen in signs if _agrees(job, seen)]
    reported = (*_faults(job, finding, settings), *_gone(job, settings))
    spinning = Spinning(job, signs, settings)
    agreed = _Agreed(agreeing, is_reported=bool(reported))
    against = (
        seen
        for seen in signs
        if seen.sign.state is SignState.MOVING
        and not spinning.only_spins(seen)
        and _contradicts(job, seen, agreed)
    )
    return WitnessReports(
        (*reported, *(_witness(seen, True) for seen in agreeing[:_MAX_KEPT])),
        tuple(_witness(seen, False) for seen in islice(against, _MAX_KEPT)),
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
    if seen.sign.source is SignSource.STACKS and job.sees(Source.PROBE):
        return False  # taken by the probe, which read the progress too
    return seen.sign.state in AGREES[seen.sign.source]


def _contradicts(job: Job, moving: SignSeen, agreed: _Agreed) -> bool:
    if moving.sign.source is SignSource.PROCESS:
        return False  # alive is not moving
    if agreed.last_death is not None and agreed.last_death >= moving.at:
        return False
    if moving.sign.source not in _BUSY:
        return True
    if agreed.is_reported or agreed.names_another(moving):
        return False
    return not (agreed.of_collectives and job.attempt.phase in SPINNING_PHASES)


def _faults(job: Job, finding: Finding, settings: Settings) -> Iterator[Witness]:
    """The first line of each kind that came with or after the last progress."""
    earliest = job.attempt.last_progress - silence.step_seconds(job, settings)
    wanted = TIMEOUT_FAULTS | ({finding.fault} if finding.fault else set())
    reported: set[str] = set()
    for seen in job.attempt.faults:
        id = seen.fault.id
        if id in wanted and id not in reported and seen.at >= earliest:
            reported.add(id)
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


_MAX_WITNESSES = 8


class Judgement(NamedTuple):
    is_proven: bool
    reason: str
    """Who convinced us, or who is missing or disagrees."""
    witnesses: tuple[Witness, ...] = ()


def judge(job: Job, finding: Finding, findings: Sequence[Finding], settings: Settings) -> Judgement:
    if RULES[finding.cause].proof is Proof.OWN:
        reported = Witness(finding.detector, True, finding.summary)
        return Judgement(True, "what was printed is proof enough", (reported,))
    if silence.is_over(job):
        return _over(job, finding)
    if silence.reports_an_exit(finding) or silence.is_sick(finding):
        return _death(job, finding, settings)
    return _stall(job, finding, findings, settings)


def _over(job: Job, finding: Finding) -> Judgement:
    gone = [
        Witness("process", True, f"{each.stream}: {_last_word(each)}")
        for each in job.attempt.gone.values()
    ]
    seen = gone or [Witness(finding.detector, True, finding.summary)]
    return Judgement(True, "the attempt is over", tuple(seen[:_MAX_WITNESSES]))


def _last_word(gone: ProcessGone) -> str:
    code = None if gone.exit.exit_code is None else f"exit code {gone.exit.exit_code}"
    message = ", ".join(each for each in (code, gone.exit.signal, gone.exit.reason) if each)
    return f"ended ({message or 'cause unknown'})"


def _death(job: Job, finding: Finding, settings: Settings) -> Judgement:
    reported = Witness(finding.detector, True, finding.summary)
    later = silence.went_on_seconds(job, finding, settings)
    if later is None:
        return Judgement(True, "the log shows how it ended", (reported,))
    text = f"iteration {job.attempt.iteration} came {later:.0f} s after it"
    reason = f"not acted on: training went on ({text})"
    return Judgement(False, reason, (reported, Witness("progress", False, text)))


def _stall(
    job: Job, finding: Finding, findings: Sequence[Finding], settings: Settings
) -> Judgement:
    quiet = silence.silent_seconds(job)
    if not silence.is_readable(job):
        return Judgement(False, "not acted on: progress cannot be measured")
    if not silence.is_silent(job, findings, settings):
        text = f"the last progress was {quiet:.0f} s ago"
        reason = f"not acted on: {text}, which is usual"
        return Judgement(False, reason, (Witness("progress", False, text),))
    progress = Witness("progress", True, f"silent for {quiet:.0f} s")
    reported = hear(job, finding, settings)
    received = (progress, *reported.agreeing, *reported.disagreeing)[:_MAX_WITNESSES]
    if reported.disagreeing:
        who = "; ".join(f"{each.name}: {each.text}" for each in reported.disagreeing[:2])
        reason = f"not acted on: progress is silent for {quiet:.0f} s, but {who}"
        return Judgement(False, reason, received)
    if not reported.agreeing:
        reason = f"not acted on: progress is silent for {quiet:.0f} s, and {reported.missing}"
        return Judgement(False, reason, received)
    first = reported.agreeing[0]
    reason = f"progress is silent for {quiet:.0f} s and {first.name} agrees ({first.text})"
    return Judgement(True, reason, received)
