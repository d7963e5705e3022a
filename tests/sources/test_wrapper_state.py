# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the wrapper says of its attempts: each start and each end once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mwatch.model.observation import AttemptStart, Observed, ProcessExit
from mwatch.model.reading import Absent, Failed, Ok
from mwatch.sources.wrapper_files import WrapperFile
from mwatch_trainer import contract
from mwatch_trainer.attempt.plan import AttemptPlan
from mwatch_trainer.exits.explain import explain
from mwatch_trainer.exits.log_reader import ExitLogReader
from support.builders.volume import WALL, write_attempt

PLAN = AttemptPlan(1, ("python", "train.py"), {})


def ended(code: int | None, signal: object = None, **more: Any) -> dict[str, Any]:
    usual = {"code": code, "signal": signal, "reason": "it failed", "returned": 137, "asked": False}
    return usual | {"at": WALL + 50.0} | more


def news(source: WrapperFile) -> tuple[Observed, ...]:
    reading = source.read()
    assert isinstance(reading, Ok)
    return reading.value


def test_a_start_is_reported_once_at_its_own_time(tmp_path: Path) -> None:
    source = WrapperFile(str(tmp_path), "pod-0")
    write_attempt(tmp_path, 1, resume_from=400)
    assert news(source) == (Observed(WALL + 1, "pod-0", AttemptStart(1, 400, None)),)
    assert news(source) == ()


def test_an_end_is_reported_once(tmp_path: Path) -> None:
    source = WrapperFile(str(tmp_path), "pod-0")
    write_attempt(tmp_path)
    news(source)
    write_attempt(tmp_path, exit=ended(None, 9))
    gone = ProcessExit(None, "SIGKILL", None)
    assert news(source) == (Observed(WALL + 50, "pod-0", gone),)
    assert news(source) == ()


def test_who_looks_late_learns_both(tmp_path: Path) -> None:
    source = WrapperFile(str(tmp_path), "pod-0")
    write_attempt(tmp_path, exit=ended(1))
    assert [type(each.what) for each in news(source)] == [AttemptStart, ProcessExit]


def test_the_next_attempt_is_reported_although_nobody_saw_the_end_of_the_last(
    tmp_path: Path,
) -> None:
    source = WrapperFile(str(tmp_path), "pod-0")
    write_attempt(tmp_path, 1)
    news(source)
    write_attempt(tmp_path, 2)
    assert [each.what for each in news(source)] == [AttemptStart(2, None, None)]
    write_attempt(tmp_path, 2, exit=ended(0))
    assert [each.what for each in news(source)] == [ProcessExit(0, None, None)]


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("oom-kill", "OOMKilled"),
        ("out of GPU memory (torch.OutOfMemoryError)", None),
        ("the room was lost", None),
        (None, None),
    ],
)
def test_of_the_reason_only_a_kill_for_memory_is_passed_on(
    tmp_path: Path, reason: str | None, word: str | None
) -> None:
    source = WrapperFile(str(tmp_path), "pod-0")
    write_attempt(tmp_path, exit=ended(137, reason=reason))
    assert news(source)[1].what == ProcessExit(137, None, word)


@pytest.mark.parametrize("returncode", [-9, 1])
def test_the_words_of_the_wrapper_for_a_kill_for_memory_are_known(
    tmp_path: Path, returncode: int
) -> None:
    exit = explain(returncode, ExitLogReader(), None, PLAN, oom_killed=True)
    source = WrapperFile(str(tmp_path), "pod-0")
    write_attempt(tmp_path, exit=ended(exit.code, exit.signal, reason=exit.reason))
    gone = news(source)[1].what
    assert isinstance(gone, ProcessExit)
    assert gone.reason == "OOMKilled"


@pytest.mark.parametrize(
    ("given", "name"), [(15, "SIGTERM"), ("SIGTERM", "SIGTERM"), (200, "signal 200"), (None, None)]
)
def test_a_signal_has_a_name(tmp_path: Path, given: object, name: str | None) -> None:
    source = WrapperFile(str(tmp_path), "pod-0")
    write_attempt(tmp_path, exit=ended(None, given))
    news(source)
    assert source.state is not None
    assert source.state.exit is not None
    assert source.state.exit.signal == name


def test_the_state_has_what_the_wrapper_wrote(tmp_path: Path) -> None:
    source = WrapperFile(str(tmp_path), "pod-0")
    write_attempt(tmp_path, changes=["added --load"], final=True)
    news(source)
    state = source.state
    assert state is not None
    assert (state.mode, state.save, state.changes) == ("act", "/ckpt", ("added --load",))
    assert (state.host, state.is_final, state.exit) == ("node-a", True, None)


def test_no_file_is_absent_and_a_broken_one_a_failure(tmp_path: Path) -> None:
    source = WrapperFile(str(tmp_path), "pod-0")
    assert isinstance(source.read(), Absent)
    (tmp_path / contract.ATTEMPT).write_text("{")
    assert source.read() == Failed("attempt.json cannot be read")
    (tmp_path / contract.ATTEMPT).write_text("{}")
    assert source.read() == Failed("attempt.json has no attempt number")


def test_odd_values_are_left_out(tmp_path: Path) -> None:
    source = WrapperFile(str(tmp_path), "pod-0")
    write_attempt(tmp_path, changes="many", save=7, pid="x", exit=[1])
    news(source)
    state = source.state
    assert state is not None
    assert (state.changes, state.save, state.pid, state.exit) == ((), None, None, None)
