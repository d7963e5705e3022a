# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Exceptions without a whole traceback: cut, torn, logged or passed on by another process."""

from __future__ import annotations

import pytest

from mwatch.model.event import Error
from support.builders.events import log, many, none, one


@pytest.mark.parametrize(
    ("line", "name", "message", "rank"),
    [
        ("ValueError: unknown schedule", "ValueError", "unknown schedule", None),
        ("[rank3]: KeyError: 'text'", "KeyError", "'text'", 3),
        ("torch.OutOfMemoryError: CUDA out", "torch.OutOfMemoryError", "CUDA out", None),
        ("AssertionError", "AssertionError", "", None),
        ("ERROR:root:ValueError: no such precision", "ValueError", "no such precision", None),
        ("(Worker pid=7, ip=10.0.0.1) TypeError: no", "TypeError", "no", None),
        ("2026-01-07 10:00:00,123 ERROR loop.py:88: OSError: gone", "OSError", "gone", None),
        ("AssertionErrorAssertionError: : oddodd", "AssertionError", "oddodd", None),
        ("2026-01-07 10:00:00.918 tarfile.ReadError: end", "tarfile.ReadError", "end", None),
        ("[1,3]<stderr>: ValueError: no", "ValueError", "no", None),
        ("node-3: RuntimeError: no", "RuntimeError", "no", None),
    ],
)
def test_the_last_line_of_a_traceback_is_enough(
    line: str, name: str, message: str, rank: int | None
) -> None:
    event = one(log("before", line), Error)
    assert (event.kind, event.error, event.message) == ("exception", name, message)
    assert (event.rank, event.line, event.error_line) == (rank, 2, 2)


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: ImportError: no module apex",
        "2026-01-07 10:00:00,123 - core - ERROR - Exception:",
        "RuntimeError: can't create new thread at interpreter shutdown",
        "[WARNING] could not load: ValueError: x",
        "    raise ValueError: x",
        "caught ValueError: going on",
        "Error: the file is missing",
        "exit on 'RuntimeError: x'",
        "Exception ignored in: <function Pool.__del__ at 0x7f>",
    ],
)
def test_a_warning_or_a_quoted_exception_is_none(line: str) -> None:
    none(log(line), Error)


def test_a_traceback_that_lost_its_head_still_shows_where() -> None:
    event = one(
        log(
            '[rank1]:   File "/w/train.py", line 61, in main',
            "[rank1]:     loss = model(batch)",
            '[rank1]:   File "/opt/lib/python3.12/site-packages/torch/nn/modules/module.py",'
            " line 1553, in _wrapped_call_impl",
            "[rank1]:     return self._call_impl(*args)",
            "[rank1]: IndexError: index 4 is out of range",
        ),
        Error,
    )
    assert (event.kind, event.error, event.rank) == ("exception", "IndexError", 1)
    assert (event.where, event.where_line, event.error_line) == ("/w/train.py:61 in main", 1, 5)


def test_a_traceback_that_is_indented_as_a_whole_is_read() -> None:
    lines = log(
        "     out = forward_step(",
        '   File "/w/moe/experts.py", line 171, in forward',
        "     fc1 = gmm(a, b)",
        " RuntimeError: CUDA error: an illegal memory access was encountered",
        " Compile with TORCH_USE_CUDA_DSA to enable device-side assertions.",
    )
    event = one(lines, Error)
    assert (event.error, event.where) == ("RuntimeError", "/w/moe/experts.py:171 in forward")


def test_frames_alone_are_no_exception() -> None:
    none(log('  File "/w/train.py", line 61, in main', "    step()", "training"), Error)


def test_an_assertion_without_a_message_has_its_statement() -> None:
    event = one(
        log(
            "Traceback (most recent call last):",
            '  File "/w/arguments.py", line 70, in validate',
            "    assert args.hidden_size % args.heads == 0",
            "AssertionError",
        ),
        Error,
    )
    assert event.message == "assert args.hidden_size % args.heads == 0"
    assert (event.line, event.error_line) == (1, 4)


def test_a_log_line_inside_a_traceback_is_not_its_exception() -> None:
    event = one(
        log(
            "Traceback (most recent call last):",
            '  File "/w/train.py", line 7, in main',
            "INFO: saved the configuration",
            "    step()",
            "TypeError: step() takes one argument",
        ),
        Error,
    )
    assert event.error == "TypeError"


def test_ray_names_the_exception_of_another_process() -> None:
    event = one(
        log(
            "ray.exceptions.RayTaskError(ValueError): ray::Worker.init() (pid=7, ip=10.0.0.4)",
            '  File "/w/workers.py", line 412, in init',
            '    raise ValueError("too few GPUs")',
            "ValueError: too few GPUs",
        ),
        Error,
    )
    assert (event.kind, event.error, event.message) == ("exception", "ValueError", "too few GPUs")


@pytest.mark.parametrize("first", ["Exception ignored in: <function f>", "--- Logging error ---"])
def test_a_traceback_that_python_itself_ignored_is_no_error(first: str) -> None:
    none(
        log(
            first,
            "Traceback (most recent call last):",
            '  File "/w/pool.py", line 1, in f',
            "    g()",
            "ValueError: I/O operation on closed file",
        ),
        Error,
    )


def test_ranks_that_tear_each_others_tracebacks_still_give_the_name() -> None:
    found = many(
        log(
            "Traceback (most recent call last):",
            "Traceback (most recent call last):",
            '  File "/w/train.py", line 7, in <module>',
            '  File "/w/train.py", line 7, in <module>',
            "        main()main()",
            "",
            "KeyErrorKeyError: : 'text''text'",
        ),
        Error,
    )
    assert {event.error for event in found} == {"KeyError"}
