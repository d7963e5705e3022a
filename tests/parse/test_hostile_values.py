# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Values that no trainer should print: each is kept, bounded or dropped, and never an exception."""

from __future__ import annotations

import pytest

from mwatch import json_codec
from mwatch.model.event import Event, Iteration
from mwatch.model.snapshot.event_wire import to_wire
from support.builders.events import events, log, megatron_line, only, steps

TEXTS = [
    "²", "--5", "-", "+", ".", "1_000", "9" * 25, "9" * 5000, "1e999", "-1e999", "0x10", "1.2.3",
    "٣", "nan nan", "1,2,3", "12,34", "5.0", "-7", "1/0", "1/2/3", "K", "%", "(avg", "a: b", "",
    "1e", "e5", "inf%", "\U0001d7dc", "½", "1\x0b2", "\u2028", "é" * 3000,
]  # fmt: skip
KEYS = [
    "consumed samples", "elapsed time per iteration (ms)", "learning rate", "global batch size",
    "lm loss", "loss scale", "grad norm", "number of skipped iterations", "toks/s",
]  # fmt: skip


def dumped(found: list[Event]) -> list[bytes]:
    return [json_codec.encode(to_wire(event)) for event in found]


def neutral(event: Iteration) -> Iteration:
    return event._replace(covers=None, first_of_process=False, line=0)


def line_with(key: str, text: str, iteration: int) -> str:
    if key == "lm loss":
        return megatron_line(iteration, losses=f" lm loss: {text} |")
    if key == "toks/s":
        return megatron_line(iteration, tail=f" toks/s: {text} |")
    return megatron_line(iteration, change={key: text})


def good(key: str, iteration: int) -> str:
    usual = {"lm loss": "6.002230E+00", "toks/s": "123456"}
    if key in usual:
        return line_with(key, usual[key], iteration)
    return megatron_line(iteration)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("text", TEXTS)
def test_an_odd_value_alone_is_read_without_harm(key: str, text: str) -> None:
    found = events(log(line_with(key, text, 10)))
    assert [event.iteration for event in only(found, Iteration)] == [10]
    assert dumped(found)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("text", TEXTS)
def test_an_odd_value_among_good_lines_reads_as_it_does_alone(key: str, text: str) -> None:
    odd = line_with(key, text, 13)
    lines = [good(key, 10), good(key, 11), good(key, 12), odd, good(key, 14)]
    found = events(log(*lines))
    assert [event.iteration for event in only(found, Iteration)] == [10, 11, 12, 13, 14]
    alone = only(events(log(odd)), Iteration)[0]
    among = only(found, Iteration)[3]
    assert repr(neutral(among)) == repr(neutral(alone))
    assert dumped(found)


def test_a_line_wrapped_inside_a_loss_among_good_lines_is_no_harm() -> None:
    wrapped = megatron_line(13).replace("6.002230E+00", "6.00\n2230E+00")
    found = steps(log(megatron_line(11), megatron_line(12), wrapped, megatron_line(14)))
    assert [event.iteration for event in found] == [11, 12, 13, 14]


@pytest.mark.parametrize("value", ["1.2.3", "1-2", "-", "9" * 400])
def test_an_odd_straggler_value_is_no_harm(value: str) -> None:
    assert dumped(events(f"| MnRtt/Rnk: {value}ms/8 | MxRtt/Rnk: 3468.20ms/0 |\n"))


@pytest.mark.parametrize(
    "line",
    [
        "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1.2.3, reducing to 1e+e+",
        "OVERFLOW! Attempted loss scale: 6, but hysteresis is 2. Reducing hysteresis to "
        + "9" * 5000,
        "steps: 228 loss: -+ iter time (s): ... samples/sec: ---",
        "time (ms) | a: 1.2.3 | b: ... |",
        f"Worker group FAILED. {'9' * 30}/3 attempts left; will restart worker group",
        f"Rank {'9' * 40} crashed with exit code {'9' * 40}",
        f"saving checkpoint at iteration {'9' * 60} to /ck",
        f" iteration {'9' * 60}/{'9' * 60} | consumed samples: 1 |",
        f"[exiting program at iteration {'9' * 5000}] datetime: 2026-11-15 03:25:05 ",
        f"validation loss at iteration {'9' * 5000} | lm loss value: 1.1.1 | lm loss PPL: x |",
        f"step: {'9' * 5000}  loss: 1.0",
        f"[batch={'9' * 5000}/{'9' * 5000}]:",
        f"Epoch {'9' * 5000}: 1%| | 1/2 [reduced_train_loss=1.0, global_step=1e999]",
        f"NVRM: Xid (PCI:0000:9b:00): {'9' * 5000}, pid=1",
        f"Epoch {'9' * 5000}/{'9' * 5000}",
        f"{'9' * 5000}/{'9' * 5000} [====] - 21s 41ms/step - loss: {'9' * 5000}",
        "WARNING: overflow detected, setting loss scale to: 1.2.3e+e+",
        '{"loss": NaN, "global_step/max_steps": "' + "9" * 5000 + '/5"}',
        f"[rank{'9' * 5000}]: Traceback (most recent call last):",
    ],
)
def test_an_odd_line_is_no_harm(line: str) -> None:
    dumped(events(log(line, "end"), faults=True))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("part", ["1", "1:", "[a]", " ", "a.", "A", "1.,", "1/2 [", "no "])
@pytest.mark.parametrize(
    "end", ["\x01ValueError: x", "ValueError: x", " loss: nan", "s/step - loss: 1", '"loss": 1']
)
@pytest.mark.parametrize("begin", ["", "step 5 loss ", "iteration 5/ 10 | "])
def test_a_long_run_of_the_same_text_is_read_at_once(begin: str, part: str, end: str) -> None:
    """A pattern that tries every way to split it would take minutes: nothing may stall a pod."""
    for count in (60, 190 // len(part), 100_000):
        events(f"{begin}{part * count}{end}\n", faults=True)
