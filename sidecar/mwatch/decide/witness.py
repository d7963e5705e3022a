# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a finding is proven: which witnesses confirm it, and which contradict it.

A hang needs an absence of progress and a witness that does not read progress. Log and probe both
report iterations and count as one witness. A death is its own proof, unless training goes on after
it. A busy CPU is not progress, because a rank that waits for another spins: CPU time contradicts
neither a stopped rank nor a collective that does not end. A shipped log arrives up to a minute
late, so a job that has just finished may look as if it hung and died.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from mwatch.decide import resume
from mwatch.decide.policy import DEATH_DETECTORS, RULES, Proof, rule_of
from mwatch.model.cause import Cause
from mwatch.model.decision import Witness
from mwatch.model.finding import LOG_END, Finding
from mwatch.model.job import Job, ProcessGone, RankState, SignSeen
from mwatch.model.observation import RankStack, SignSource, SignState, Source, StackKind
from mwatch.model.phase import DeadlineSlot, JobPhase, slot_of
from mwatch.model.settings import Settings

_STALL_DETECTORS = frozenset({"stalled"})
"""Detectors that already compare the silence with the deadline of the phase."""
COLLECTIVES = frozenset({SignSource.NCCL_RAS, SignSource.FLIGHT_RECORDER})
SPINNING_PHASES = frozenset({JobPhase.TRAINING, JobPhase.EVALUATING})
"""In all other phases a busy CPU does real work: it compiles, reads or writes."""
_IN_LINE = frozenset({SignState.ALL_EQUAL, SignState.FLAT})
_WAITING = "collective"  # the phase that the probe reports for a rank that waits for others
_STILL = frozenset({SignState.FLAT, SignState.STOPPED, SignState.DEAD})
_OUT_OF_LINE = frozenset({SignState.STUCK, SignState.NEVER_JOINED, SignState.OUT_OF_STEP})
AGREES: dict[SignSource, frozenset[SignState]] = {
    SignSource.PROCESS: frozenset({SignState.STOPPED, SignState.SUSPENDED, SignState.DEAD}),
    SignSource.CPU_TIME: _STILL,
    SignSource.GPU_ACTIVITY: _STILL,
    SignSource.NCCL_RAS: _OUT_OF_LINE | {SignState.FLAT, SignState.BEHIND},
    SignSource.FLIGHT_RECORDER: _OUT_OF_LINE,
    SignSource.STACKS: frozenset({SignState.FLAT, SignState.STUCK}),
    SignSource.TENSORBOARD: frozenset(),  # written with the log, so not an independent witness
}
"""States that confirm a stall. ALL_EQUAL does not: it is also usual in a healthy job."""
_NAMES_A_RANK = frozenset(
    {
        SignState.DEAD,
        SignState.STOPPED,
        SignState.SUSPENDED,
        SignState.NEVER_JOINED,
        SignState.OUT_OF_STEP,
    }
)
"""States of one rank, or of one stopped pod, that explain why all others wait."""
_LASTING = frozenset({SignState.DEAD, SignState.NEVER_JOINED, SignState.OUT_OF_STEP})
"""States that a dump or a death reports only once; only progress refutes them."""
_LAST_WORK_SECONDS = 15.0
"""Maximum delay of reports about the last step: CPU time is measured over five seconds."""
_WORK = frozenset({SignSource.CPU_TIME, SignSource.GPU_ACTIVITY})
_BUSY = frozenset({SignSource.CPU_TIME, SignSource.STACKS})
_MAX_KEPT = 16  # listed witnesses: there may be one for each of ten thousand ranks
TIMEOUT_FAULTS = frozenset(
    {
        "collective-timeout", "collective-timeout-status", "desync-report", "ft-no-heartbeat",
        "ft-section-timeout", "gil-hang", "global-timeout-signal", "gloo-timeout",
        "monitor-ends-hang", "monitor-ends-timeout", "store-barrier-timeout", "watchdog-heartbeat",
        "watchdog-stuck",
    }
)  # fmt: skip
"""Catalogue entries by which the job itself reports a hang."""
_MAX_WITNESSES = 8
_SEVERAL = 2  # lines
_FIRST_LINES = 200
_AT_ONCE_SECONDS, _TOO_FAST = 1.0, 0.2


