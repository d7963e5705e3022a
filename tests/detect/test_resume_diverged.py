# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Recomputed iterations against what the earlier attempt printed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mwatch.detect.resume_diverged import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.finding import Finding, Severity
from mwatch.model.job import Attempt, Job
from mwatch.model.step import Step
from mwatch.model.timeline import Rollback
from support.builders.job import START, found, job, step


def earlier(count: int = 200, seed: int = 1, **more: Any) -> list[Step]:
    draw = random.Random(seed)
    return [
        step(n, loss=3.0 + draw.gauss(0.0, 0.05), grad_norm=1 + 0.1 * draw.random(), **more)
        for n in range(1, count + 1)
    ]


def resumed(old: list[Step], new: list[Step], **more: Any) -> Job:
    built = job(new, number=2, **more)
    built.earlier_steps = {line.iteration: line for line in old}
    built.past.append(Attempt(1, START - 1000))
    return built


def same(old: list[Step], since: int, noise: float = 0.0, **change: Any) -> list[Step]:
    """The lines after `since`, computed again with other rounding."""
    draw = random.Random(2)
    lines = []
    for line in old[since:]:
        loss = line.losses["lm loss"] * (1 + draw.gauss(0.0, noise))
        lines.append(line._replace(losses={"lm loss": loss}, at=line.at + 5000, **change))
    return lines


def diverged(old: list[Step], new: list[Step], **more: Any) -> list[Finding]:
    return found(DETECTOR, resumed(old, new, **more))


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-3, 5e-3])
def test_other_rounding_is_quiet(noise: float) -> None:
    old = earlier()
    new = same(old, 150, noise)
    for count in range(1, len(new) + 1):
        assert diverged(old, new[:count]) == []


def test_another_loss_for_two_lines_names_the_first() -> None:
    old = earlier()
    new = same(old, 150)
    jump = [line._replace(losses={"lm loss": line.losses["lm loss"] + 1.0}) for line in new[20:]]
    assert diverged(old, [*new[:20], *jump[:1]]) == []
    (finding,) = diverged(old, [*new[:20], *jump[:5]])
    assert (finding.cause, finding.severity) == (Cause.RESUME_DIVERGED, Severity.WARNING)
    assert finding.since_iteration == 171
    assert finding.since_time == step(171).at + 5000
    assert "loss" in finding.summary
    assert len(finding.evidence) == 2


def test_a_small_shift_to_one_side_shows_over_several_lines() -> None:
    old = earlier()
    new = same(old, 150)
    moved = [line._replace(losses={"lm loss": line.losses["lm loss"] + 0.2}) for line in new]
    assert diverged(old, moved[:2]) == []
    assert [finding.since_iteration for finding in diverged(old, moved[:12])] == [151]


def test_a_loss_inside_its_noise_is_quiet() -> None:
    old = earlier()
    new = [line._replace(losses={"lm loss": 3.0}) for line in same(old, 150)]
    assert diverged(old, new) == []


def test_it_is_still_reported_when_new_iterations_have_begun() -> None:
    old = earlier()
    new = same(old, 150)
    jump = [line._replace(losses={"lm loss": 5.0}) for line in new]
    fresh = [step(n, loss=3.0) for n in range(201, 260)]
    (finding,) = diverged(old, [*jump, *fresh])
    assert finding.since_iteration == 151
    assert diverged(old, [*new, *fresh]) == []
    assert diverged(old, fresh) == []


def test_what_is_better_than_before_is_a_spike_that_did_not_come_again() -> None:
    old = earlier()
    sick = [line._replace(losses={"lm loss": 6.0}, grad_norm=90.0) for line in old[160:]]
    assert diverged([*old[:160], *sick], same(old, 150)) == []


