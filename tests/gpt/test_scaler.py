# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Half precision on the CPU is real: the loss scale is found by overflows, and lost by them."""

from __future__ import annotations

from collections.abc import Callable

from gpt.launch import Job, field

Train = Callable[..., Job]


def scales(job: Job) -> list[float]:
    return [float(field(line, "loss scale") or "nan") for line in job.lines.values()]


def test_the_first_scale_is_halved_until_the_gradients_fit(train: Train) -> None:
    job = train("--train-iters 30 --fp16 --initial-loss-scale 16777216 --hysteresis 2")
    assert job.wait() == [0, 0], job.log(0)
    found = scales(job)
    assert found[0] == found[1] * 2 == 16777216, "the first overflow only spends hysteresis"
    assert found[-1] == found[-2] < 16777216
    first = job.lines[1]
    assert field(first, "grad norm") is None
    assert field(first, "lm loss") is None
    assert "number of skipped iterations:   1" in first
    assert field(job.lines[30], "grad norm") is not None


def test_it_doubles_after_a_window_without_overflow(train: Train) -> None:
    job = train("--train-iters 7 --fp16 --initial-loss-scale 256 --loss-scale-window 3")
    assert job.wait() == [0, 0]
    assert scales(job) == [256.0, 256.0, 512.0, 512.0, 512.0, 1024.0, 1024.0]


def test_a_fixed_scale_stays(train: Train) -> None:
    job = train("--train-iters 4 --fp16 --loss-scale 64")
    assert job.wait() == [0, 0]
    assert set(scales(job)) == {64.0}
