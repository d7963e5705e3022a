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
from mwatch.model.job import Layout
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


HUGGING_FACE: dict[str, Any] = {"flavour": "other", "loss_scale": None}


@pytest.mark.parametrize("norm", [NAN, INF])
@pytest.mark.parametrize("first", [1, 31])
def test_a_scaler_that_counts_nothing_may_have_skipped_these_steps(norm: float, first: int) -> None:
    """From 2^32 to 1 it skips 33 in a row."""
    good = lines(*[0.8] * (first - 1), **HUGGING_FACE)
    bad = lines(*[norm] * 60, first=first, **HUGGING_FACE)
    for count in range(1, 34):
        (finding,) = found(DETECTOR, job([*good, *bad[:count]]))
        assert (finding.severity, finding.since_iteration) == (Severity.WARNING, first)
    (finding,) = found(DETECTOR, job([*good, *bad]))
    assert (finding.severity, finding.since_iteration) == (Severity.CRITICAL, first)


def test_one_skip_at_the_end_of_a_long_interval_is_no_proof() -> None:
    long = [
        step(n * 100, covers=100, grad_norm=NAN if n > 3 else 0.8, **HUGGING_FACE)
        for n in range(1, 7)
    ]
    severities = [found(DETECTOR, job(long[:count]))[0].severity for count in (4, 5, 6)]
    assert severities == [Severity.WARNING, Severity.WARNING, Severity.CRITICAL]


@pytest.mark.parametrize("after", [{"loss": NAN}, {"loss": None}, {"loss": 0.0}])
def test_a_loss_that_turns_bad_beside_it_is_proof_at_once(after: dict[str, Any]) -> None:
    """Hugging Face's Trainer prints 0.0 for a loss of NaN."""
    bad = [step(2, grad_norm=NAN, **HUGGING_FACE), step(3, grad_norm=NAN, **after, **HUGGING_FACE)]
    (finding,) = found(DETECTOR, job([*lines(0.8, **HUGGING_FACE), *bad]))
    assert (finding.severity, finding.since_iteration) == (Severity.CRITICAL, 2)


def test_a_loss_of_0_from_the_first_line_on_is_nan_if_steps_are_made() -> None:
    """The objective of GRPO begins at 0; the schedule of the learning rate waits for a step."""
    bad = lines(*[NAN] * 20, loss=0.0, learning_rate=0.0, **HUGGING_FACE)
    assert found(DETECTOR, job(bad))[0].severity is Severity.WARNING
    moves = [line._replace(learning_rate=line.iteration * 1e-6) for line in bad]
    assert found(DETECTOR, job(moves[:1]))[0].severity is Severity.WARNING
    assert found(DETECTOR, job(moves[:2]))[0].severity is Severity.CRITICAL


def test_an_objective_of_0_is_not_a_hidden_nan() -> None:
    good = [*lines(0.3, 0.3, loss=0.0, **HUGGING_FACE), *lines(0.3, first=3, **HUGGING_FACE)]
    bad = lines(*[NAN] * 5, first=4, loss=0.0, **HUGGING_FACE)
    assert found(DETECTOR, job([*good, *bad]))[0].severity is Severity.WARNING


@pytest.mark.parametrize(
    ("change", "layout"),
    [
        pytest.param({"flavour": "torchtitan", "loss_scale": None}, None, id="never scales"),
        pytest.param({"flavour": "deepspeed", "loss_scale": 1.0}, None, id="a scale of 1"),
        pytest.param(HUGGING_FACE, Layout(precision="bf16"), id="bf16"),
    ],
)
def test_where_nothing_is_scaled_nan_is_the_end_at_once(
    change: dict[str, Any], layout: Layout | None
) -> None:
    (finding,) = found(DETECTOR, job(lines(0.8, NAN, **change), layout=layout))
    assert finding.severity is Severity.CRITICAL


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
