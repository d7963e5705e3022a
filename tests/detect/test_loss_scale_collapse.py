# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The loss scale collapses, or only does what a healthy scaler does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from mwatch.detect import loss_missing, skip_rate
from mwatch.detect.loss_scale_collapse import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.event import Overflow
from mwatch.model.finding import Detector, Finding, Severity
from mwatch.model.job import Job, Layout
from mwatch.model.step import Step
from support.builders.job import found, job, step
from support.runs.scaler_runs import Scaler, broken_from, lines, noisy

FP16 = Layout(precision="fp16", is_dynamic_scale=True)
EVERYWHERE = pytest.mark.parametrize("interval", [1, 5, 10, 100])


def first_reported(
    reported: Iterable[Step], layout: Layout = FP16, *others: Detector, least: str = ""
) -> tuple[int, Finding] | None:
    """The iteration after whose line the first finding comes, line by line."""
    built = job([], layout=layout)
    attempt = built.attempt
    for line in reported:
        attempt.steps.append(line)
        attempt.skipped += line.skipped
        if attempt.first_iteration is None:
            attempt.first_iteration = line.first_covered
        for detector in (DETECTOR, *others):
            for finding in found(detector, built):
                if finding.severity == (least or finding.severity):
                    return line.iteration, finding
    return None


def collapsed(reported: Iterable[Step], layout: Layout = FP16, **more: Any) -> list[Finding]:
    return found(DETECTOR, job(list(reported), layout=layout, **more))


@EVERYWHERE
@pytest.mark.parametrize("prints_first", [False, True])
def test_a_run_that_diverges_is_reported_from_its_first_skip(
    interval: int, prints_first: bool
) -> None:
    allowed = broken_from(701, noisy(16, 0.2, seed=4))
    reported = lines(allowed, 1500, interval=interval, prints_first=prints_first)
    seen = first_reported(reported, least="critical")
    assert seen is not None
    iteration, finding = seen
    assert finding.cause is Cause.LOSS_SCALE_COLLAPSE
    assert finding.since_iteration == 701
    assert iteration <= 700 + max(20, interval)


@EVERYWHERE
def test_a_warm_down_that_never_settles_is_a_collapse(interval: int) -> None:
    seen = first_reported(lines(lambda _: -50.0, 400, interval=interval))
    assert seen is not None
    iteration, finding = seen
    assert (finding.severity, finding.since_iteration) == (Severity.CRITICAL, 1)
    assert 34 < iteration <= max(50, interval)


@EVERYWHERE
def test_another_minimum_is_recognised(interval: int) -> None:
    scaler = Scaler(scale=2.0**12, minimum=1024.0)
    reported = lines(broken_from(301, lambda _: 13.0), 900, interval=interval, scaler=scaler)
    seen = first_reported(reported, least="critical")
    assert seen is not None
    assert seen[1].since_iteration == 301


def test_a_resume_of_a_collapsed_run_is_reported_at_once() -> None:
    scaler = Scaler(scale=1.0, left=0)
    seen = first_reported(lines(lambda _: -9.0, 10, first=501, scaler=scaler))
    assert seen is not None
    assert (seen[0], seen[1].since_iteration) == (502, 501)


def test_a_few_halvings_in_a_row_are_a_warning_first() -> None:
    allowed = broken_from(301, lambda _: 15.5)
    reported = list(lines(allowed, 310, scaler=Scaler(scale=2.0**15)))
    seen = first_reported(reported)
    assert seen is not None
    assert (seen[1].severity, seen[1].since_iteration) == (Severity.WARNING, 301)


def test_a_short_slide_that_stops_is_closed() -> None:
    deep = {n: 9.5 for n in range(301, 320)}
    reported = list(lines(lambda n: deep.get(n, 15.5), 400, scaler=Scaler(scale=2.0**15)))
    assert collapsed(reported) == []


@EVERYWHERE
@pytest.mark.parametrize("exponent", [10, 15, 17, 20])
def test_the_warm_down_is_normal(interval: int, exponent: int) -> None:
    for first in (1, 501):  # a resume with --no-load-optim begins at 2^32 again
        reported = lines(noisy(exponent, 0.3, 1), 300, interval=interval, first=first)
        assert first_reported(reported) is None


@pytest.mark.parametrize("interval", [1, 10, 100, 1000])
@pytest.mark.parametrize("seed", range(6))
def test_healthy_equilibria_never_fire(interval: int, seed: int) -> None:
    """A sample; thousands of such runs were swept when the rules were made."""
    sigma = (0.05, 0.2, 0.5, 1.0, 1.5, 0.3)[seed]
    allowed = noisy(9 + 2.3 * seed, sigma, seed, drift=(seed % 3 - 1) * 1e-4)
    count = 1200 if interval == 1 else 6000
    reported = list(lines(allowed, count, interval=interval, prints_first=seed % 2 == 0))
    others = (skip_rate.DETECTOR, loss_missing.DETECTOR)
    assert first_reported(reported, FP16, *others) is None
    assert first_reported(reported, Layout(), *others) is None


