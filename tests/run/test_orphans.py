# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A training that has lost its wrapper: real processes, found by what they have inherited."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mwatch.model.observation import ProcessExit
from mwatch.run import process as orphans
from mwatch.run.process import Orphan, WrapperProcess
from mwatch_trainer import contract
from support.builders.volume import write_attempt
from support.waiting import until

DEAF = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print("ready", flush=True)
child.wait()
"""


@contextmanager
def process(volume: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, contract.DIR_VARIABLE: str(volume)}
    found = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, start_new_session=True)
    try:
        yield found
    finally:
        orphans.kill(volume)
        found.wait(60)
        if found.stdout is not None:
            found.stdout.close()


def gone(code: int, volume: Path) -> WrapperProcess:
    """A wrapper that has ended like this."""
    ended = subprocess.Popen([sys.executable, "-c", f"import os; os._exit({code})"])
    ended.wait(60)
    return WrapperProcess(ended, volume)


def test_everything_that_inherited_the_volume_is_found_and_nothing_else(tmp_path: Path) -> None:
    mine, other = tmp_path / "volume", tmp_path / "volume-2"
    with process(mine, sys.executable, "-c", DEAF) as one, process(other, "sleep", "600") as two:
        assert one.stdout is not None
        assert one.stdout.readline() == b"ready\n"
        # A process that is just turning into another program shows no environment.
        found = until(lambda: len(pids := orphans.pids_of(mine)) >= 2 and pids)
        assert one.pid in found
        assert len(found) == 2
        assert two.pid not in found
        assert os.getpid() not in found


def test_who_does_not_want_to_hear_is_killed_with_all_below(tmp_path: Path) -> None:
    with process(tmp_path, sys.executable, "-c", DEAF) as one:
        assert one.stdout is not None
        one.stdout.readline()
        orphans.kill(tmp_path)
        until(lambda: not orphans.pids_of(tmp_path))


def test_the_end_of_one_that_is_ours_is_known(tmp_path: Path) -> None:
    with process(tmp_path, "sleep", "600") as one:
        orphan = Orphan(one.pid, tmp_path)
        assert orphan.exit_code(7) is None
        orphan.terminate()
        assert until(lambda: orphan.exit_code(7)) == 128 + signal.SIGTERM
        one.returncode = 0  # it was waited for here


def test_the_end_of_one_that_is_not_ours_is_not_known(tmp_path: Path) -> None:
    """`sh` leaves it behind; without being the one that adopts, we cannot wait for it."""
    line = ["sh", "-c", "sleep 600 >/dev/null & echo $!"]
    with process(tmp_path, *line) as shell:
        assert shell.stdout is not None
        orphan = Orphan(int(shell.stdout.readline()), tmp_path)
        shell.wait(60)
        until(
            lambda: orphan.pid in orphans.pids_of(tmp_path)
        )  # it may just be turning into `sleep`
        assert orphan.exit_code(7) is None
        orphans.kill(tmp_path)
        assert until(lambda: orphan.exit_code(7)) == 7


def test_a_wrapper_that_has_written_how_it_ended_is_not_lost(tmp_path: Path) -> None:
    wrapper = gone(3, tmp_path)
    ended = {"code": 3, "signal": None, "reason": "x", "returned": 3, "at": 1.0, "asked": False}
    write_attempt(tmp_path, wrapper_pid=wrapper._process.pid, exit=ended)
    assert wrapper.exit_code == 3
    assert wrapper.unreported_exit is None


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (3, ProcessExit(3, None, None)),
        (137, ProcessExit(None, "SIGKILL", None)),
        (200, ProcessExit(200, None, None)),
        (165, ProcessExit(165, None, None)),
    ],
)
def test_a_wrapper_without_last_words_is_identified_by_its_code(
    tmp_path: Path, code: int, told: ProcessExit
) -> None:
    write_attempt(tmp_path, wrapper_pid=1)  # of the attempt before
    wrapper = gone(code, tmp_path)
    assert wrapper.exit_code == code
    assert not wrapper.has_orphan
    assert wrapper.unreported_exit == told


def test_while_its_command_goes_on_there_is_no_end(tmp_path: Path) -> None:
    with process(tmp_path, "sleep", "600") as command:
        wrapper = gone(1, tmp_path)
        write_attempt(tmp_path, wrapper_pid=wrapper._process.pid, pid=command.pid, exit=None)
        assert wrapper.exit_code is None
        assert wrapper.has_orphan
        assert wrapper.unreported_exit is None
        assert wrapper.clear() == []
        assert until(lambda: wrapper.exit_code) == 137
        command.returncode = 0
