# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a watched run came to: who is asked first, and what the exit code is."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.observation import AttemptStart, ProcessExit
from mwatch.model.snapshot.pod import TrainerEnd
from mwatch.run.supervisor import final_end, finished, outcome, stopped, unstarted
from support.builders.fold import DONE, READY, WORLD
from support.builders.run import Told, good


def end(**change: Any) -> TrainerEnd:
    usual: dict[str, Any] = {
        "code": 0, "signal": None, "reason": "training finished", "returned": 0, "at": 1.0,
        "asked": False,
    }  # fmt: skip
    return TrainerEnd(**(usual | change))


def trained(*lines: str) -> Told:
    told = Told()
    told.sees(AttemptStart(1, None, None))
    told.says(WORLD, READY, *good(1, 2, 3), *lines)
    return told


def test_training_that_says_so_is_done() -> None:
    told = trained(*good(999, 1000), DONE)
    assessment = told.sees(ProcessExit(0, None, None))
    ended = outcome(0, told.engine.job, assessment, end())
    assert (ended.exit_code, ended.summary, ended.is_recovered) == (
        0, "training is done, iteration 1000", True,
    )  # fmt: skip


def test_what_only_the_wrapper_noticed_counts() -> None:
    told = trained()
    assessment = told.sees(ProcessExit(0, None, None))
    assert outcome(0, told.engine.job, assessment, end()).summary == "training finished"
    nothing = outcome(0, told.engine.job, assessment, end(reason="exited with 0"))
    assert "iteration 3 of 1000" in nothing.summary


def test_a_death_is_identified_by_its_verdict_and_keeps_its_code() -> None:
    told = trained()
    assessment = told.sees(ProcessExit(None, "SIGKILL", None))
    killed = end(code=None, signal="SIGKILL", reason="ended by SIGKILL", returned=137)
    ended = outcome(137, told.engine.job, assessment, killed)
    assert ended.exit_code == 137
    assert "SIGKILL" in ended.summary
    assert not ended.is_recovered


def test_a_command_that_was_never_started_says_why() -> None:
    told = Told()
    assessment = told.sees(ProcessExit(None, None, None))
    why = end(code=None, reason="x: no such command", returned=127)
    assert outcome(127, told.engine.job, assessment, why).summary == "x: no such command"
    assert unstarted(end()) is None
    assert unstarted(None) is None


@pytest.mark.parametrize(
    ("change", "is_finished"),
    [
        ({}, True),
        ({"reason": "training finished: its last iteration was printed"}, True),
        ({"reason": "the trainer's own end (interval) was reached", "asked": True}, True),
        ({"reason": "asked to end: SIGTERM", "asked": True, "returned": 143}, False),
        ({"reason": "exited with 0; this node printed no further detail"}, False),
        ({"code": 1}, False),
        ({"reason": None}, False),
    ],
)
def test_finished_is_what_the_wrapper_knows_to_be_so(
    change: dict[str, Any], is_finished: bool
) -> None:
    assert (finished(end(**change)) is not None) is is_finished


def test_a_newer_attempt_and_giving_up_are_last_words() -> None:
    fenced = final_end(203, end(reason="attempt 9 has begun"))
    assert fenced is not None
    assert (fenced.exit_code, fenced.summary) == (203, "attempt 9 has begun")
    assert final_end(93, None) is not None
    assert final_end(137, end()) is None
    assert final_end(None, None) is None


@pytest.mark.parametrize(
    ("cause", "code"), [(Cause.USER_ERROR, 1), (Cause.OOM, 1), (Cause.DATA, 1), (Cause.HANG, 93)]
)
def test_a_stop_says_whether_a_user_can_fix_it(cause: Cause, code: int) -> None:
    assert stopped(Decision(Action.STOP, cause, 1, "because")).exit_code == code