def is_over(job: Job) -> bool:
    """A process of the gang has failed: the others can only wait for it.

    A pod that is gone without an exit code may belong to the previous attempt.
    """
    attempt = job.attempt
    died = any(gone.exit.exit_code or gone.exit.signal for gone in attempt.gone.values())
    return attempt.phase is JobPhase.ENDED or died


def reports_an_exit(finding: Finding) -> bool:
    """Whether the finding is about an exit, not a silence; a hang only is in a recorded log."""
    if finding.detector == LOG_END:
        return True
    proof = rule_of(finding).proof
    if proof is Proof.SILENCE and finding.cause is not Cause.HANG:
        return finding.detector in DEATH_DETECTORS
    return proof is Proof.DEATH


def is_only_printed(job: Job, finding: Finding) -> bool:
    """Whether only log text reports a death, while wrappers watch all processes and report none.

    The text may be quoted, or the exception caught. The finding then needs a silence that a witness
    confirms.
    """
    attempt = job.attempt
    if finding.detector == LOG_END or not attempt.streams or gone_times(job):
        return False
    return all(map(job.has_wrapper, attempt.streams))


def is_sick(finding: Finding) -> bool:
    """Whether the hardware fault is permanent, such as a GPU that has fallen off the bus.

    Output of other processes does not refute it.
    """
    return finding.cause is Cause.HARDWARE and finding.cannot_heal


def usual_seconds(job: Job, settings: Settings) -> float:
    attempt = job.attempt
    is_followed = job.sees(Source.PROBE) and job.calibration.step_p99() is not None
    if attempt.phase is JobPhase.TRAINING and is_followed:
        return step_seconds(job, settings)
    slot = slot_of(attempt.phase, attempt.saves_done) or DeadlineSlot.STARTING
    return job.calibration.deadline(slot, settings)


def step_seconds(job: Job, settings: Settings) -> float:
    """Return how long a few steps take, during which reports may still arrive."""
    slowest = job.calibration.step_p99() or 0.0
    return max(settings.hang.probe_floor_seconds, settings.hang.probe_factor * slowest)


def silent_seconds(job: Job) -> float:
    return max(0.0, job.now - job.attempt.last_progress)


def is_silent(job: Job, findings: Iterable[Finding], settings: Settings) -> bool:
    stalls = (finding for finding in findings if finding.detector in _STALL_DETECTORS)
    if any(went_on_seconds(job, stall, settings) is None for stall in stalls):
        return True
    return silent_seconds(job) >= usual_seconds(job, settings)


def is_readable(job: Job) -> bool:
    return job.sees(Source.LOG) or job.sees(Source.PROBE)


def went_on_seconds(job: Job, finding: Finding, settings: Settings) -> float | None:
    """Return for how long after the finding iterations were still finished; None if none was."""
    attempt = job.attempt
    moments = [rank.progressed_at for rank in attempt.ranks.values() if rank.iteration is not None]
    moments += [] if attempt.line_at is None else [attempt.line_at]
    if finding.since_time is None or not moments:
        return None
    later = max(moments) - finding.since_time
    return later if later > step_seconds(job, settings) else None


def last_lines_due_at(job: Job, finding: Finding, settings: Settings) -> float | None:
    """Return until when to wait for late log lines; None if nothing is missing."""
    if not _is_guessed(job, finding):
        return None
    gone = gone_times(job)
    return max(gone) + settings.act.lost_pod_seconds if gone else None


def may_be_done(job: Job, finding: Finding) -> str | None:
    """Return why the processes may be gone because the job finished; None if they may not."""
    attempt, total = job.attempt, job.layout.total_iterations
    if total is None or attempt.iteration is None or not gone_times(job):
        return None
    if not _is_guessed(job, finding):
        return None
    saved = resume.choose(job, before=None).iteration
    if saved is not None and saved >= total:
        return f"checkpoint {saved} is of its last iteration"
    if attempt.iteration >= total - max(2, job.layout.log_interval or 1):
        return "it was in its last iterations"
    return None


