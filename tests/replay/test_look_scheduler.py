# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which lines are worth a look; none that a detector could judge otherwise is passed over."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from mwatch.model.event import Event, Fault, Iteration
from mwatch.replay.look_scheduler import EvaluationThrottle
from mwatch.replay.timestamps import UsualGaps
from support.builders.events import events, log, megatron_line, one
from support.builders.job import fault, placed_lines

RATE = "elapsed time per iteration (ms)"


def line(iteration: int, *, loss: str = "2.000000E+00", **change: str | None) -> Iteration:
    values = {key.replace("_", " "): value for key, value in change.items()}
    losses = f" lm loss: {loss} |" if loss else ""
    text = megatron_line(iteration, losses=losses, change=values)
    return one(log(text), Iteration)._replace(first_of_process=False)


PLAIN = line(1)


def settled(lines: int = 100) -> EvaluationThrottle:
    """After so many plain lines, just looked at."""
    screen = EvaluationThrottle()
    for number in range(1, lines + 1):
        screen.wants(PLAIN._replace(iteration=number))
    screen.looked(is_new=False)
    return screen


def test_a_line_like_the_others_is_not_worth_a_look() -> None:
    screen = settled()
    assert not any(screen.wants(PLAIN._replace(iteration=number)) for number in range(101, 109))


def test_plain_lines_are_looked_at_after_a_twenty_fifth_of_them() -> None:
    screen = settled(1000)
    numbers = range(1001, 1101)
    asked = [number for number in numbers if screen.wants(PLAIN._replace(iteration=number))]
    assert asked[0] == 1042


@pytest.mark.parametrize(
    "odd",
    [
        line(101, loss=""),
        line(101, loss="2.500000E+00"),
        line(101, loss="INF"),
        line(101, grad_norm="nan"),
        line(101, grad_norm="inf"),
        line(101, grad_norm="9.000"),
        line(101, grad_norm=None),
        line(101, loss_scale="65536.0"),
        line(101, number_of_skipped_iterations="  1"),
        line(101, number_of_nan_iterations="  1"),
        line(101)._replace(elapsed_ms=600.0),
        line(101)._replace(first_of_process=True),
        line(101)._replace(losses={"lm loss": 2.0, "z_loss": 0.1}),
        line(100),
    ],
)
def test_a_line_unlike_the_others_is_worth_a_look(odd: Iteration) -> None:
    assert settled().wants(odd)


def test_a_loss_that_stays_high_stays_odd_for_as_long_as_a_detector_needs() -> None:
    screen = settled(1000)
    high = PLAIN._replace(losses={"lm loss": 2.8})
    assert all(screen.wants(high._replace(iteration=number)) for number in range(1001, 1041))


def test_looks_that_say_nothing_new_are_made_less_often() -> None:
    screen = settled()
    asked = 0
    for number in range(101, 20_101):
        if screen.wants(PLAIN._replace(iteration=number, losses={})):
            screen.looked(is_new=False)
            asked += 1
    assert asked < 2000
    screen.looked(is_new=True)
    assert screen.wants(PLAIN._replace(iteration=30_000, losses={}))


@pytest.mark.parametrize(
    ("text", "is_worth"),
    [
        ("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ("[exiting program at iteration 25] datetime: 2026-11-15 03:25:05", True),
        ("saving checkpoint at iteration      10 to /ck in torch_dist format", True),
        ("WARNING:megatron.core.rerun_state_machine:Result validation enabled", False),
        ("[W1115 00:42:49 ProcessGroupNCCL.cpp:1575] Warning: destroy_process_group() was not "
         "called before program exit, which can leak resources", False),
    ],
)  # fmt: skip
def test_other_lines_are_worth_a_look_unless_they_are_benign(text: str, is_worth: bool) -> None:
    found: list[Event] = events(log(text), faults=True)
    assert found
    assert any(EvaluationThrottle().wants(event) for event in found) == is_worth


def test_a_new_attempt_has_no_habits() -> None:
    screen = settled()
    screen.attempt_began()
    assert not screen.wants(line(500)._replace(elapsed_ms=9000.0))


def test_benign_is_identified_by_role() -> None:
    (fault,) = (each for each in events(
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory.\n", faults=True
    ) if isinstance(each, Fault))  # fmt: skip
    assert EvaluationThrottle().wants(fault)
    assert not EvaluationThrottle().wants(fault._replace(role="benign"))


@pytest.mark.parametrize("noise", [0.1, 0.24, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_gaps_are_learnt_together_up_to_the_first_silence(seed: int, noise: float) -> None:
    chance = random.Random(seed)
    one_by_one, together = UsualGaps(), UsualGaps()
    ats = [0.0]
    for _ in range(2000):
        usual = chance.uniform(10.0, 10.0 * (1 + noise))
        ats.append(ats[-1] + (100.0 if chance.random() < 0.005 else usual))
    one_by_one.learn(0.0)
    together.learn(0.0)
    placed = replace(placed_lines(len(ats), {}, {}), ats=ats)
    begin = 1
    while begin < len(ats):
        end = min(len(ats), begin + chance.choice((1, 31, 32, 33, 500)))
        done = together.pass_over(placed, begin, end, ats[begin - 1])
        for index in range(begin, done):
            assert ats[index] - ats[index - 1] <= one_by_one.dull
            one_by_one.learn(ats[index])
        if done < end:
            assert ats[done] - ats[done - 1] > one_by_one.dull
            one_by_one.learn(ats[done])
            together.learn(ats[done])
            done += 1
        assert vars(together) == vars(one_by_one)
        begin = done


def test_thousands_of_complaints_are_looked_at_less_and_less_often() -> None:
    screen = settled()
    complaint = fault("dns-failure").fault
    looks = 0
    for _ in range(2500):
        if screen.wants(complaint):
            looks += 1
            screen.looked(is_new=True)
    assert 16 < looks < 350
    assert screen.has_new_errors
    screen.attempt_began()
    screen.looked(is_new=False)
    assert screen.wants(complaint), "the first of each attempt"
