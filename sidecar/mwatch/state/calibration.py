# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Learn how long phases and steps take in this job, and store it.

Unusual lines are ignored: the first of a process, one of skipped steps, one across a change of the
batch size. So is one with skipped steps, a save or an evaluation inside, except while little is
known, or if a job has no other lines.

The file `<save>/.mwatch/calibration.json` holds a bounded number of layouts. It may be old, of
another job or damaged. Learning again costs a few minutes, but a wrong deadline can cost a healthy
run, so invalid values are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from typing import Any

from mwatch.model.calibration import MAX_SHAPES, Calibration, Sample, is_duration
from mwatch.model.job import Attempt, Job
from mwatch.model.phase import DeadlineSlot, JobPhase
from mwatch.model.step import Step
from mwatch.state.goodput.line_time import LineTimes
from mwatch.state.goodput.step_time import own_seconds, seconds_aside

STARVED = 8  # with fewer known steps, a disturbed line is better than none
_ALWAYS = 4  # lines in a row with a save inside: there are no others
_BEAT_SECONDS = 1.0
_CLOSE_SECONDS = 1.0  # faster lines add nothing: once enough are known, one in five
_EVERY = 5


def phase_ended(job: Job, slot: DeadlineSlot, seconds: float) -> None:
    """Learn from a phase of `job.attempt` that ended as usual; 0 s: its length is unknown."""
    if seconds > 0:
        job.calibration.learn(slot, seconds)


def step_reported(job: Job, step: Step) -> None:
    """Learn from the newest line of `job.attempt.steps`."""
    calibration, attempt = job.calibration, job.attempt
    before = attempt.steps[-2] if len(attempt.steps) > 1 else None
    is_disturbed = _is_disturbed(job)
    calibration.disturbed = calibration.disturbed + 1 if is_disturbed else 0
    interval = job.layout.log_interval
    if interval != calibration.log_interval and interval is not None and interval > 0:
        calibration.space_lines(interval)
    if step.batch_size != calibration.batch_size and step.batch_size:
        calibration.resize_batch(step.batch_size)
    if before is None or not _is_usual(step, before):
        return
    gap = step.at - before.at
    if gap < _CLOSE_SECONDS and step.line % _EVERY and calibration.steps.is_full:
        return
    is_poor = step.skipped >= step.new or 0 < calibration.disturbed < _ALWAYS
    if is_poor and len(calibration.steps) >= STARVED:
        return
    is_second = len(attempt.steps) == 2
    aside = _aside(job, before, step) if is_second or is_disturbed else 0.0
    seconds = own_seconds(step, before, is_second=is_second, aside=aside)
    if seconds is not None and is_disturbed and aside > 0:
        # Some trainers print a time that includes their saves.
        seconds = min(seconds, max(gap - aside, 0.0) / step.new)
    if seconds is None and not is_disturbed:
        seconds = gap / step.new
    if seconds is None or seconds <= 0:
        return
    calibration.learn_step(seconds, step.new)
    all_of_it = seconds * step.new
    calibration.learn(DeadlineSlot.TRAINING, all_of_it if is_disturbed else max(gap, all_of_it))


def lines_reported(
    known: Calibration, lines: LineTimes, begin: int, end: int, *, is_alike: bool = False
) -> None:
    """Learn from some of the lines as `step_reported` does from each. `is_alike`: see
    `Calibration.learn_steps`."""
    if begin == end:
        return
    seconds, new = lines.seconds[begin:end], lines.new[begin:end]
    gaps, printed = lines.gaps[begin:end], lines.printed[begin:end]
    if known.steps.is_full and min(gaps) < _CLOSE_SECONDS:
        numbered = zip(gaps, lines.numbers[begin:end], strict=True)
        chosen = [gap >= _CLOSE_SECONDS or not number % _EVERY for gap, number in numbered]
        seconds, new = list(compress(seconds, chosen)), list(compress(new, chosen))
        gaps, printed = list(compress(gaps, chosen)), list(compress(printed, chosen))
    known.learn_steps(seconds, new, is_alike=is_alike)
    known.learn_longer(DeadlineSlot.TRAINING, gaps, printed)


def _aside(job: Job, before: Step, step: Step) -> float:
    """Return the known seconds of saves and evaluations between two lines. The probe shows the end
    of one up to a second late, after the next line."""
    attempt = job.attempt
    seconds = seconds_aside(job.ledger, before)
    if attempt.phase in (JobPhase.SAVING, JobPhase.EVALUATING):
        seconds += max(0.0, step.at - max(attempt.phase_since, before.at))
    return seconds


