# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""While training, the probe sees a hang within max(5 s, 3 x p99 step)."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.detect.stalled import DETECTOR
from mwatch.model.job import Job, Layout
from mwatch.model.observation import SignSource, SignState, Source
from mwatch.model.phase import JobPhase
from support.builders.job import START, add_sign, found, job, rank, steps


def training(step_seconds: float = 1.0, count: int = 30, **more: Any) -> Job:
    """Eight ranks that have just finished the iteration of the last line."""
    lines = [
        line._replace(at=START + 100 + i * step_seconds, seconds=step_seconds)
        for i, line in enumerate(steps([2.0] * count))
    ]
    built = job(lines, sights=[Source.LOG, Source.PROBE], **more)
    built.attempt.ranks = {i: rank(i, count, at=built.now) for i in range(8)}
    return built


def tick(built: Job, seconds: float) -> None:
    """Time passes: all probes write, and nobody gets further."""
    built.now += seconds
    for each in built.attempt.ranks.values():
        each.at = built.now


@pytest.mark.parametrize("step_seconds", [0.2, 1.0, 1.6, 4.0, 30.0])
def test_a_hang_is_seen_within_the_bound_at_one_look_a_second(step_seconds: float) -> None:
    built = training(step_seconds)
    last = built.now
    bound = max(5.0, 3 * step_seconds)
    built.now += 0.5
    while not found(DETECTOR, built):
        tick(built, 1.0)
        assert built.now - last <= bound
    assert built.now - last > 2 * step_seconds, "a step that takes twice as long is no hang"


def test_a_rank_that_was_stopped_does_not_delay_the_verdict() -> None:
    built = training()
    stopped = built.attempt.ranks.pop(0)
    stopped.phase = "evaluating"
    tick(built, 4.5)
    built.attempt.ranks = {0: stopped} | built.attempt.ranks
    assert len(found(DETECTOR, built)) == 1


@pytest.mark.parametrize("skew", [-4.0, 4.0])
def test_clocks_that_differ_do_not_delay_the_verdict(skew: float) -> None:
    built = training(phase_since=START)
    tick(built, 4.0)
    for i in range(4):
        built.attempt.ranks[i].at += skew
        built.attempt.ranks[i].progressed_at += skew
    built.attempt.progress_at += max(skew, 0.0)
    assert len(found(DETECTOR, built)) == 1


def test_after_a_save_time_counts_by_the_clock_that_showed_its_end() -> None:
    built = training()
    tick(built, 60.0)
    built.attempt.phase_since = built.attempt.progress_at = built.now - 4.0
    for i in range(4):
        built.attempt.ranks[i].at -= 3.0
        built.attempt.ranks[i].progressed_at -= 3.0
    assert found(DETECTOR, built) == [], "by rank 0's clock the save ended a second ago"


def test_names_the_last_progress_and_the_iteration_after_it() -> None:
    built = training()
    last = built.now
    tick(built, 20.0)
    (finding,) = found(DETECTOR, built)
    assert finding.since_time == last
    assert finding.since_iteration == 31
    assert finding.evidence[0].line == 30


def test_one_rank_that_still_gets_further_is_progress() -> None:
    built = training()
    tick(built, 20.0)
    built.attempt.ranks[5].progressed_at = built.now - 2
    assert found(DETECTOR, built) == []


def test_where_nothing_was_learnt_the_lines_themselves_show() -> None:
    """Of a warm-down, in which every step is skipped, calibration learns nothing."""
    built = training(4.0)
    built.calibration.steps.clear()
    tick(built, 10.0)
    assert found(DETECTOR, built) == []
    tick(built, 3.0)
    assert len(found(DETECTOR, built)) == 1


def test_before_there_is_step_data_the_default_counts() -> None:
    built = training()
    built.attempt.steps.clear()
    built.calibration.steps.clear()
    built.attempt.first_iteration = built.attempt.iteration  # nor has the probe counted any
    tick(built, 600.0)
    assert found(DETECTOR, built) == []
    tick(built, 1201.0)
    assert len(found(DETECTOR, built)) == 1


@pytest.mark.parametrize("phase", ["saving", "evaluating", "async-finalize"])
def test_ranks_that_save_or_evaluate_get_the_deadline_of_that(phase: str) -> None:
    built = training()
    for each in built.attempt.ranks.values():
        each.phase = phase
    tick(built, 900.0)
    assert found(DETECTOR, built) == []
    tick(built, 3600.0)
    assert len(found(DETECTOR, built)) == 1


def test_a_poll_that_comes_late_is_no_hang() -> None:
    built = training()
    built.now += 4.9
    assert found(DETECTOR, built) == []


