# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Python tracebacks: one error each, the first of a chain."""

from __future__ import annotations

import pytest

from mwatch.model.event import Error, Iteration
from support.builders.events import events, log, many, megatron_line, none, one

TRACE = (
    "Traceback (most recent call last):",
    '  File "/w/pretrain_gpt.py", line 536, in <module>',
    "    pretrain(",
    '  File "/w/training.py", line 2027, in pretrain',
    "    iteration = train(",
    "                ^^^^^^",
    "RuntimeError: shape '[4, 8]' is invalid: got 3",
)
WHERE = "/w/training.py:2027 in pretrain"


def test_a_plain_traceback_gives_the_innermost_frame_and_the_error() -> None:
    event = one(log("before", *TRACE, "after"), Error)
    assert (event.kind, event.error) == ("traceback", "RuntimeError")
    assert (event.message, event.where) == ("shape '[4, 8]' is invalid: got 3", WHERE)
    assert (event.line, event.rank, event.exit_code) == (2, None, None)


@pytest.mark.parametrize(
    "prefix", ["[rank2]: ", "[rank2]:", "[default5]:[rank2]: ", "3: [rank2]: "]
)
def test_the_rank_comes_from_the_hook_of_torch(prefix: str) -> None:
    event = one(log(*(prefix + line for line in TRACE)), Error)
    assert (event.rank, event.error, event.where) == (2, "RuntimeError", WHERE)


def test_the_error_of_a_spawned_process_stands_below_what_torch_raises() -> None:
    outer = (
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 161, in <module>',
        "    spawn(main, nprocs=8)",
        '  File "/opt/torch/multiprocessing/spawn.py", line 118, in join',
        "    raise Exception(msg)",
        "Exception: ",
        "",
        "-- Process 6 terminated with the following error:",
    )
    event = one(log(*outer, *TRACE), Error)
    assert (event.error, event.where, event.line) == ("RuntimeError", WHERE, 9)


def test_tracebacks_of_interleaved_ranks_are_kept_apart() -> None:
    lines = []
    for row in TRACE:
        lines += [f"[rank{rank}]: {row}".replace("got 3", f"got {rank}") for rank in (0, 1, 7)]
        lines.append(megatron_line(len(lines)))
    found = many(log(*lines), Error)
    assert sorted((event.rank or 0, event.message[-5:], event.line) for event in found) == [
        (0, "got 0", 1), (1, "got 1", 2), (7, "got 7", 3),
    ]  # fmt: skip
    assert len(many(log(*lines), Iteration)) == len(TRACE)


@pytest.mark.parametrize(
    "joint",
    [
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    ],
)
def test_a_chain_is_one_error_and_the_first_one(joint: str) -> None:
    second = [*TRACE[:-1], "torch.distributed.DistBackendError: NCCL error"]
    event = one(log(*TRACE, "", joint, "", *second, "done"), Error)
    assert (event.error, event.line) == ("RuntimeError", 1)


def test_a_chain_after_a_message_of_many_lines_is_still_one_error() -> None:
    first = [
        *TRACE[:-1],
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "CUDA kernel errors might be asynchronously reported at some other API call.",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "",
    ]
    joint = "During handling of the above exception, another exception occurred:"
    event = one(log(*first, joint, "", *TRACE[:-1], "ValueError: later"), Error)
    assert event.error == "RuntimeError"
    assert event.message.startswith("CUDA error: an illegal memory access was encountered")


def test_two_tracebacks_one_after_the_other_are_two_errors() -> None:
    text = log(*TRACE, *TRACE[:-1], "KeyError: 'text'")
    assert [event.error for event in many(text, Error)] == ["RuntimeError", "KeyError"]