def may_be_quoted(job: Job) -> bool:
    """Whether the lines may be quoted from an old log that a script shows before it starts.

    The wrapper has seen no rank make an iteration, and all lines came at once, or much faster than
    the iterations that they report take.
    """
    attempt = job.attempt
    if len(attempt.steps) < _SEVERAL or not all(map(job.has_wrapper, attempt.streams)):
        return False
    if any(rank.iteration is not None for rank in attempt.ranks.values()):
        return False
    lines = [attempt.steps[at] for at in range(min(len(attempt.steps), _FIRST_LINES))]
    took = sum((line.seconds or 0.0) * line.covers for line in lines[1:])
    return lines[-1].at - lines[0].at < max(_AT_ONCE_SECONDS, _TOO_FAST * took)


def is_stopped(job: Job, settings: Settings) -> bool:
    """Whether a signal has stopped a process, which only another signal can continue."""
    wanted = AGREES[SignSource.PROCESS]
    return any(
        seen.sign.source is SignSource.PROCESS
        and seen.sign.state in wanted
        and _counts(job, seen, settings)
        for seen in job.attempt.signs.values()
    )


def gone_times(job: Job) -> list[float]:
    attempt = job.attempt
    dead = [seen.since for seen in attempt.signs.values() if seen.sign.state is SignState.DEAD]
    return dead + [gone.at for gone in attempt.gone.values()]


def _is_guessed(job: Job, finding: Finding) -> bool:
    """Whether the finding may be a finished job whose last lines are missing."""
    if finding.cause is not Cause.FINISHED_EARLY:
        is_silence = RULES[finding.cause].proof is Proof.SILENCE
        if not is_silence or reports_an_exit(finding):
            return False
    attempt = job.attempt
    if attempt.errors or attempt.exit is not None:
        return False
    ends = [gone.exit for gone in attempt.gone.values()]
    return not any(end.exit_code or end.signal or end.reason for end in ends)


class Spinning:
    """Ranks that are busy but only wait, in a collective or for their GPU, while no GPU works."""

    def __init__(self, job: Job, signs: Sequence[SignSeen], settings: Settings) -> None:
        gpus = [each.sign.state for each in signs if each.sign.source is SignSource.GPU_ACTIVITY]
        are_idle = SignState.MOVING not in gpus and gpus.count(SignState.FLAT) * 2 > len(gpus)
        self._may_spin = are_idle and job.attempt.phase in SPINNING_PHASES
        self._are_in_line = any(
            seen.sign.source in COLLECTIVES and seen.sign.state in _IN_LINE for seen in signs
        )
        self._stands = step_seconds(job, settings)
        self._ranks: dict[int | str, list[RankState]] = defaultdict(list)
        self._at_gpu = {
            rank
            for rank, seen in job.attempt.stacks.items()
            if _waits_for_gpu(seen.stack) and seen.at >= job.attempt.last_progress
        }
        for rank in job.attempt.ranks.values() if self._may_spin else ():
            self._ranks[rank.rank].append(rank)
            self._ranks[rank.stream].append(rank)

    def only_spins(self, moving: SignSeen) -> bool:
        if moving.sign.source is not SignSource.CPU_TIME or not self._may_spin:
            return False
        number = moving.sign.rank
        ranks = self._ranks.get(moving.stream if number is None else number, [])
        return self._are_in_line or (
            bool(ranks)
            and all(each.phase == _WAITING or each.rank in self._at_gpu for each in ranks)
            and all(each.at - each.moved_at >= self._stands for each in ranks)
        )


def _waits_for_gpu(stack: RankStack) -> bool:
    """Whether the rank is in a call that spins until the GPU is done."""
    return stack.kind is StackKind.GPU and stack.gpu_utilization is not None


class WitnessReports(NamedTuple):
    agreeing: tuple[Witness, ...]
    disagreeing: tuple[Witness, ...]
    missing: str  # why no witness confirms the finding; empty if one does