def test_a_counter_that_does_not_count_is_not_believed() -> None:
    """Lines tell of iterations that no beat knows: the lines count."""
    built = training()
    for each in built.attempt.ranks.values():
        each.iteration = 0
        each.progressed_at = START
    lines = list(built.attempt.steps)
    built.attempt.steps.clear()
    built.attempt.steps.extend(
        line._replace(at=START + 30 * line.iteration, seconds=30.0) for line in lines
    )
    built.attempt.progress_at = built.attempt.line_at = built.now = built.attempt.steps[-1].at
    built.attempt.phase_since = START
    built.calibration.steps.clear()
    built.calibration.steps.append(1.0)
    tick(built, 40.0)
    assert found(DETECTOR, built) == []


def test_beats_that_show_no_iteration_leave_it_to_the_log() -> None:
    built = training(10.0)
    for each in built.attempt.ranks.values():
        each.iteration = None
    built.calibration.steps.extend([0.1] * 500)
    tick(built, 15.0)
    assert found(DETECTOR, built) == []
    tick(built, 10.0)
    assert len(found(DETECTOR, built)) == 1


def test_a_batch_that_has_just_grown_gets_more_time() -> None:
    built = training(10.0)
    last = built.attempt.steps[-1]
    grown = last._replace(iteration=31, seconds=20.0, batch_size=64, at=last.at + 20)
    built.attempt.steps.append(grown)
    built.now = built.attempt.progress_at = grown.at
    built.attempt.ranks = {i: rank(i, 31, at=built.now) for i in range(8)}
    tick(built, 50.0)
    assert found(DETECTOR, built) == []
    tick(built, 50.0)
    assert len(found(DETECTOR, built)) == 1


def test_more_witnesses_make_it_surer_and_contradiction_less_sure() -> None:
    built = training()
    tick(built, 20.0)
    (alone,) = found(DETECTOR, built)
    add_sign(built, SignSource.GPU_ACTIVITY, SignState.FLAT)
    (seconded,) = found(DETECTOR, built)
    add_sign(built, SignSource.CPU_TIME, SignState.MOVING)
    add_sign(built, SignSource.TENSORBOARD, SignState.MOVING)
    (disputed,) = found(DETECTOR, built)
    assert disputed.confidence < alone.confidence < seconded.confidence


def test_the_first_step_has_its_own_deadline() -> None:
    built = training(phase=JobPhase.FIRST_STEP)
    built.attempt.steps.clear()
    tick(built, 900.0)
    assert found(DETECTOR, built) == []


def counted(iterations: int, seconds: float) -> Job:
    """A job whose log shows its first line only, while the probe counts on."""
    (line,) = steps([2.0])
    line = line._replace(is_first_of_process=True)
    built = job(
        [line], sights=[Source.LOG, Source.PROBE], layout=Layout(world_size=8, log_interval=100)
    )
    built.calibration.steps.clear()
    attempt = built.attempt
    attempt.iteration = iterations
    attempt.progress_at = built.now = attempt.phase_since + seconds
    attempt.ranks = {i: rank(i, iterations, at=built.now) for i in range(8)}
    return built


def test_iterations_that_only_the_probe_counts_show_how_long_a_step_takes() -> None:
    """A log interval of 100, and quick steps: the next line never comes."""
    built = counted(40, 1.0)
    tick(built, 7.0)
    assert found(DETECTOR, built) == []
    tick(built, 2.0)
    (only,) = found(DETECTOR, built)
    assert only.is_guess and "counted so far" in only.summary
    slow = counted(40, 120.0)  # 3 s each
    tick(slow, 50.0)
    assert found(DETECTOR, slow) == []
    few = counted(5, 1.0)
    tick(few, 60.0)
    assert found(DETECTOR, few) == [], "a few iterations show nothing"


@pytest.mark.parametrize(
    ("state", "is_found"), [(SignState.STOPPED, True), (SignState.TRACED, False)]
)
def test_a_signal_that_holds_every_rank_is_a_stall_before_any_step_is_known(
    state: SignState, is_found: bool
) -> None:
    built = counted(2, 1.0)
    stopped_at = built.now
    built.now += 9.0
    for each in built.attempt.ranks.values():
        add_sign(
            built, SignSource.PROCESS, state,
            rank=each.rank, stream=each.stream, first_at=stopped_at,
        )  # fmt: skip
    assert bool(found(DETECTOR, built)) is is_found
    built.attempt.ranks[3].at = built.now + 1.0  # it writes again
    assert found(DETECTOR, built) == []
