# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Stacks on request, and by a signal while the GIL is held."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mwatch_trainer import contract
from mwatch_trainer.probe import dump
from mwatch_trainer.probe.dump import Requests, free_signal, stacks, stacks_name
from mwatch_trainer.probe.record_file import ProbeRecord
from support.builders.probe import (
    beat_after,
    finished,
    record_of,
    running,
    state_of,
    wait_for,
)

THREADS = """
import sys, threading
def busy(event):
    event.wait()
def waits_for_input():
    sys.stdin.readline()
event = threading.Event()
threading.Thread(target=busy, args=(event,), name="loader of data").start()
waits_for_input()
event.set()
"""
HOLDS_THE_GIL = """
import ctypes
sleep = ctypes.PyDLL(None).sleep
def holds():
    sleep(600)
print("soon", flush=True)
holds()
"""


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "volume" / contract.DUMPS_FOLDER).mkdir(parents=True)
    return tmp_path / "volume"


def ask(volume: Path, name: object) -> None:
    path = volume / contract.DUMPS_FOLDER / contract.DUMP_REQUEST
    contract.write_json(str(path), {"id": name, "asked_at": 1.0})


def answer(volume: Path, name: str) -> str:
    path = volume / contract.DUMPS_FOLDER / name / "rank-0.stacks.txt"
    return wait_for(lambda: path.read_text() if path.exists() else None, f"the answer {name}")


def test_all_threads_are_written_when_somebody_asks(volume: Path) -> None:
    with running(THREADS, volume) as child:
        beat = beat_after(volume)
        for number in itertools.count():  # until it is past its imports
            ask(volume, f"first-{number}")
            text = answer(volume, f"first-{number}")
            has_begun = "in waits_for_input" in text and "in busy" in text
            if has_begun or number == 100:
                break
        ask(volume, "second")
        assert answer(volume, "second")
        later = beat_after(volume, beat.ticks)
        assert finished(child) == (0, "", "")
    head, main, *others = text.split("\n\n")
    assert head.startswith(f"# rank 0, pid {child.pid}, ")
    assert main.startswith("main thread ")
    assert "in waits_for_input" in main
    assert any("[loader of data]" in other and "in busy" in other for other in others)
    assert later.pid == child.pid
    left = [path.name for path in (volume / contract.DUMPS_FOLDER / "first-0").iterdir()]
    assert left == ["rank-0.stacks.txt"]


def test_a_request_of_before_the_rank_is_not_answered(volume: Path) -> None:
    ask(volume, "old")
    with running(THREADS, volume) as child:
        beat_after(volume, 1)
        assert finished(child)[0] == 0
    assert not (volume / contract.DUMPS_FOLDER / "old").exists()


def test_a_request_is_new_once(volume: Path) -> None:
    requests = Requests(str(volume))
    assert requests.new() is None
    ask(volume, "a")
    assert requests.new() == "a"
    assert requests.new() is None
    ask(volume, "a")
    assert requests.new() is None
    ask(volume, "b")
    assert requests.new() == "b"


@pytest.mark.parametrize("name", ["../x", "", ".", "a/b", "x" * 65, 7, None, "a\n"])
def test_a_strange_request_is_not_followed(volume: Path, name: object) -> None:
    requests = Requests(str(volume))
    ask(volume, name)
    assert requests.new() is None


def test_the_signal_gives_the_stacks_of_a_rank_that_holds_the_gil(volume: Path) -> None:
    path = volume / contract.DUMPS_FOLDER / stacks_name(0)
    with running(HOLDS_THE_GIL, volume) as child:
        assert child.stdout is not None and child.stdout.readline() == "soon\n"
        stuck = wait_for(lambda: standing_still(volume, child.pid), "the beats to stop")
        assert stuck.dump_signal >= signal.SIGRTMIN
        os.kill(child.pid, stuck.dump_signal)
        wait_for(lambda: path.stat().st_size or None, "the first of the stacks")
        assert finished(child) == (0, "", "")  # a sleep in C ends early, and nothing dies
    assert "in holds" in path.read_text()


def standing_still(volume: Path, pid: int) -> ProbeRecord | None:
    """The record, once it is older than two beats and the main thread sleeps."""
    record = record_of(volume)
    is_old = record is not None and time.monotonic() - record.monotonic > 2
    return record if is_old and state_of(pid) == "S" else None


def test_a_signal_that_somebody_has_taken_is_not_used() -> None:
    free = free_signal()
    before = signal.signal(free, signal.SIG_IGN)
    try:
        assert free_signal() == free - 1
    finally:
        signal.signal(free, before)
    assert free_signal() == free > signal.SIGRTMIN


def test_without_torch_there_is_no_flight_recorder() -> None:
    """In a process of its own: another test may have imported torch into this one."""
    code = "from mwatch_trainer.probe.dump import flight_recorders; print(flight_recorders())"
    env = {**os.environ, "PYTHONPATH": str(Path(dump.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60)
    assert done.stdout == b"[]\n"


def test_what_is_written_of_stacks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mwatch_trainer.probe.dump.MAX_STACKS_BYTES", 100)
    assert len(stacks("head")) <= 101
