# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whether an attempt has been silent for longer than its current phase allows.

The log cannot show everything: a periodic evaluation prints nothing until its result, and only
rank 0 prints saves. While one may be in progress, its deadline is added to the limit. The trainer's
own watchdogs can end the wait earlier. Whether a stall justifies a restart is decided elsewhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from mwatch.detect.shared.causes import REPORTS
from mwatch.detect.shared.probe import (
    ProbedRanks,
    held_seconds,
    is_behind_the_log,
    probed_ranks,
    prompt,
    standstill,
)
from mwatch.detect.shared.progress import (
    Cadence,
    cadence,
    counted_step,
    has_multiple,
    last_iteration_at,
    multiples,
    step_limit,
    step_seconds,
)
from mwatch.model.job import FaultSeen, Job, SignSeen
from mwatch.model.observation import SignState, Source
from mwatch.model.phase import DeadlineSlot, JobPhase, slot_of
from mwatch.model.settings import Settings
from mwatch.model.step import Step

GIVEN_UP = frozenset(
    {
        "collective-timeout", "gloo-timeout", "global-timeout-signal", "monitor-ends-hang",
        "monitor-ends-timeout", "watchdog-heartbeat", "watchdog-stuck",
    }
)  # fmt: skip
"""Faults after which the trainer is terminated: the attempt cannot recover."""
_WAITED = frozenset({"collective-timeout", "gloo-timeout"})
STUCK_HERE = frozenset({"watchdog-heartbeat", "watchdog-stuck"})
"""Faults that blame the process that prints them: a stuck CUDA or NCCL call, or the GIL."""

_GROUP = re.compile(r"\[(PG [^\]\n]{1,120}?) Rank \d+\]")
_ENQUEUED = re.compile(r"last enqueued (?:NCCL )?work: (\d{1,18})")
_WAITED_FOR = re.compile(r"work sequence id: (\d{1,18})")
_PROBE = 0.7
_LOG = 0.5
_CAREFUL = 0.3
_COUNTED_STEPS = 20  # a mean hides the longest step
_ASIDE = frozenset({JobPhase.SAVING, JobPhase.EVALUATING, JobPhase.ASYNC_FINALIZE})
_NEVER = frozenset({JobPhase.QUEUED, JobPhase.SCHEDULING, JobPhase.ENDED})
_GIVEN_UP = 0.9


def given_up(job: Job, since: float) -> FaultSeen | None:
    """Return the first watchdog that ended its wait after the last progress."""
    return next((seen for seen in _since(job, since) if seen.fault.id in GIVEN_UP), None)


def stuck_here(job: Job, since: float) -> FaultSeen | None:
    """Return the report of the only stuck rank; several stuck ranks may wait for another one."""
    found = [seen for seen in _since(job, since) if seen.fault.id in STUCK_HERE]
    named = [seen for seen in found if seen.fault.rank is not None]
    if len({seen.fault.rank for seen in named}) != 1:
        return None
    stuck = named[0].fault.rank
    if any(seen.fault.id in _WAITED and seen.fault.rank == stuck for seen in _since(job, since)):
        return None  # it waited for others as well
    others = {seen.fault.rank for seen in _since(job, since)} - {None, stuck}
    is_only = job.layout.world_size == 1 or bool(job.attempt.ranks)
    return named[0] if others or is_only else None


def least_enqueued(job: Job, since: float) -> FaultSeen | None:
    """Return the report of the rank that enqueued the least, if most of its group enqueued more.

    The rank that prints a timeout is usually a victim of the one that enqueued less. One that has
    enqueued what the others wait for is not behind, even if they have enqueued more since.
    """
    groups: dict[str, dict[int, tuple[int, FaultSeen]]] = {}
    waited: dict[str, int] = {}
    for seen in _since(job, since):
        group, work = _GROUP.search(seen.fault.text), _ENQUEUED.search(seen.fault.text)
        if group and work and seen.fault.rank is not None:
            groups.setdefault(group[1], {})[seen.fault.rank] = (int(work[1]), seen)
            if timed_out := _WAITED_FOR.search(seen.fault.text):
                waited[group[1]] = max(int(timed_out[1]), waited.get(group[1], 0))
    for name, reports in groups.items():
        most = waited.get(name) or max(work for work, _ in reports.values())
        behind = [report for report in reports.values() if report[0] < most]
        if behind and len(behind) * 2 <= len(reports):
            return min(behind, key=lambda report: report[0])[1]
    return None


