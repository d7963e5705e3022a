# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The loss jumps up and stays; a loss that recovers, or was always high, is not a spike."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from mwatch.detect.loss_spike import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.finding import Finding, Severity
from mwatch.model.job import Job
from mwatch.model.step import Step
from support.builders.job import found, job, step, steps


def flat(count: int, level: float = 2.0, sigma: float = 0.03, seed: int = 3) -> list[float]:
    draw = random.Random(seed)
    return [level + draw.gauss(0.0, sigma) for _ in range(count)]


def falling(count: int, seed: int = 5) -> list[float]:
    draw = random.Random(seed)
    return [2.0 + 8.5 / (1 + n / 40) + draw.gauss(0.0, 0.05) for n in range(count)]


def spike(losses: Sequence[float | None]) -> list[Finding]:
    return found(DETECTOR, job(steps(losses)))


def first_seen(losses: Sequence[float]) -> int | None:
    """The line after which it is told, line by line."""
    lines = steps(losses)
    built = job(lines[:1])
    for count, line in enumerate(lines[1:], 2):
        built.attempt.steps.append(line)
        if found(DETECTOR, built):
            return count
    return None


def test_a_jump_that_stays_is_reported_after_some_lines() -> None:
    losses = flat(100) + flat(30, 3.5)
    assert first_seen(losses) == 120
    (finding,) = spike(losses)
    assert (finding.cause, finding.severity) == (Cause.LOSS_SPIKE, Severity.CRITICAL)
    assert finding.since_iteration == 101
    assert finding.since_time == step(101).at


def test_the_beginning_is_what_its_first_line_covers() -> None:
    lines = [step(10 * n, covers=10, loss=loss) for n, loss in enumerate(flat(100), 1)]
    lines += [step(10 * n, covers=10, loss=4.0) for n in range(101, 125)]
    (finding,) = found(DETECTOR, job(lines))
    assert finding.since_iteration == 1001


def test_a_short_spike_heals() -> None:
    assert spike(flat(100) + flat(19, 3.5)) == []
    assert spike(flat(100) + flat(25, 3.5) + flat(3)) == []


def test_a_spike_on_its_way_back_is_left_alone() -> None:
    back = [2.0 + 6.0 * 0.93**n for n in range(25)]
    assert spike(flat(100) + back) == []


def test_a_slow_rise_is_a_spike_when_it_is_high_enough() -> None:
    rise = [2.0 + 0.05 * n for n in range(80)]
    (finding,) = spike(flat(100) + rise)
    assert 101 <= (finding.since_iteration or 0) <= 150


def test_a_spike_out_of_a_fast_fall_is_seen() -> None:
    fall = [4.0 + 5.5 * 0.97**n for n in range(75)]
    assert first_seen(fall + flat(40, 7.5)) == 95


@pytest.mark.parametrize("after", range(21, 40))
def test_an_early_spike_is_reported_whenever_somebody_looks(after: int) -> None:
    """A fast job prints several lines between two looks."""
    begin = [4.0 + 6.5 * 0.97**n for n in range(88)]
    high = [7.2 * 0.997**n for n in range(after)]
    assert len(spike(begin + high)) == 1


def test_higher_by_less_than_the_ratio_is_quiet() -> None:
    assert spike(flat(100) + flat(50, 2.5)) == []


def test_higher_by_less_than_the_noise_is_quiet() -> None:
    assert spike(flat(100, sigma=0.4) + flat(50, 3.0, sigma=0.4)) == []


def test_no_log_no_verdict() -> None:
    built = job(steps(flat(100) + flat(30, 3.5)), sights=())
    assert found(DETECTOR, built) == []
    assert found(DETECTOR, job()) == []


def test_too_short_a_history_has_no_usual_loss() -> None:
    assert spike(flat(20) + flat(30, 3.5)) == []


@pytest.mark.parametrize("seed", range(8))
def test_warm_up_and_noise_are_never_a_spike(seed: int) -> None:
    assert first_seen(falling(500, seed)) is None
    assert first_seen(flat(500, sigma=0.3, seed=seed)) is None


def test_lines_without_a_loss_neither_count_nor_break_it() -> None:
    lines = steps([*flat(100), *flat(10, 3.5)])
    lines += [step(n, loss=None, skipped=1) for n in range(111, 116)]
    built = job([*lines, *steps(flat(12, 3.5), first=116)])
    assert [finding.since_iteration for finding in found(DETECTOR, built)] == [101]
    built.attempt.steps.append(step(128, loss=None, skipped=1))
    assert found(DETECTOR, built) == []


def test_a_spike_that_has_become_usual_is_no_longer_reported() -> None:
    assert len(spike(flat(100) + flat(250, 3.5))) == 1
    assert spike(flat(100) + flat(450, 3.5)) == []


