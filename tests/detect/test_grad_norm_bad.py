# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The gradient norm is not finite, or runs away."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from mwatch.detect.grad_norm_bad import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.finding import Severity
from mwatch.model.step import Step
from support.builders.job import found, job, step

NAN, INF = math.nan, math.inf


def lines(*norms: float | None, first: int = 1, **more: Any) -> list[Step]:
    return [step(n, grad_norm=norm, **more) for n, norm in enumerate(norms, first)]


def usual(count: int, seed: int = 1) -> list[Step]:
    draw = random.Random(seed)
    return lines(*(draw.lognormvariate(0.0, 0.4) for _ in range(count)))


def test_nan_is_the_end_at_once() -> None:
    (finding,) = found(DETECTOR, job(lines(0.8, 0.9, NAN)))
    assert (finding.cause, finding.severity) == (Cause.NAN, Severity.CRITICAL)
    assert finding.since_iteration == 3
    assert finding.since_time == step(3).at


def test_the_first_bad_line_is_the_beginning_of_what_it_covers() -> None:
    bad = [step(20, covers=10, grad_norm=NAN), step(30, covers=10, grad_norm=NAN)]
    (finding,) = found(DETECTOR, job([step(10, covers=10), *bad]))
    assert finding.since_iteration == 11
    assert len(finding.evidence) == 2


def test_nan_in_the_very_first_line_needs_no_history() -> None:
    (finding,) = found(DETECTOR, job(lines(NAN, loss=None)))
    assert (finding.since_iteration, finding.severity) == (1, Severity.CRITICAL)


def test_one_infinite_norm_may_heal() -> None:
    (finding,) = found(DETECTOR, job(lines(0.8, INF)))
    assert finding.severity is Severity.WARNING
    assert found(DETECTOR, job(lines(0.8, INF, 0.9))) == []


def test_infinity_that_stays_or_takes_the_loss_with_it_does_not() -> None:
    (stays,) = found(DETECTOR, job(lines(0.8, INF, INF)))
    assert (stays.severity, stays.since_iteration) == (Severity.CRITICAL, 2)
    (takes,) = found(DETECTOR, job([*lines(0.8), step(2, grad_norm=INF, loss=None)]))
    assert takes.severity is Severity.CRITICAL


def test_skipped_steps_are_the_scalers_business() -> None:
    skipped = step(2, grad_norm=NAN, covers=10, skipped=10)
    assert found(DETECTOR, job([*lines(0.8), skipped])) == []
    assert found(DETECTOR, job(lines(0.8, None))) == []


def test_no_log_no_verdict() -> None:
    assert found(DETECTOR, job(lines(0.8, NAN), sights=())) == []
    assert found(DETECTOR, job()) == []


def test_a_norm_that_runs_away_is_worth_a_look() -> None:
    (finding,) = found(DETECTOR, job([*usual(60), *lines(*[200.0] * 5, first=61)]))
    assert (finding.cause, finding.severity) == (Cause.LOSS_SPIKE, Severity.WARNING)
    assert finding.since_iteration == 61


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param([200.0] * 4, id="too few lines"),
        pytest.param([200.0] * 4 + [1.0] + [200.0] * 4, id="it came back"),
        pytest.param([20.0] * 50, id="not far enough"),
        pytest.param([20.0] * 10 + [200.0], id="only the newest is far enough"),
    ],
)
def test_near_a_runaway_is_quiet(tail: list[float]) -> None:
    assert found(DETECTOR, job([*usual(60), *lines(*tail, first=61)])) == []


def test_a_run_that_has_just_begun_has_no_usual_norm() -> None:
    assert found(DETECTOR, job([*usual(15), *lines(*[200.0] * 8, first=16)])) == []


def test_zero_for_ever_is_a_display() -> None:
    assert found(DETECTOR, job(lines(*[0.0] * 100))) == []
    assert found(DETECTOR, job(lines(*[0.0] * 100, *[3.0] * 20))) == []


def test_small_norms_do_not_run_away() -> None:
    assert found(DETECTOR, job(lines(*[0.001] * 100, *[0.9] * 10))) == []


def test_a_runaway_that_lasts_is_reported_until_it_is_the_usual() -> None:
    short = job([*usual(60), *lines(*[200.0] * 150, first=61)])
    long = job([*usual(60), *lines(*[200.0] * 500, first=61)])
    assert [finding.since_iteration for finding in found(DETECTOR, short)] == [61]
    assert found(DETECTOR, long) == []


def test_noise_and_a_falling_norm_are_quiet() -> None:
    draw = random.Random(7)
    norms = [10.0 / (1 + n / 50) * draw.lognormvariate(0.0, 0.6) for n in range(600)]
    for count in range(1, 600, 7):
        assert found(DETECTOR, job(lines(*norms[:count]))) == []