def absentee(job: Job, since: float) -> int | None:
    """Return the only rank of the job that did not wait in a collective until it timed out."""
    world = job.layout.world_size or 0
    waited = {seen.fault.rank for seen in _since(job, since) if seen.fault.id in _WAITED} - {None}
    absent = [rank for rank in range(world) if rank not in waited] if len(waited) < world else []
    return absent[0] if len(absent) == 1 and world > 1 else None


def _since(job: Job, since: float) -> list[FaultSeen]:
    return [seen for seen in job.attempt.faults if seen.at >= since]


class Patience(NamedTuple):
    seconds: float
    confidence: float  # that a longer silence is a stall, before other witnesses are considered
    note: str = ""  # what could not be observed, for the summary


def patience(job: Job, probe: ProbedRanks, settings: Settings) -> Patience | None:
    """Return the silence that is allowed now; None if neither log nor probe can show progress."""
    phase = job.attempt.phase
    if phase is JobPhase.TRAINING:
        if probe.has_iterations and not is_behind_the_log(job, probe.beating, settings):
            return _by_probe(job, probe, settings)
        return _by_log(job, settings) if job.sees(Source.LOG) else None
    has_probe = bool(probe.beating)
    if phase is JobPhase.FIRST_STEP and not has_probe:
        return _first_step_by_log(job, settings)
    if not has_probe and (not job.sees(Source.LOG) or _knows_nothing(job)):
        return None
    return Patience(_deadline(job, phase, settings), _PROBE if has_probe else _LOG)


def _knows_nothing(job: Job) -> bool:
    """Whether no line of the trainer was understood, so its start cannot be detected either."""
    is_unknown = job.layout.log_interval is None and job.layout.world_size is None
    return job.attempt.phase is JobPhase.STARTING and is_unknown


def _deadline(job: Job, phase: JobPhase, settings: Settings) -> float:
    seconds = _learnt(job, phase, settings)
    if phase is JobPhase.STOPPING and job.attempt.save is not None:
        return seconds + _learnt(job, JobPhase.SAVING, settings)
    return seconds


def _learnt(job: Job, phase: JobPhase, settings: Settings) -> float:
    slot = slot_of(phase, job.attempt.saves_done)
    assert slot is not None  # stall() asks for no other phase
    return job.calibration.deadline(slot, settings)


def _first_step_by_log(job: Job, settings: Settings) -> Patience:
    """Before core_v0.16 the first line is printed only after a whole log interval."""
    seconds = job.calibration.deadline(DeadlineSlot.FIRST_STEP, settings)
    note = "no iteration line was printed yet"
    interval = job.layout.log_interval
    if interval == 1:
        return Patience(seconds, _LOG, note)
    step = job.calibration.step_median()
    if interval is None or step is None:
        return Patience(max(seconds, settings.deadlines.first_step.ceiling_seconds), _CAREFUL, note)
    return Patience(seconds + interval * step, _LOG, note)


def _by_probe(job: Job, probe: ProbedRanks, settings: Settings) -> Patience:
    aside = {rank.phase for rank in prompt(probe, settings)} & _ASIDE
    if aside:
        allowed = max(_deadline(job, JobPhase(phase), settings) for phase in aside)
        return Patience(allowed, _PROBE)
    limit = step_limit(job, settings)
    if limit is None:
        return _by_count(job, settings)
    hang = settings.hang
    limit = max(limit, hang.probe_factor * (step_seconds(job) or 0.0))
    return Patience(max(limit - hang.look_seconds, hang.look_seconds), _PROBE)


def _by_count(job: Job, settings: Settings) -> Patience:
    """Estimate the limit by the mean of many counted steps, as no line shows how long one takes."""
    default = job.calibration.deadline(DeadlineSlot.TRAINING, settings)
    step, hang = counted_step(job, settings), settings.hang
    if step is None:
        return Patience(default, _PROBE)
    limit = max(hang.beat_silence_seconds, _COUNTED_STEPS * step)
    note = f"by the iterations counted so far a step takes {step:.2g} s"
    return Patience(min(limit, default), _CAREFUL, note)


