# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A model that does not learn, and healthy runs that look like it."""

from __future__ import annotations

import random
from typing import Any

from mwatch.detect.loss_stuck import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.finding import Finding, Severity
from mwatch.model.step import Step
from support.builders.job import found, job, step, steps


def noise(count: int, level: float, sigma: float = 0.02) -> list[float]:
    draw = random.Random(11)
    return [level + draw.gauss(0.0, sigma) for _ in range(count)]


def stuck(lines: list[Step], **more: Any) -> list[Finding]:
    return found(DETECTOR, job(lines, **more))


def test_the_same_loss_to_the_last_digit_is_stuck() -> None:
    (finding,) = stuck(steps(noise(30, 3.0) + [2.5] * 20))
    assert (finding.cause, finding.severity) == (Cause.LOSS_STUCK, Severity.WARNING)
    assert finding.since_iteration == 31
    assert finding.since_time == step(31).at
    assert "20 lines" in finding.summary


def test_a_few_equal_losses_are_chance() -> None:
    assert stuck(steps(noise(30, 3.0) + [2.5] * 19)) == []


def test_few_printed_digits_agree_more_easily() -> None:
    assert stuck(steps(noise(30, 3.0) + [2.5] * 100, flavour="bridge")) == []
    assert len(stuck(steps(noise(30, 3.0) + [2.5] * 200, flavour="bridge"))) == 1


def test_late_in_training_flat_within_its_noise_is_healthy() -> None:
    assert stuck(steps(noise(2000, 1.7))) == []
    assert stuck(steps(noise(2000, 6.0), first=90_001)) == []


def test_a_loss_that_never_left_its_first_value_is_stuck() -> None:
    (finding,) = stuck(steps(noise(250, 10.8)))
    assert finding.since_iteration == 1
    assert "first value" in finding.summary


def test_a_loss_that_falls_is_not() -> None:
    falling = [10.8 - 0.004 * n for n in range(250)]
    assert stuck(steps(falling)) == []
    assert stuck(steps(noise(199, 10.8))) == []
    lucky = [9.0, *noise(198, 10.0), 10.5]  # the newest line lies, the others have fallen
    assert stuck(steps([10.8] * 3 + [10.7, 10.6] + lucky[1:] + [10.6])) == []


def test_a_model_that_had_learnt_may_stay_where_it_was() -> None:
    assert stuck(steps(noise(250, 6.0)), load="loaded") == []
    assert stuck(steps(noise(250, 6.0), first=1001)) == []
    assert stuck([step(1, loss=None), *steps(noise(250, 6.0), first=2)]) == []


def test_a_learning_rate_of_zero_teaches_nothing() -> None:
    lines = steps(noise(30, 3.0)) + steps(noise(20, 3.0), first=31, learning_rate=0.0)
    (finding,) = stuck(lines)
    assert finding.since_iteration == 31
    assert "learning rate" in finding.summary
    assert stuck(lines[:-1]) == []


def test_a_rate_of_zero_while_steps_are_skipped_is_the_scalers() -> None:
    warm = [step(n, loss=10.4, covers=2, skipped=1, learning_rate=0.0) for n in range(2, 60, 2)]
    moving = [line._replace(losses={"lm loss": 10.4 - n / 1e3}) for n, line in enumerate(warm)]
    assert stuck(moving) == []


def test_composer_prints_small_rates_as_zero() -> None:
    assert stuck(steps(noise(50, 3.0), learning_rate=0.0, flavour="composer")) == []


def test_no_log_no_verdict() -> None:
    assert found(DETECTOR, job(steps([2.5] * 40), sights=())) == []
    assert stuck([]) == []


def test_a_newest_line_without_a_loss_says_nothing() -> None:
    assert stuck([*steps([2.5] * 40), step(41, loss=None, skipped=1)]) == []
