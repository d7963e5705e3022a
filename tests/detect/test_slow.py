# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Steps that take longer than is usual for this job, for many lines in a row."""

from __future__ import annotations

from typing import Any

from mwatch.detect.slow import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.finding import Severity
from mwatch.model.job import Attempt, Job
from mwatch.model.step import Step
from support.builders.job import START, found, job, step


def lines(seconds: list[float], first: int = 1, **more: Any) -> list[Step]:
    return [step(first + i, seconds=each, **more) for i, each in enumerate(seconds)]


def test_names_the_first_slow_line() -> None:
    (finding,) = found(DETECTOR, job(lines([1.0] * 40 + [1.5] * 8)))
    assert finding.cause is Cause.SLOW
    assert finding.severity is Severity.WARNING
    assert finding.since_iteration == 41
    assert finding.since_time == START + 141
    assert finding.fingerprint == "slow"
    assert "1.50 times" in finding.summary


def test_a_few_slow_lines_are_not_enough() -> None:
    assert found(DETECTOR, job(lines([1.0] * 40 + [1.5] * 7))) == []


def test_steps_of_milliseconds_are_noisy() -> None:
    fast = lines([0.03] * 40 + [0.06] * 20)
    assert found(DETECTOR, job(fast)) == []


def test_slow_lines_with_a_fast_one_between_are_not_enough() -> None:
    assert found(DETECTOR, job(lines([1.0] * 40 + [1.5] * 7 + [1.0] + [1.5] * 3))) == []


def test_a_little_slower_is_not_slow() -> None:
    assert found(DETECTOR, job(lines([1.0] * 40 + [1.25] * 20))) == []


def test_a_baseline_needs_lines() -> None:
    assert found(DETECTOR, job(lines([1.0] * 10 + [1.5] * 8))) == []


def test_a_batch_that_ramps_is_not_slow() -> None:
    sizes = [16] * 30 + [32] * 10 + [64] * 10
    ramp = [step(i, seconds=size / 16, batch_size=size) for i, size in enumerate(sizes, 1)]
    assert found(DETECTOR, job(ramp)) == []


def test_slow_at_a_larger_batch_is_seen_by_the_sample() -> None:
    sizes = [16] * 30 + [32] * 10
    ramp = [step(i, seconds=size / 16, batch_size=size) for i, size in enumerate(sizes, 1)]
    tail = lines([3.0] * 8, 41, batch_size=32)
    (finding,) = found(DETECTOR, job(ramp + tail))
    assert finding.since_iteration == 41


def test_a_batch_that_shrank_is_held_against_its_own_kind() -> None:
    """Small batches cost more by the sample; that is no fault."""
    large = lines([4.0] * 40, batch_size=64)
    small = lines([2.0] * 40, 41, batch_size=16)
    assert found(DETECTOR, job(large + small)) == []


def test_first_steps_of_a_process_are_not_slow() -> None:
    slow = [step(1, seconds=30.0, is_first_of_process=True), step(2, seconds=15.0, covers=2, new=1)]
    assert found(DETECTOR, job(slow + lines([1.0] * 60, 3))) == []
    again = [each._replace(iteration=each.iteration + 60) for each in slow]
    assert found(DETECTOR, job(lines([1.0] * 60) + again)) == []


def test_a_slow_decay_does_not_drag_its_baseline_along() -> None:
    """Seen: 86.5 s to 140.3 s per iteration over one run."""
    decay = [86.5 + 53.8 * i / 1000 for i in range(1000)]
    (finding,) = found(DETECTOR, job(lines(decay)))
    assert finding.since_iteration is not None
    assert finding.since_iteration > 300


def resumed(usual: list[float], now: list[float], size: int = 32) -> Job:
    built = job(lines(now, 101))
    built.calibration.steps.clear()
    built.calibration.steps.extend(usual + now)
    built.past.append(Attempt(1, START, ended_at=START + 50))
    built.earlier_steps = {i: step(i, batch_size=size) for i in range(1, 30)}
    return built


def test_an_attempt_that_is_slow_from_its_start_is_held_against_the_one_before() -> None:
    (finding,) = found(DETECTOR, resumed([1.0] * 40, [1.6] * 12))
    assert finding.since_iteration == 101
    assert found(DETECTOR, resumed([1.0] * 40, [1.1] * 12)) == []


def test_an_earlier_attempt_of_another_batch_size_is_no_measure() -> None:
    assert found(DETECTOR, resumed([1.0] * 40, [1.6] * 12, size=16)) == []


def test_lines_without_times_or_sizes() -> None:
    bare = [step(i, seconds=None, batch_size=None) for i in range(1, 60)]
    assert found(DETECTOR, job(bare)) == []
    assert found(DETECTOR, job(bare + lines([1.0] * 5, 60))) == []
    timed = lines([1.0] * 40 + [2.0] * 8, batch_size=None)
    assert len(found(DETECTOR, job(timed))) == 1


def test_a_finished_run_is_not_slow() -> None:
    assert found(DETECTOR, job(lines([1.0] * 40 + [1.5] * 8), is_done=True)) == []


def test_without_the_log_there_is_no_verdict() -> None:
    assert found(DETECTOR, job(lines([1.0] * 40 + [1.5] * 8), sights=[])) == []


def test_a_time_that_grows_with_every_line_needs_few_of_them() -> None:
    (finding,) = found(DETECTOR, job(lines([9.0, 4.0, 5.4, 8.5, 13.7])))
    assert (finding.cause, finding.severity) == (Cause.SLOW, Severity.WARNING)
    assert finding.since_iteration == 2
    for others in ([4.0, 5.4, 5.5, 13.7], [4.0, 4.8, 5.8, 7.0], [0.04, 0.05, 0.08, 0.13]):
        assert found(DETECTOR, job(lines([9.0, *others]))) == []


def test_a_time_several_times_as_long_needs_few_lines() -> None:
    (finding,) = found(DETECTOR, job(lines([3.2, 3.2, 3.2, 4.9, 9.8, 10.7, 10.8])))
    assert (finding.cause, finding.since_iteration) == (Cause.SLOW, 5)
    assert "3.34 times" in finding.summary


def test_pauses_and_a_start_that_is_still_fast_are_no_such_jump() -> None:
    assert found(DETECTOR, job(lines([3.2] * 6 + [30.0, 30.0]))) == []
    assert found(DETECTOR, job(lines([3.2] * 6 + [30.0, 3.2, 30.0, 30.0]))) == []
    assert found(DETECTOR, job(lines([3.2, 3.2, 30.0, 30.0, 30.0]))) == []
    grown = lines([1.0] * 6, batch_size=8) + lines([4.0] * 4, 7, batch_size=16)
    assert found(DETECTOR, job(grown)) == []