def test_bf16_and_constant_scales_are_off() -> None:
    bf16 = [step(n, skipped=1, loss_scale=1.0) for n in range(1, 60)]
    assert collapsed(bf16, Layout(is_dynamic_scale=False)) == []
    assert collapsed(bf16, Layout()) == []
    constant = lines(lambda _: 3.0, 100, scaler=Scaler(scale=2.0**9, is_constant=True))
    assert collapsed(constant, Layout()) == []


def test_without_arguments_a_scale_that_moved_is_dynamic() -> None:
    reported = list(lines(broken_from(51, lambda _: 9.0), 90, scaler=Scaler(scale=2.0**9)))
    assert len(collapsed(reported, Layout())) == 1


def test_an_earlier_attempt_shows_that_the_scale_moves() -> None:
    built = job([step(n, skipped=1, loss_scale=1.0) for n in range(101, 110)], layout=Layout())
    assert found(DETECTOR, built) == []
    built.earlier_steps = {100: step(100, loss_scale=65536.0)}
    assert len(found(DETECTOR, built)) == 1


def test_a_fork_whose_counters_stay_zero_is_read_by_its_scale() -> None:
    calm = [step(n, loss_scale=2.0**16) for n in range(1, 60)]
    slide = [step(60 + n, loss_scale=2.0 ** (15 - n)) for n in range(9)]
    assert collapsed([*calm, *slide[:3]], Layout()) == []
    (warning,) = collapsed([*calm, *slide[:4]], Layout())
    (finding,) = collapsed([*calm, *slide], Layout())
    assert (warning.severity, finding.severity) == (Severity.WARNING, Severity.CRITICAL)


def test_one_skip_at_the_minimum_is_not_yet_a_collapse() -> None:
    scaler = Scaler(scale=2.0, left=0)
    reported = list(lines(lambda _: -9.0, 3, first=501, scaler=scaler))
    assert collapsed([step(500, loss_scale=2.0), *reported[:1]]) == []
    assert len(collapsed([step(500, loss_scale=2.0), *reported])) == 1


def test_a_step_that_counts_at_the_minimum_does_not_end_it() -> None:
    dead = [step(n, skipped=1, loss_scale=1.0) for n in range(101, 110)]
    assert len(collapsed([*dead, step(110, loss_scale=1.0)])) == 1
    assert collapsed([*dead, *(step(n, loss_scale=1.0) for n in range(110, 113))]) == []


def test_no_log_no_verdict() -> None:
    dead = [step(n, skipped=1, loss_scale=1.0) for n in range(1, 60)]
    assert collapsed(dead, sights=()) == []
    assert collapsed([]) == []
    assert collapsed([step(1, loss_scale=None, skipped=1)]) == []


def test_lines_that_are_no_longer_kept_are_no_warm_down() -> None:
    reported = [step(n, loss_scale=2.0**16) for n in range(5001, 5003)]
    reported += [step(5003 + n, skipped=1, loss_scale=2.0 ** (16 - n)) for n in range(6)]
    young: Job = job(reported, layout=FP16)
    assert found(DETECTOR, young) == []
    old = job(reported, layout=FP16, first_iteration=1)
    assert len(found(DETECTOR, old)) == 1


def test_a_first_line_that_was_lost_does_not_end_the_warm_down() -> None:
    reported = [step(2 + n, skipped=1, loss_scale=2.0 ** (31 - n)) for n in range(12)]
    assert found(DETECTOR, job(reported, layout=FP16, first_iteration=1)) == []


def overflows(*scales: float, of_steps: int = 0) -> list[Finding]:
    """By messages alone: each at this scale, halved after it."""
    bare = [step(number, loss_scale=None) for number in range(1, of_steps + 1)]
    built = job(bare)
    for number, scale in enumerate(scales):
        after = max(scale / 2, 1.0) if scale >= 1.0 else scale / 2
        message = Overflow(scale, after, None, None, None, "a.log", number + 1)
        built.attempt.overflows.append((1e9 + number, message))
    return found(DETECTOR, built)


@pytest.mark.parametrize("of_steps", [0, 50])
def test_messages_alone_show_a_scale_that_is_used_up(of_steps: int) -> None:
    (finding,) = overflows(8.0, 4.0, 2.0, 1.0, 1.0, of_steps=of_steps)
    assert (finding.cause, finding.severity) == (Cause.LOSS_SCALE_COLLAPSE, Severity.CRITICAL)
    assert [each.line for each in finding.evidence] == [1, 5]


def test_messages_of_a_warm_down_are_normal() -> None:
    assert overflows(*(2.0**exponent for exponent in range(32, 12, -1))) == []
    assert overflows(65536.0) == []


def test_messages_before_good_steps_are_over() -> None:
    built = job([step(number, loss_scale=None) for number in range(1, 51)])
    for number in range(3):
        message = Overflow(1.0, 1.0, None, None, None, "a.log", number + 1)
        built.attempt.overflows.append((step(2).at, message))
    assert found(DETECTOR, built) == []