def _by_log(job: Job, settings: Settings) -> Patience | None:
    attempt = job.attempt
    known = cadence(job)
    if not attempt.steps or known is None:
        if not attempt.steps and not any(each.prints_iterations for each in job.streams.values()):
            return None
        note = "too few iteration lines to know how often they come"
        return Patience(job.calibration.deadline(DeadlineSlot.TRAINING, settings), _CAREFUL, note)
    last = attempt.steps[-1]
    shown = _shown_by_probe(job, last)
    limit = max(settings.deadlines.training.floor_seconds, settings.hang.log_intervals * known.gap)
    if JobPhase.EVALUATING not in shown:
        limit += _evaluation_seconds(job, last, known, settings)
    if JobPhase.SAVING not in shown:
        limit += _save_seconds(job, _unprinted(job, last, known), settings)
    if attempt.is_done:
        limit += _deadline(job, JobPhase.STOPPING, settings)
    is_shown = _shows_saves(job) or JobPhase.SAVING in shown
    if is_shown or job.layout.log_interval is not None:
        return Patience(limit, _LOG)
    note = "no stream shows saves: a long one would look the same"
    longest = known.longest_plain if shown else known.longest
    return Patience(max(limit, settings.hang.log_intervals * longest), _CAREFUL, note)


def _shows_saves(job: Job) -> bool:
    return any(stream.prints_checkpoints for stream in job.streams.values())


def _shown_by_probe(job: Job, last: Step) -> set[JobPhase]:
    """Return the phases that the probe would have shown since the last line, because it showed them
    before and a record of the first rank came after that line."""
    ranks = job.attempt.ranks
    lead = ranks[min(ranks)] if ranks and job.sees(Source.PROBE) else None
    return job.attempt.probed_asides if lead is not None and lead.at > last.at else set()


def _unprinted(job: Job, last: Step, known: Cadence) -> range:
    """Return the iterations whose evaluation or save may be running now without a line.

    An iteration's line is printed before its evaluation and save; a change of phase after the line
    means that both have finished.
    """
    is_over = job.attempt.progress_at > last.at
    return range(last.iteration + is_over, last.iteration + known.iterations)


def _evaluation_seconds(job: Job, last: Step, known: Cadence, settings: Settings) -> float:
    interval = job.layout.eval_interval
    allowed = job.calibration.deadline(DeadlineSlot.EVALUATING, settings)
    if interval is None:
        return allowed if _has_evaluated(job) else 0.0
    open_now = _unprinted(job, last, known)
    if not has_multiple(open_now, interval) or _are_reported(job, last, open_now, interval):
        return 0.0
    return allowed


def _has_evaluated(job: Job) -> bool:
    return bool(job.attempt.evaluations or job.calibration.durations[DeadlineSlot.EVALUATING])