class _Agreed:
    """Summary of the confirming signs, of which there may be tens of thousands."""

    def __init__(self, agreeing: Sequence[SignSeen], *, is_reported: bool) -> None:
        self.is_reported = is_reported
        dead = (seen.at for seen in agreeing if seen.sign.state is SignState.DEAD)
        self.last_death = max(dead, default=None)
        self.of_collectives = any(seen.sign.source in COLLECTIVES for seen in agreeing)
        named = [seen for seen in agreeing if seen.sign.state in _NAMES_A_RANK]
        self._ranks = {seen.sign.rank for seen in named if seen.sign.rank is not None}
        self._streams = {seen.stream for seen in named if seen.sign.rank is None}

    def names_another(self, moving: SignSeen) -> bool:
        """Whether another rank or pod explains why the busy one waits."""
        rank = moving.sign.rank
        streams = len(self._streams) > (moving.stream in self._streams)
        return streams or len(self._ranks) > (rank in self._ranks)


def worked_until(job: Job) -> float:
    """Return until when a CPU or GPU that is idle now was busy without progress; 0: none was.

    That was a long step, which contradicted a hang until then.
    """
    attempt = job.attempt
    moments = (
        attempt.moved_at.get(key, 0.0)
        for key, seen in attempt.signs.items()
        if key[0] in _WORK and seen.sign.state is not SignState.MOVING
    )
    last = max(moments, default=0.0)
    return last if last > attempt.last_progress + _LAST_WORK_SECONDS else 0.0


def witness_reports(job: Job, finding: Finding, settings: Settings) -> WitnessReports:
    signs = [
        seen
        for seen in job.attempt.signs.values()
        if _counts(job, seen, settings) and not (job.is_alone and seen.sign.source in COLLECTIVES)
    ]
    held = _held_by_a_person(job, signs, settings)
    if held is not None:
        return WitnessReports((), (held,), "")
    rested = job.attempt.last_progress + step_seconds(job, settings)
    agreeing = [seen for seen in signs if _agrees(job, seen, rested)]
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


def _held_by_a_person(job: Job, signs: Sequence[SignSeen], settings: Settings) -> Witness | None:
    """Return the sign of a person at work: an attached debugger, or a command stopped recently."""
    of_processes = [seen for seen in signs if seen.sign.source is SignSource.PROCESS]
    traced = next((seen for seen in of_processes if seen.sign.state is SignState.TRACED), None)
    if traced is not None:
        return _witness(traced, False)
    held = next((seen for seen in of_processes if seen.sign.state is SignState.SUSPENDED), None)
    since = None if held is None else job.suspended_since()
    patience = settings.hang.suspended_seconds
    if held is None or since is None or job.now - since >= patience:
        return None
    text = f"{held.sign.text}: it has {patience:.0f} s to be continued (kill -CONT)"
    return Witness("process", False, text)


def _counts(job: Job, seen: SignSeen, settings: Settings) -> bool:
    """Whether the sign is recent enough; one from before the last progress does not count.

    Reports of a step that was running when a rank died may still arrive after its death.
    """
    if seen.sign.state in _LASTING:
        return seen.at >= job.attempt.last_progress - step_seconds(job, settings)
    is_fresh = job.now - seen.at <= settings.hang.sign_seconds
    return is_fresh and seen.at >= job.attempt.last_progress


def _agrees(job: Job, seen: SignSeen, rested: float) -> bool:
    """Whether the sign confirms a stall.

    `rested`: a report of an idle CPU or GPU from before this time may describe the time before the
    last progress, as after a save that has just ended.
    """
    if seen.sign.source is SignSource.STACKS and job.sees(Source.PROBE):
        return False  # the probe took it, which also reads the progress: not independent
    if seen.sign.source in _WORK and seen.at < rested:
        return False
    return seen.sign.state in AGREES[seen.sign.source]


def _contradicts(job: Job, moving: SignSeen, agreed: _Agreed) -> bool:
    if moving.sign.source is SignSource.PROCESS:
        return False  # a live process does not mean progress
    if agreed.last_death is not None and agreed.last_death >= moving.at:
        return False
    if moving.sign.source not in _BUSY:
        return True
    if agreed.is_reported or agreed.names_another(moving):
        return False
    return not (agreed.of_collectives and job.attempt.phase in SPINNING_PHASES)


