# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What is advised where a saved log names a cause on which mwatch itself would not act."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwatch.cli.render.report import render_diagnosis
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.replay.replay import ReplayRequest, replay
from mwatch.report.run_report import RunReport
from support.builders.events import megatron_line

NOW = 1_800_000_000.0
TIMED_OUT = (
    "[rank1]:[E ProcessGroupNCCL.cpp:523] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for "
    "600730 milliseconds before timing out."
)
PULL = '  Warning  Failed  1s  kubelet  Failed to pull image "r/x:1": manifest unknown'
MOUNT = "  Warning  FailedMount  1s  kubelet  Unable to attach or mount volumes: timed out"
NO_ROOM = "  Warning  FailedScheduling  1s  default-scheduler  0/3 nodes are available"
ARGUMENTS = "------------------------ arguments ------------------------"


def read(folder: Path, *lines: str) -> RunReport:
    file = folder / "train.log"
    file.write_text("".join(f"{line}\n" for line in lines))
    return replay(ReplayRequest([str(file)]), NOW)


def test_a_job_that_waits_for_room_keeps_its_place(tmp_path: Path) -> None:
    report = read(tmp_path, NO_ROOM)
    assert (report.verdict.cause, report.decision.action) == (Cause.UNSCHEDULABLE, Action.NONE)


@pytest.mark.parametrize(
    ("lines", "cause", "action"),
    [
        ([PULL], Cause.IMAGE, Action.STOP),
        ([MOUNT], Cause.VOLUME, Action.STOP),
        ([TIMED_OUT.format(71)], Cause.HANG, Action.RESTART),  # an excerpt: it may have worked
        (
            [ARGUMENTS, "  world_size .... 8", "--- end of arguments ---", TIMED_OUT.format(1)],
            Cause.HANG,
            Action.STOP,
        ),
    ],
)
def test_what_a_person_should_do(
    tmp_path: Path, lines: list[str], cause: Cause, action: Action
) -> None:
    report = read(tmp_path, *lines)
    assert (report.verdict.cause, report.decision.action) == (cause, action)
    assert report.decision.is_advice
    assert report.acted_at is None  # nothing was or would have been done
    assert all(each.acted_at is None for each in report.incidents)


def test_advice_is_shown_as_such(tmp_path: Path) -> None:
    text = "\n".join(
        "".join(part for part, _ in line) for line in render_diagnosis(read(tmp_path, PULL))
    )
    assert "advises: stop the job; mwatch itself would not act" in text
    assert "would have acted" not in text


@pytest.mark.parametrize(
    "lines",
    [
        [megatron_line(100), megatron_line(101)],
        ["  Warning  Preempted  1s  scheduler  Preempted by pod other-0 on node n3"],
    ],
)
def test_nothing_is_advised_where_nothing_or_nobody_has_to_act(
    tmp_path: Path, lines: list[str]
) -> None:
    decision = read(tmp_path, *lines).decision
    assert (decision.action, decision.is_advice) == (Action.NONE, False)


def test_a_proven_end_is_no_advice(tmp_path: Path) -> None:
    raised = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "KeyError: 'x'"]
    ended = "E api.py:869] failed (exitcode: 1) local_rank: 2 (pid: 991) of binary: /usr/bin/python"
    decision = read(tmp_path, megatron_line(100), *raised, ended).decision
    assert (decision.action, decision.is_advice) == (Action.STOP, False)