def _are_reported(job: Job, last: Step, open_now: range, interval: int) -> bool:
    """Whether the results of all due evaluations were printed, or this run never prints any.

    An evaluation with several data sets prints several results.
    """
    reported = job.attempt.evaluations
    first = job.attempt.first_iteration or last.iteration
    before = multiples(range(first, last.iteration), interval)
    if before and not reported and not job.calibration.durations[DeadlineSlot.EVALUATING]:
        return True  # one was due and none came: this run does not evaluate
    each = max(1, job.attempt.evaluations_before // before) if before else 1
    return reported >= each * multiples(range(first, open_now.stop), interval)


def aside_seconds(job: Job, settings: Settings) -> float:
    """Return the time allowed for an evaluation or save that is due after the next line, as that
    line may have been lost; nothing is added for activities that the probe shows."""
    attempt, known = job.attempt, cadence(job)
    if attempt.phase is not JobPhase.TRAINING or known is None or not attempt.steps:
        return 0.0
    last = attempt.steps[-1]
    shown = _shown_by_probe(job, last)
    due = range(_unprinted(job, last, known).start, last.iteration + 2 * known.iterations)
    seconds = 0.0
    is_due = _has_evaluated(job) and has_multiple(due, job.layout.eval_interval)
    if is_due and JobPhase.EVALUATING not in shown:
        seconds += job.calibration.deadline(DeadlineSlot.EVALUATING, settings)
    if JobPhase.SAVING not in shown:
        seconds += _save_seconds(job, due, settings)
    return seconds


def _save_seconds(job: Job, due: range, settings: Settings) -> float:
    """Return the time allowed for a save that no stream prints; 0 if none is due in this range."""
    if _shows_saves(job) or not has_multiple(due, job.layout.save_interval):
        return 0.0
    return _learnt(job, JobPhase.SAVING, settings)


_ENDED_GAPS = 10.0
_ENDED_SECONDS = 30.0
"""If the silence before a kill lasted at least this many usual gaps and seconds, it was the reason
for the kill: people do not kill a run that trains, and a launcher reports a death within seconds.
"""


def stood_still_before(job: Job, at: float, settings: Settings) -> tuple[float, float] | None:
    """Return since when no iteration had finished before the end at `at`, and the allowed silence;
    None if the silence was within it. The phase is over by now, so only lines are considered."""
    attempt = job.attempt
    since, known = last_iteration_at(attempt), cadence(job)
    if since is None or known is None or not attempt.steps or attempt.save is not None:
        return None
    since = max(since, attempt.last_save_at or since)
    limit = max(_ENDED_GAPS * known.gap, _ENDED_SECONDS)
    last = attempt.steps[-1].iteration
    unprinted = range(last, last + known.iterations)
    layout, deadline = job.layout, job.calibration.deadline
    if has_multiple(unprinted, layout.eval_interval) or (
        layout.eval_interval is None and attempt.evaluations
    ):
        limit += deadline(DeadlineSlot.EVALUATING, settings)
    limit += _save_seconds(job, unprinted, settings)
    return (since, limit) if at - since >= limit else None


class Stall(NamedTuple):
    since: float  # time of the last progress
    limit: float  # allowed silence in seconds; 0 if a watchdog of the trainer ended its wait
    confidence: float
    note: str
    given_up: FaultSeen | None
    is_guess: bool
    is_unobserved: bool
    """Every probe is silent and no other source sees the processes: blind, not hung."""


def stall(job: Job, settings: Settings) -> Stall | None:
    attempt = job.attempt
    if attempt.phase in _NEVER or attempt.ended_at is not None or not job.has_started:
        return None
    since = attempt.last_progress
    if since <= 0:
        return None
    is_quiet = not attempt.faults or attempt.is_finished  # a watchdog may still report at the end
    ended = None if is_quiet else given_up(job, since)
    if ended is not None and _is_reported_dead(job, settings):
        return None  # the wrapper will report the end within seconds
    if ended is not None:
        return Stall(since, 0.0, _GIVEN_UP, "", ended, is_guess=False, is_unobserved=False)
    return _exceeded_limit(job, since, settings)


def has_stopped(job: Job, settings: Settings) -> bool:
    attempt = job.attempt
    is_over = attempt.phase is JobPhase.ENDED or attempt.ended_at is not None
    return is_over or stall(job, settings) is not None


def _exceeded_limit(job: Job, since: float, settings: Settings) -> Stall | None:
    probe = probed_ranks(job, settings)
    silent = job.now - since
    if probe.has_iterations and not is_behind_the_log(job, probe.beating, settings):
        silent = standstill(job, probe, settings)
    by_probe = settings.hang.probe_floor_seconds - settings.hang.look_seconds
    if silent < min(by_probe, settings.deadlines.training.floor_seconds):
        return None  # no limit is shorter
    allowed = patience(job, probe, settings)
    at_once = settings.hang.beat_silence_seconds
    if allowed is not None and at_once < allowed.seconds and held_seconds(job, probe) >= at_once:
        allowed = Patience(at_once, _PROBE)  # no activity can continue while every rank is stopped
    if allowed is None or silent < allowed.seconds or _is_dying(job, since, settings):
        return None
    after = probe.newest + 2 * settings.hang.look_seconds
    is_unobserved = probe.is_dark and not fresh_signs(job, max(since, after), settings, 0.0)
    return Stall(
        since, allowed.seconds, allowed.confidence, allowed.note, None,
        is_guess=allowed.confidence <= _CAREFUL, is_unobserved=is_unobserved,
    )  # fmt: skip


def _is_dying(job: Job, since: float, settings: Settings) -> bool:
    """Whether processes are still exiting after an error: a crash, unless that never ends."""
    last = max((seen.at for seen in job.attempt.errors if seen.at >= since), default=None)
    return last is not None and job.now - last < settings.hang.dying_seconds


def _is_reported_dead(job: Job, settings: Settings) -> bool:
    """Whether a launcher under a wrapper has just reported that a process died."""
    return any(
        seen.error.kind in REPORTS
        and job.has_wrapper(seen.stream)
        and job.now - seen.at < settings.hang.dying_seconds
        for seen in job.attempt.errors
    )


def fresh_signs(
    job: Job, since: float, settings: Settings, room: float | None = None
) -> list[SignSeen]:
    """Return the signs of this silence; `room`: seconds that the sources' clocks may be behind."""
    hang = settings.hang
    room = hang.beat_silence_seconds if room is None else room
    earliest = max(since - room, job.now - hang.sign_seconds)
    signs = (seen for seen in job.attempt.signs.values() if seen.at >= earliest)
    return [seen for seen in signs if seen.sign.state is not SignState.UNKNOWN]


_TIMEOUT = "collective-timeout"
_WORK_GROUP = re.compile(r"\[PG (?:ID \S+ PG GUID )?([^\]\n]{1,120}?) Rank \d+\]")
_GROUP_RANK = re.compile(r"Rank (\d{1,7})\]")
_WORK = re.compile(
    r"SeqNum=(\d{1,18}), OpType=(\w{1,40})(?:, NumelIn=(\d{1,18}), NumelOut=(\d{1,18}))?"
)
_PAIRED = re.compile(r"SEND|RECV|COALESCED|UNKNOWN")
_SAME_SIZE = re.compile(r"ALLREDUCE|ALLGATHER|REDUCE_SCATTER|BROADCAST")
"""Operations to which all ranks contribute equally many elements."""
_AGREEING = 3  # ranks that must agree before another one is named


class Mismatch(NamedTuple):
    first: FaultSeen
    other: FaultSeen
    rank: int | None  # the only rank that differs from all others, if that is proven
    text: str


class _Work(NamedTuple):
    seen: FaultSeen
    group: str
    sequence: int
    name: str
    call: tuple[str, ...]

    @property
    def rank(self) -> int | None:
        if self.seen.fault.rank is not None:
            return self.seen.fault.rank
        found = _GROUP_RANK.search(self.seen.fault.text)
        return int(found[1]) if found else None


def out_of_step(faults: Iterable[FaultSeen]) -> Mismatch | None:
    """Find ranks of one group that timed out in different collectives: a bug in the code.

    The watchdog of each rank prints the sequence number, operation and size of the collective that
    it waited in. The same number with another operation or size means that the ranks disagree about
    the next collective. Each group has its own sequence, and the line names its group only in some
    releases: without a name, all ranks must report the same number. Sends and receives are ignored,
    as they pair up by other rules.
    """
    works = [work for work in map(_work, faults) if work is not None]
    if not all(work.group for work in works) and len({work.sequence for work in works}) > 1:
        return None
    places: dict[tuple[str, int], dict[int, _Work]] = {}
    for work in works:
        if work.rank is not None:
            places.setdefault((work.group, work.sequence), {}).setdefault(work.rank, work)
    return next((found for each in places.values() if (found := _compare(each))), None)


def _work(seen: FaultSeen) -> _Work | None:
    found = _WORK.search(seen.fault.text) if seen.fault.id == _TIMEOUT else None
    if found is None or _PAIRED.search(found[2]):
        return None
    group = _WORK_GROUP.search(seen.fault.text)
    sizes = (found[3], found[4]) if found[3] and _SAME_SIZE.search(found[2]) else ()
    name = found[2] + (f" of {found[3]} elements" if found[3] else "")
    return _Work(seen, group[1] if group else "", int(found[1]), name, (found[2], *sizes))


def _compare(by_rank: dict[int, _Work]) -> Mismatch | None:
    calls = Counter(work.call for work in by_rank.values())
    if len(calls) < 2:
        return None
    common, count = calls.most_common(1)[0]
    first = next(work for work in by_rank.values() if work.call == common)
    odd = {rank: work for rank, work in by_rank.items() if work.call != common}
    rank, other = next(iter(odd.items()))
    text = (
        f"rank {first.rank} waited in {first.name} and rank {rank} in {other.name}, "
        f"both as collective {first.sequence} of their group"
    )
    is_named = len(odd) == 1 and count >= _AGREEING and other.seen.fault.rank is not None
    return Mismatch(first.seen, other.seen, rank if is_named else None, text)