def _faults(job: Job, finding: Finding, settings: Settings) -> Iterator[Witness]:
    """Yield the first line of each kind since the last progress."""
    earliest = job.attempt.last_progress - step_seconds(job, settings)
    wanted = TIMEOUT_FAULTS | ({finding.fault} if finding.fault else set())
    reported: set[str] = set()
    for seen in job.attempt.faults:
        id = seen.fault.id
        if id in wanted and id not in reported and seen.at >= earliest:
            reported.add(id)
            yield Witness("log", True, seen.entry.title if seen.entry else id)


def _gone(job: Job, settings: Settings) -> Iterator[Witness]:
    earliest = job.attempt.last_progress - step_seconds(job, settings)
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
            f"{seen.sign.source} reports {seen.sign.state}"
            if _counts(job, seen, settings)
            else f"{seen.sign.source} has not reported since"
            for seen in job.attempt.signs.values()
        }
    )
    if not useless:
        return "there is no independent witness"
    return f"no independent witness agrees: {', '.join(useless)}"


class Judgement(NamedTuple):
    is_proven: bool
    reason: str  # which witness confirms it, or is missing, or disagrees
    witnesses: tuple[Witness, ...] = ()


def judge(job: Job, finding: Finding, findings: Sequence[Finding], settings: Settings) -> Judgement:
    if rule_of(finding).proof is Proof.OWN:
        reported = Witness(finding.detector, True, finding.summary)
        return Judgement(True, "what was printed is proof enough", (reported,))
    if is_over(job):
        return _over(job, finding)
    if is_sick(finding):
        return _death(job, finding, settings)
    if reports_an_exit(finding) and not is_only_printed(job, finding):
        return _death(job, finding, settings)
    return _stall(job, finding, findings, settings)


def _over(job: Job, finding: Finding) -> Judgement:
    gone = [
        Witness("process", True, f"{each.stream}: {_exit_text(each)}")
        for each in job.attempt.gone.values()
    ]
    seen = gone or [Witness(finding.detector, True, finding.summary)]
    return Judgement(True, "the attempt is over", tuple(seen[:_MAX_WITNESSES]))


def _exit_text(gone: ProcessGone) -> str:
    code = None if gone.exit.exit_code is None else f"exit code {gone.exit.exit_code}"
    message = ", ".join(each for each in (code, gone.exit.signal, gone.exit.reason) if each)
    return f"ended ({message or 'cause unknown'})"


def _death(job: Job, finding: Finding, settings: Settings) -> Judgement:
    reported = Witness(finding.detector, True, finding.summary)
    later = went_on_seconds(job, finding, settings)
    if later is None:
        return Judgement(True, "the log shows how it ended", (reported,))
    text = f"iteration {job.attempt.iteration} came {later:.0f} s after it"
    reason = f"not acted on: training went on ({text})"
    return Judgement(False, reason, (reported, Witness("progress", False, text)))


def _stall(
    job: Job, finding: Finding, findings: Sequence[Finding], settings: Settings
) -> Judgement:
    quiet = silent_seconds(job)
    if not is_readable(job):
        return Judgement(False, "not acted on: progress cannot be measured")
    if not is_silent(job, findings, settings):
        text = f"the last progress was {quiet:.0f} s ago"
        reason = f"not acted on: {text}, which is usual"
        return Judgement(False, reason, (Witness("progress", False, text),))
    progress = Witness("progress", True, f"silent for {quiet:.0f} s")
    reported = witness_reports(job, finding, settings)
    shown = (progress, *reported.agreeing, *reported.disagreeing)[:_MAX_WITNESSES]
    if reported.disagreeing:
        against = "; ".join(f"{each.name}: {each.text}" for each in reported.disagreeing[:2])
        reason = f"not acted on: progress is silent for {quiet:.0f} s, but {against}"
        return Judgement(False, reason, shown)
    if not reported.agreeing:
        reason = f"not acted on: progress is silent for {quiet:.0f} s, and {reported.missing}"
        return Judgement(False, reason, shown)
    first = reported.agreeing[0]
    reason = f"progress is silent for {quiet:.0f} s and {first.name} agrees ({first.text})"
    return Judgement(True, reason, shown)
