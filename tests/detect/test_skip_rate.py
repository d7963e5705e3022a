# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Too many skipped steps: with a constant scale, a limit of the norm, or a dynamic scaler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from mwatch.detect.skip_rate import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.finding import Finding, Severity
from mwatch.model.job import Job, Layout
from mwatch.model.step import Step
from support.builders.job import found, job, step
from support.runs.scaler_runs import Scaler, broken_from, lines, noisy

BF16 = Layout(precision="bf16", is_dynamic_scale=False)
DYNAMIC = Layout(precision="fp16", is_dynamic_scale=True)


def built(reported: Iterable[Step], layout: Layout = BF16, **more: Any) -> Job:
    kept = list(reported)
    return job(kept, layout=layout, skipped=sum(line.skipped for line in kept), **more)


def rate(reported: Iterable[Step], layout: Layout = BF16) -> list[Finding]:
    return found(DETECTOR, built(reported, layout))


def every(nth: int, count: int, first: int = 1, **more: Any) -> list[Step]:
    return [step(n, skipped=int(n % nth == 0), **more) for n in range(first, first + count)]


def test_every_tenth_step_is_too_many() -> None:
    (finding,) = rate([*every(10**6, 500), *every(10, 600, first=501)])
    assert (finding.cause, finding.severity) == (Cause.LOSS_SPIKE, Severity.WARNING)
    assert finding.since_iteration == 510
    assert finding.since_time == step(510).at


def test_most_steps_is_an_emergency() -> None:
    dead = [step(n, skipped=1, loss=None, grad_norm=None) for n in range(301, 421)]
    (finding,) = rate([*every(10**6, 300), *dead])
    assert (finding.severity, finding.since_iteration) == (Severity.CRITICAL, 301)


def test_the_equilibrium_of_the_scaler_is_quiet() -> None:
    assert rate(every(500, 2000), DYNAMIC) == []
    assert rate(every(40, 1000)) == []


def test_few_skips_make_no_rate() -> None:
    assert rate([step(n, skipped=1) for n in range(1, 20)]) == []


def test_skips_that_have_ended_are_forgotten() -> None:
    assert rate([*every(10, 400), *every(10**6, 30, first=401)]) == []


def test_a_few_clean_lines_are_enough_to_be_quiet() -> None:
    assert found(DETECTOR, job([step(n) for n in range(900, 903)], skipped=30)) == []


def test_no_log_no_verdict() -> None:
    assert found(DETECTOR, built(every(2, 200), sights=())) == []
    assert found(DETECTOR, job(skipped=99)) == []


def test_nan_steps_make_it_nan() -> None:
    (finding,) = rate([*every(10**6, 50), *every(2, 200, first=51, nan=1)])
    assert finding.cause is Cause.NAN


def test_a_scale_that_moves_is_a_dynamic_one() -> None:
    moving = [
        step(n, skipped=n % 2, loss_scale=2.0 ** (20 - n // 50), covers=1) for n in range(1, 400)
    ]
    assert rate(moving, Layout())[0].cause is Cause.LOSS_SCALE_COLLAPSE
    assert rate(every(2, 200, loss_scale=8.0), DYNAMIC)[0].cause is Cause.LOSS_SCALE_COLLAPSE


@pytest.mark.parametrize("interval", [1, 10, 100])
@pytest.mark.parametrize("layout", [Layout(), Layout(is_dynamic_scale=False)])
def test_a_constant_scale_skips_without_moving(interval: int, layout: Layout) -> None:
    scaler = Scaler(scale=65536.0, is_constant=True)
    allowed = broken_from(301, lambda _: 20.0)
    (finding,) = rate(lines(allowed, 600, interval=interval, scaler=scaler), layout)
    assert (finding.severity, finding.cause) == (Severity.CRITICAL, Cause.LOSS_SPIKE)
    assert finding.since_iteration == 301


def test_a_constant_scale_that_never_worked_is_seen_too() -> None:
    scaler = Scaler(scale=2.0**40, is_constant=True)
    known = Layout(is_dynamic_scale=False)
    reported = list(lines(lambda _: 20.0, 120, scaler=scaler))
    assert rate(reported[:19], known) == []
    (finding,) = rate(reported, known)
    assert (finding.since_iteration, finding.severity) == (1, Severity.CRITICAL)
    assert len(rate(reported, Layout())) == 1


@pytest.mark.parametrize("interval", [1, 5, 10, 50, 100])
@pytest.mark.parametrize("prints_first", [False, True])
def test_the_warm_down_is_left_out(interval: int, prints_first: bool) -> None:
    reported = list(lines(noisy(13, 0.3, 1), 400, interval=interval, prints_first=prints_first))
    assert sum(line.skipped for line in reported) >= 18
    quiet: Sequence[list[Finding]] = [
        rate(reported[:count], DYNAMIC) for count in range(1, len(reported) + 1)
    ]
    assert not any(quiet)


def test_a_scale_that_grows_has_ended_the_warm_down() -> None:
    scales = [2.0**9, 2.0**8, *[2.0**9] * 40]
    reported = [step(n, skipped=1, loss_scale=scale) for n, scale in enumerate(scales, 1)]
    assert len(rate(reported, DYNAMIC)) == 1