@pytest.mark.parametrize(
    ("last", "error", "message"),
    [
        ("KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("AssertionError", "AssertionError", ""),
        (
            "torch.OutOfMemoryError: CUDA out of memory.",
            "torch.OutOfMemoryError",
            "CUDA out of memory.",
        ),
        ("SystemExit: 2", "SystemExit", "2"),
    ],
)
def test_errors_without_message_and_with_modules(last: str, error: str, message: str) -> None:
    event = one(log(*TRACE[:-1], last), Error)
    assert (event.error, event.message) == (error, message)


def test_a_traceback_quoted_inside_a_line_is_no_traceback() -> None:
    none(
        "['Traceback (most recent call last):\\n', '  File \"/w/x.py\", line 361, in f\\n']\n"
        'log.info("Traceback (most recent call last): is what Python prints")\n',
        Error,
    )


def test_a_truncated_traceback_shows_where_it_was() -> None:
    event = one(log(*TRACE[:4]), Error)
    assert (event.error, event.where) == (None, WHERE)


def test_iteration_lines_after_a_traceback_are_not_swallowed() -> None:
    found = events(log(*TRACE, megatron_line(10), megatron_line(11)))
    assert sorted((type(event).__name__, event.line) for event in found) == [
        ("Error", 1), ("Iteration", 8), ("Iteration", 9),
    ]  # fmt: skip


def test_source_code_in_a_frame_is_not_read_as_a_log() -> None:
    lines = list(TRACE)
    lines[2] = '    print_rank_last(" iteration 10/100 | lm loss: 1.0E+00 |")'
    none(log(*lines), Iteration)


def test_a_storm_of_ranks_gives_one_error_each() -> None:
    text = log(*(f"[rank{rank}]: {row}" for row in TRACE for rank in range(50)))
    assert sorted(event.rank or 0 for event in many(text, Error)) == list(range(50))


def test_syntax_errors_are_read() -> None:
    text = log(
        TRACE[0],
        '  File "/w/x.py", line 3',
        "    def f(",
        "         ^",
        "SyntaxError: '(' was never closed",
    )
    assert one(text, Error).error == "SyntaxError"


@pytest.mark.parametrize(
    ("functions", "during"),
    [
        (["pretrain", "load_checkpoint", "_load_base_checkpoint", "read"], "load"),
        (["train", "save_checkpoint_and_time", "save_checkpoint", "write"], "save"),
        (["train", "train_step", "forward_step"], "step"),
        (["train", "evaluate_and_print_results", "evaluate", "forward_step"], "evaluate"),
        (["main", "parse"], None),
    ],
)
def test_what_the_trainer_was_doing_is_known_by_the_frames(
    functions: list[str], during: str | None
) -> None:
    frames = [f'  File "a.py", line 1, in {function}' for function in functions]
    text = log("Traceback (most recent call last):", *frames, "EOFError", "")
    assert one(text, Error).during == during


@pytest.mark.parametrize(
    "prefix",
    ["job-worker-0 trainer ", "trainer-1  | ", "Nov 12 10:00:0{} gpu3 python[4411]: ", "> "],
)
def test_what_stands_before_its_first_line_is_cut_off_the_others(prefix: str) -> None:
    lines = (prefix.format(number) + line for number, line in enumerate(TRACE))
    event = one(log(*lines), Error)
    assert (event.kind, event.error, event.where) == ("traceback", "RuntimeError", WHERE)


def test_a_traceback_that_is_cut_off_in_a_launcher_says_nothing() -> None:
    none(
        log(
            "Traceback (most recent call last):",
            '  File "/opt/conda/lib/python3.8/site-packages/deepspeed/launcher/runner.py", '
            "line 374, in main",
            "    raise subprocess.CalledProcessError(returncode=result.returncode, cmd=cmd)",
        ),
        Error,
    )


def test_a_traceback_inside_a_string_is_read() -> None:
    text = '{"level":"%s","msg":"x","exc_info":"%s"}'
    event = one(log(text % ("error", "\\n".join(TRACE))), Error)
    assert (event.kind, event.error) == ("exception", "RuntimeError")
    assert event.message == "shape '[4, 8]' is invalid: got 3"
    none(log(text % ("warning", "\\n".join(TRACE))), Error)


def test_the_error_inside_a_ray_actor_is_the_cause_of_its_death() -> None:
    died = (
        "ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation "
        "task, ray::Worker.__init__() (pid=88, ip=10.0.0.3)"
    )
    inside = (
        '  File "/w/engine.py", line 27, in __init__',
        "    self.engine = Engine(",
        "TypeError: no",
    )
    whole = one(log(*TRACE[:-1], died, *inside), Error)
    assert (whole.error, whole.message, whole.line) == ("TypeError", "no", 1)
    assert one(log(died, *inside), Error).error == "TypeError"
    assert one(log(*TRACE[:-1], died), Error).error == "ray.exceptions.ActorDiedError"


@pytest.mark.parametrize(
    ("file", "during"), [("/w/checkpoint/manager.py", "load"), ("/w/json/decoder.py", None)]
)
def test_a_function_named_load_loads_a_checkpoint_in_a_file_of_checkpoints(
    file: str, during: str | None
) -> None:
    frame = f'  File "{file}", line 188, in load'
    lines = (TRACE[0], frame, "    read(path)", "AssertionError: metadata is None")
    assert one(log(*lines), Error).during == during