def test_iterations_that_a_rollback_undid_are_not_compared() -> None:
    old = earlier()
    built = resumed(old, same(old, 150, learning_rate=2e-4))
    built.timeline.rollbacks.append(Rollback(START + 4000, 150, 151, "nan"))
    assert found(DETECTOR, built) == []
    built.timeline.rollbacks[0] = Rollback(START + 4000, 150, 190, "nan")
    built.attempt.steps.pop()
    assert found(DETECTOR, built) == []  # the newest pairs are beyond it
    built.timeline.rollbacks[0] = Rollback(START + 4000, 150, None, "a person's wish")
    assert len(found(DETECTOR, built)) == 1


def test_the_learning_rate_must_agree_at_once() -> None:
    old = earlier()
    (finding,) = diverged(old, same(old, 150, learning_rate=2e-4)[:1])
    assert finding.since_iteration == 151
    assert "learning rate" in finding.summary
    assert "optimizer" in finding.summary


def test_the_first_line_that_differs_is_named() -> None:
    old = earlier()
    new = same(old, 150)
    other = [line._replace(learning_rate=2e-4) for line in new[10:]]
    (finding,) = diverged(old, [*new[:10], *other])
    assert finding.since_iteration == 161


def test_four_digits_of_a_rate_are_enough() -> None:
    old = earlier()
    assert diverged(old, same(old, 150, learning_rate=1.0004e-4)) == []
    assert diverged(old, same(old, 150, learning_rate=None)) == []


def test_skipped_steps_shift_the_rate() -> None:
    old = earlier()
    assert diverged(old, same(old, 150, learning_rate=0.9e-4), skipped=3) == []
    scaled = earlier(loss_scale=65536.0)
    assert diverged(scaled, same(scaled, 150, learning_rate=0.9e-4)) == []


def test_the_data_position_must_agree() -> None:
    old = earlier()
    moved = [
        line._replace(consumed_samples=(line.consumed_samples or 0) + 32) for line in same(old, 150)
    ]
    (finding,) = diverged(old, moved)
    assert finding.since_iteration == 151
    assert "data position" in finding.summary


def test_another_batch_size_is_not_compared() -> None:
    old = earlier()
    new = same(old, 150, batch_size=64, consumed_samples=0)
    assert diverged(old, new) == []


def test_lines_that_cover_other_iterations_are_not_compared() -> None:
    old = [step(10 * n, covers=10, loss=3.0 + 0.01 * (n % 3)) for n in range(1, 20)]
    first = step(150, covers=6, loss=9.0, learning_rate=1.0)  # the first line after a resume
    assert diverged(old, [first]) == []
    alike = [step(10 * n, covers=10, loss=9.0) for n in (16, 17)]
    (finding,) = diverged(old, [first, *alike])
    assert finding.since_iteration == 151


def test_the_gradient_norm_shows_too() -> None:
    old = earlier()
    new = same(old, 150, grad_norm=40.0)
    (finding,) = diverged(old, new)
    assert "gradient norm" in finding.summary
    assert diverged(old, same(old, 150, grad_norm=1.9)) == []
    assert diverged(old, same(old, 150, grad_norm=None)) == []


def test_one_earlier_line_shows_no_noise() -> None:
    old = [step(10, loss=3.0)]
    assert diverged(old, [step(10, loss=9.0)]) == []


def test_no_log_and_no_earlier_attempt_mean_no_verdict() -> None:
    old = earlier()
    new = same(old, 150, learning_rate=2e-4)
    assert diverged(old, new, sights=()) == []
    assert found(DETECTOR, job(new)) == []
    assert diverged(old, []) == []


def test_lines_between_the_printed_ones_have_nothing_to_be_held_against() -> None:
    old = [step(n, loss=3.0) for n in range(10, 200, 10)]
    new = [step(n, loss=9.0) for n in range(155, 240, 10)]
    assert diverged(old, new) == []


def test_a_count_that_began_at_0_again_after_a_load_is_reported() -> None:
    old = earlier(20)
    built = resumed(old, same(old, 0), load="loaded", resumed_from=None)
    built.past[0].saves_done = 2
    assert found(DETECTOR, built) == []
    built.attempt.resumed_from = 0
    (finding,) = found(DETECTOR, built)
    assert finding.since_iteration == 1
    assert "--finetune" in finding.summary
