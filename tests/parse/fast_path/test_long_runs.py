# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Runs that continue across other events give the same events in the same places."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mwatch.model.event import Event, StepLines
from mwatch.parse.fast_path.run import LineRun, in_pieces
from mwatch.parse.reader import Reader, in_order
from support.builders.events import arguments_block, grammar, log, megatron_line

GRAMMAR = grammar(faults=True)
OTHERS = (
    " validation loss at iteration 40 | lm loss value: 6.0E+00 | lm loss PPL: 4.0E+02 | ",
    "saving checkpoint at iteration      40 to /checkpoints/gpt in torch_dist format",
    "  successfully saved checkpoint from iteration      40 to /checkpoints/gpt",
    " loading checkpoint from /checkpoints/gpt at iteration 20",
    "  successfully loaded checkpoint from /checkpoints/gpt [ t 1/1, p 1/1 ] at iteration 20",
    "WARNING: could not find the metadata file /checkpoints/latest_checkpointed_iteration.txt",
    "    will not load any checkpoints and will start from random",
    "[rank0]:[W108 10:00:00.1 ProcessGroupNCCL.cpp:1250] Warning: WARNING: "
    "destroy_process_group() was not called before program exit, which can leak resources.",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
    arguments_block(log_interval=1, world_size=2),
    'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nValueError: no',
    "(min, max) time across ranks (ms):\n    forward-backward ......: (10.0, 11.0)\nnothing",
    "[after dataloaders are built] datetime: 2026-01-07 23:58:47",
    "nothing of interest",
)


def warm() -> Reader:
    """A reader that knows the layout of the lines and what they cover."""
    reader = Reader(GRAMMAR, "trainer.log")
    reader.feed(log(megatron_line(1), megatron_line(2), megatron_line(3)).encode())
    return reader


def one_by_one(text: bytes) -> list[Event]:
    reader = warm()
    return in_order(reader.feed(text))


def flat(pieces: list[Event | StepLines]) -> list[Event]:
    return [e for each in pieces for e in (each.events if isinstance(each, StepLines) else [each])]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 40), st.sampled_from(OTHERS)), min_size=2, max_size=20))
def test_what_stands_between_the_lines_of_a_run_changes_nothing(turns: list[int | str]) -> None:
    lines: list[str] = []
    iteration = 3
    for turn in turns:
        if isinstance(turn, str):
            lines.append(turn)
        else:
            lines += (megatron_line(iteration + step) for step in range(1, turn + 1))
            iteration += turn
    text = log(*lines).encode()
    assert flat(in_pieces(warm().batches(text))) == one_by_one(text)


def test_a_run_goes_on_over_a_save() -> None:
    lines = [megatron_line(number) for number in range(4, 104)]
    lines[50:50] = OTHERS[1:3]
    text = log("noise", *lines).encode()
    runs = [batch for batch in warm().batches(text) if isinstance(batch, LineRun)]
    assert [len(run) for run in runs] == [100]
    first, *saved, second = in_pieces(warm().batches(text))
    assert isinstance(first, StepLines) and isinstance(second, StepLines)
    assert [event.line for event in flat(saved)] == [55, 56]
    assert list(first.numbers) == list(range(5, 55))
    assert list(second.numbers) == list(range(57, 107))
