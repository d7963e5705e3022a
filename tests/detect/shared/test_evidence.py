# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The evidence lines of a finding."""

from __future__ import annotations

from mwatch.detect.shared import evidence
from mwatch.model.event import Exit, Straggler
from mwatch.model.job import ExitSeen, ProcessGone, SignSeen
from mwatch.model.observation import ProcessExit, Sign, SignSource, SignState
from support.builders.job import START, error, fault, step


def test_a_line_is_shown_by_its_numbers() -> None:
    seen = evidence.of_step(step(7, loss=None, skipped=1, nan=1, seconds=None))
    assert (seen.file, seen.line) == ("trainer.log", 7)
    assert seen.text == "iteration 7 | loss scale: 1 | grad norm: 0.8 | skipped: 1 | nan: 1"
    bare = evidence.of_step(step(7, loss_scale=None, grad_norm=None))
    assert bare.text == "iteration 7 | 1.000 s per iteration | lm loss: 2"


def test_a_long_line_is_cut_and_its_spaces_stay() -> None:
    seen = evidence.of_fault(fault("collective-timeout", text=" a:   b " + "x" * 9999))
    assert seen.text.startswith("a:   b x")
    assert len(seen.text) == evidence.MAX_TEXT
    assert seen.text.endswith("…")


def test_an_error_is_shown_by_its_class_or_its_code() -> None:
    assert evidence.of_error(error(error="ValueError", message="bad")).text == "ValueError: bad"
    assert evidence.of_error(error(message="bad")).text == "bad"
    assert evidence.of_error(error("elastic", exit_code=-9)).text == "elastic with exit code -9"
    assert evidence.of_error(error("restart")).text == "restart"


def test_an_exception_has_its_own_line_and_the_frame_of_the_user() -> None:
    raised = error(
        error="AssertionError", message="assert a == b", line=2, error_line=7, where_line=5,
        where="/w/model.py:70 in check", frame='File "/w/model.py", line 70, in check',
    )  # fmt: skip
    seen = evidence.of_error(raised)
    assert (seen.line, seen.text) == (7, "AssertionError")
    (frame,) = evidence.of_frame(raised)
    assert (frame.line, frame.text) == (5, 'File "/w/model.py", line 70, in check')


def test_good_byes_and_ends_of_processes() -> None:
    bye = ExitSeen(START, "pod-0", Exit("signal", 7, "exiting", None, None, "trainer.log", 3))
    assert evidence.of_exit(bye).text == "exiting"
    assert evidence.of_exit(bye._replace(exit=bye.exit._replace(text=""))).text == "signal"
    gone = ProcessGone(START, "pod-0", ProcessExit(137, "SIGKILL", "OOMKilled"))
    output = "pod-0: the command has ended (exit code 137, SIGKILL, OOMKilled)"
    assert evidence.of_gone(gone).text == output
    silent = evidence.of_gone(ProcessGone(START, "pod-0", ProcessExit(None, None, None)))
    assert "no reason given" in silent.text


def test_signs_and_reports() -> None:
    sign = Sign(SignSource.PROCESS, SignState.STOPPED, 3, "state T")
    assert evidence.of_sign(SignSeen(START, "pod-0", sign)).text == "process of rank 3: state T"
    whole = sign._replace(rank=None)
    assert evidence.of_sign(SignSeen(START, "pod-0", whole)).text == "process: state T"
    report = Straggler({"MxRtt": (3468.2, 0)}, None, None, "trainer.log", 4)
    assert evidence.of_straggler(report).text == "MxRtt 3468.2 on rank 0"