def resumed(earlier: list[float], lines: list[Step]) -> Job:
    built = job(lines, number=2)
    built.earlier_steps = {line.iteration: line for line in steps(earlier)}
    return built


def with_norms(losses: Sequence[float], norms: Sequence[float]) -> list[Step]:
    """The norms are those of a measurement: each a little different."""
    draw = random.Random(4)
    pairs = enumerate(zip(losses, norms, strict=True), 1)
    return [
        step(n, loss=loss, grad_norm=norm * draw.uniform(0.9, 1.1)) for n, (loss, norm) in pairs
    ]


def severity(lines: list[Step]) -> Severity | None:
    findings = found(DETECTOR, job(lines))
    return findings[0].severity if findings else None


@pytest.mark.parametrize("height", [1.9, 3.5, 7.0])
@pytest.mark.parametrize("before", [20, 100])
def test_a_jump_without_a_change_of_the_norm_may_be_the_data(height: float, before: int) -> None:
    higher = [height - 0.002 * n for n in range(60)]
    losses = flat(before, 1.0) + higher
    lines = with_norms(losses, [0.8] * len(losses))
    for count in range(before + 1, len(lines) + 1):
        assert severity(lines[:count]) in (None, Severity.WARNING)


@pytest.mark.parametrize(
    ("losses", "norms"),
    [
        pytest.param([3.5] * 40, [2.4] * 40, id="the norm rises"),
        pytest.param([3.5] * 40, [8.0] * 2 + [0.8] * 38, id="the norm jumps"),
        pytest.param([3.5] * 40, [0.1] * 40, id="the norm vanishes"),
        pytest.param([3.0 + 0.025 * n for n in range(40)], [0.8] * 40, id="it goes on rising"),
    ],
)
def test_a_jump_that_data_do_not_explain_is_a_spike(
    losses: list[float], norms: list[float]
) -> None:
    assert severity(with_norms(flat(100) + losses, [0.8] * 100 + norms)) is Severity.CRITICAL


def test_a_jump_beside_a_norm_that_is_clipped_or_not_printed_is_a_spike() -> None:
    draw = random.Random(2)
    clipped = [min(1.0, draw.uniform(0.9, 1.6)) for _ in range(130)]
    for norms in (clipped, [None] * 130):
        both = zip(flat(100) + flat(30, 3.5), norms, strict=True)
        lines = [step(n, loss=loss, grad_norm=norm) for n, (loss, norm) in enumerate(both, 1)]
        assert severity(lines) is Severity.CRITICAL


def test_an_objective_that_begins_at_zero_may_grow() -> None:
    begin = [0.0, *[0.0001] * 40]
    assert spike(begin + [0.002] * 40 + [0.01] * 40) == []
    (finding,) = spike(begin + [0.2] * 40)
    assert finding.severity is Severity.WARNING
    (finding,) = spike([-0.1, 0.1] * 30 + [0.9] * 40)
    assert finding.severity is Severity.WARNING
    (finding,) = spike(begin + [1.5] * 40)
    assert finding.severity is Severity.CRITICAL


def test_a_small_rise_of_a_small_loss_is_a_warning() -> None:
    (finding,) = spike(flat(100, 0.1, 0.001) + flat(30, 0.2, 0.001))
    assert finding.severity is Severity.WARNING
    (finding,) = spike(flat(100, 0.4, 0.01) + flat(30, 1.2, 0.01))
    assert finding.severity is Severity.CRITICAL


def test_another_loss_that_becomes_nan_does_not_look_like_a_jump() -> None:
    lines = [
        step(n, losses={"kd_loss": 0.3 if n <= 100 else math.nan, "ce_loss": 2.5}, flavour="other")
        for n in range(1, 141)
    ]
    assert found(DETECTOR, job(lines)) == []


def test_a_resume_at_the_old_loss_is_quiet() -> None:
    assert found(DETECTOR, resumed(falling(300), steps(flat(40, 3.2), first=250))) == []


def test_a_rollback_is_held_against_what_came_before_its_point() -> None:
    earlier = [3.0] * 100 + [2.0] * 100
    assert found(DETECTOR, resumed(earlier, steps(flat(40, 3.0), first=90))) == []


def test_a_spike_from_the_first_line_of_an_attempt_on_is_a_warning() -> None:
    (finding,) = found(DETECTOR, resumed(flat(100), steps(flat(25, 4.0), first=101)))
    assert (finding.severity, finding.since_iteration) == (Severity.WARNING, 101)


def test_a_young_attempt_learns_from_the_one_before() -> None:
    lines = steps(flat(10) + flat(25, 4.0), first=101)
    (finding,) = found(DETECTOR, resumed(flat(100), lines))
    assert (finding.severity, finding.since_iteration) == (Severity.CRITICAL, 111)