def _is_disturbed(job: Job) -> bool:
    """Whether a save or an evaluation has begun or ended since the last line."""
    seen = happened(job.attempt)
    before, job.calibration.seen = job.calibration.seen, seen
    return bool(before) and before != seen


def happened(attempt: Attempt) -> tuple[object, ...]:
    """Return a value that changes whenever anything other than a step happens."""
    began = attempt.save.began_at if attempt.save is not None else None
    counts = (attempt.evaluations, attempt.saves_done, attempt.aside_count)
    return (attempt.number, *counts, began)


def _is_usual(step: Step, before: Step) -> bool:
    is_same = step.batch_size == before.batch_size
    return is_same and not step.is_first_of_process and step.new > 0


def iteration_rose(job: Job, seconds: float) -> None:
    """Learn from an iteration that the probe shows, `seconds` after that rank's last one.

    Call it before `progress_at` is moved. The probe samples once a second, so up to one interval
    of it is not part of the step.
    """
    attempt = job.attempt
    is_a_step = attempt.phase is JobPhase.TRAINING and attempt.progress_at > attempt.phase_since
    if is_a_step and seconds > _BEAT_SECONDS:
        job.calibration.rises.append(seconds - _BEAT_SECONDS)


def attempt_progressed(job: Job) -> None:
    """Learn the repeated work of a restart, when `job.attempt` passes the furthest iteration.

    A restart after an orderly exit with a last save repeats nothing, and is not a measure of the
    cost of a restart after a fault.
    """
    attempt = job.attempt
    step = job.calibration.usual_step()
    if attempt.best_before is None or attempt.first_iteration is None or step is None:
        return
    if job.past and job.past[-1].exit is not None:
        return
    again = attempt.best_before - attempt.first_iteration + 1
    if again >= 0:
        job.calibration.recomputed.append(again * step)


VERSION = 1
_MAX_KEY = 200
_MAX_COUNT = 10**9
_SAMPLES = ("steps", "rises", "recomputed", "recent")


def to_json(calibration: Calibration) -> dict[str, Any]:
    """All known layouts, the current one last."""
    shapes = [*calibration.others.values(), calibration]
    return {"version": VERSION, "layouts": [_layout(each) for each in shapes if each.key]}


def _layout(calibration: Calibration) -> dict[str, Any]:
    durations = calibration.durations.items()
    return {
        "key": calibration.key,
        "batch_size": calibration.batch_size,
        "log_interval": calibration.log_interval,
        "best_step": calibration.best_step,
        "best_spread": calibration.best_spread,
        "durations": {slot.value: _numbers(seen) for slot, seen in durations if seen},
        **{name: _numbers(getattr(calibration, name)) for name in _SAMPLES},
    }


def _numbers(sample: Sample) -> list[float]:
    return [float(f"{value:.6g}") for value in sample]


def from_json(document: object) -> Calibration:
    """Return the stored calibration, or a fresh one for an invalid file.

    A damaged layout is left out.
    """
    if not isinstance(document, Mapping) or document.get("version") != VERSION:
        return Calibration()
    layouts = document.get("layouts")
    if not isinstance(layouts, list):
        return Calibration()
    found: dict[str, Calibration] = {}
    for entry in layouts[-MAX_SHAPES:]:
        read = _read(entry)
        if read is not None:
            found.pop(read.key, None)
            found[read.key] = read
    if not found:
        return Calibration()
    _, newest = found.popitem()
    newest.others = found
    return newest


def _read(entry: object) -> Calibration | None:
    if not isinstance(entry, Mapping):
        return None
    key, durations = entry.get("key"), entry.get("durations")
    if not isinstance(key, str) or not 0 < len(key) <= _MAX_KEY:
        return None
    if not isinstance(durations, Mapping):
        return None
    read = Calibration(key)
    samples = [(read.durations[slot], durations.get(slot.value, [])) for slot in DeadlineSlot]
    samples += [(getattr(read, name), entry.get(name, [])) for name in _SAMPLES]
    if not all(_fill(sample, values) for sample, values in samples):
        return None
    best, spread = entry.get("best_step"), entry.get("best_spread", 0.0)
    if not (best is None or is_duration(best)) or not is_duration(spread):
        return None
    read.best_step, read.best_spread = best, spread
    read.batch_size = _count(entry.get("batch_size"))
    read.log_interval = _count(entry.get("log_interval"))
    return read


def _fill(sample: Sample, values: object) -> bool:
    if not isinstance(values, list) or not all(map(is_duration, values[-sample.maxlen :])):
        return False
    sample.extend(values[-sample.maxlen :])
    return True


def _count(value: object) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and isinstance(value, int) and 0 < value <= _MAX_COUNT else None