def test_a_loss_that_is_not_above_zero_has_no_ratio() -> None:
    assert spike([-1.0] * 100 + [0.0] * 30) == []


def ten_at_a_time(losses: Sequence[float]) -> list[Finding]:
    lines = [step(10 * n, covers=10, loss=loss) for n, loss in enumerate(losses, 1)]
    return found(DETECTOR, job(lines))


@pytest.mark.parametrize(
    "losses",
    [
        [2.8, 2.81, 2.79, 2.8, 2.82, 3.9, 6.1, 7.4, 8.2, 8.7],
        [3.012, 3.010, 3.013, 3.009, 3.011, 4.22, 7.81, 8.10, 7.99, 8.02],
        [3.5, 3.2, 2.3, 1.8, 1.26, 1.18, 1.05, 0.98, 0.94, 0.91, 0.90, 3187.0, 28650.0, 30411.0],
    ],
)
def test_a_great_jump_needs_little_history(losses: list[float]) -> None:
    (finding,) = ten_at_a_time(losses)
    assert (finding.cause, finding.severity) == (Cause.LOSS_SPIKE, Severity.CRITICAL)


def test_a_great_jump_of_few_iterations_is_a_warning() -> None:
    (finding,) = spike([*flat(10, 1.7), *flat(7, 11.5)])
    assert finding.severity is Severity.WARNING
    assert finding.since_iteration == 11


@pytest.mark.parametrize(
    "losses",
    [
        [10.9, 10.2, 9.6, 9.1, 8.8, 8.5, 8.1, 7.9],  # warm-up
        [2.8, 2.81, 2.79, 2.8, 6.5, 5.9, 4.1, 3.2],  # on its way back
        [2.8, 2.81, 2.79, 2.8, 3.6, 3.7, 3.6, 3.7, 3.6],  # another data set
        [0.4, 1.9, 0.5, 1.7, 0.4, 2.1, 1.9, 2.2, 2.0],  # noise of small batches
        [0.002, 0.001, 0.002, 0.001, 0.02, 0.03, 0.02],  # an objective near zero
        [2.8, 7.0, 7.1, 7.2, 7.3],  # no history at all
        [2.8, 2.81, 2.79, 2.8, 2.8, 8.0, 8.1],  # too short
    ],
)
def test_what_is_usual_at_the_beginning_of_a_run_is_not_a_spike(losses: list[float]) -> None:
    assert ten_at_a_time(losses) == []


@pytest.mark.parametrize("losses", [[2.32, 2.34, 4.9, 6.8, 7.4], [2.3, 11.1, 11.0, 11.0, 11.0]])
def test_a_great_jump_with_next_to_no_history_is_a_warning(losses: list[float]) -> None:
    (finding,) = ten_at_a_time(losses)
    assert (finding.cause, finding.severity) == (Cause.LOSS_SPIKE, Severity.WARNING)


def test_a_great_jump_from_the_first_line_after_a_resume_is_a_warning() -> None:
    built = resumed([2.71, 2.70, 2.71], steps([9.9, 9.2, 8.7, 8.4], first=4))
    (finding,) = found(DETECTOR, built)
    assert (finding.cause, finding.severity) == (Cause.LOSS_SPIKE, Severity.WARNING)
    assert found(DETECTOR, resumed([2.71, 2.70, 2.71], steps([2.9, 2.8, 2.7], first=4))) == []


def test_a_jump_from_the_first_line_after_a_load_is_a_bad_resume() -> None:
    built = resumed(flat(100), steps(flat(25, 4.0), first=101))
    built.attempt.load = "loaded"
    (finding,) = found(DETECTOR, built)
    assert (finding.cause, finding.severity) == (Cause.RESUME_DIVERGED, Severity.WARNING)
    built = resumed(flat(100), steps(flat(10) + flat(25, 4.0), first=101))
    built.attempt.load = "loaded"
    (later,) = found(DETECTOR, built)
    assert later.cause is Cause.LOSS_SPIKE


def test_a_loss_that_rises_with_every_line_is_a_warning() -> None:
    falls, rises = [7.9, 6.9, 6.1, 5.7, 5.6], [5.7, 6.5, 8.0, 9.7, 10.4]
    (finding,) = spike(falls + rises)
    assert (finding.severity, finding.since_iteration) == (Severity.WARNING, 6)
    assert spike([*falls, 5.7, 6.5, 8.0, 7.9, 10.4]) == []  # not with every line
    assert spike([*falls, 5.7, 5.8, 5.9, 6.0, 6.1]) == []  # not far
    assert spike([11.0, *falls, *rises]) == []  # it began higher
