# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A volume or checkpoint folder that hangs, by FUSE: the trainer starts, gets signals and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hanging_fs import mounted, tell, why_not
from support.runs.wrapper_runs import LIMIT_SECONDS, child_pid, environ, is_alive, python, running
from support.waiting import until

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
STEPS = """
import signal, sys, time
def end(*_):
    print("got it", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True: time.sleep(0.05)
"""
GATED = """
import os, sys, time
print("ready", flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
print("finished", flush=True)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    with mounted(tmp_path / "disk") as served:
        yield tmp_path / "disk", served


def lines_until(process: subprocess.Popen[bytes], wanted: bytes) -> list[bytes]:
    assert process.stdout is not None
    lines: list[bytes] = []
    while wanted not in lines:
        line = process.stdout.readline()
        assert line, lines
        lines.append(line)
    return lines


def has_left(pid: int) -> bool:
    """Its main thread has ended; the kernel may keep a thread that waits for the disk."""
    return not is_alive(pid)


HANGS = [signal.SIGUSR1, signal.SIGUSR2]


@pytest.mark.parametrize("hang", HANGS, ids=["server gone", "never answers"])
def test_the_wrapper_leaves_when_training_is_over(
    tmp_path: Path, disk: tuple[Path, subprocess.Popen[bytes]], hang: signal.Signals
) -> None:
    folder, served = disk
    gate = tmp_path / "gate"
    with running(folder, *python(GATED, str(gate))) as wrapper:
        lines_until(wrapper, b"ready\n")
        child_pid(folder)
        tell(served, hang)
        gate.touch()
        lines_until(wrapper, b"finished\n")
        until(lambda: has_left(wrapper.pid), LIMIT_SECONDS)
        if hang == signal.SIGUSR1:
            assert wrapper.wait(LIMIT_SECONDS) == 0
        else:
            served.kill()  # or the process could not even be waited for
            assert wrapper.wait(LIMIT_SECONDS) == 0


@pytest.mark.parametrize("hang", HANGS, ids=["server gone", "never answers"])
@pytest.mark.parametrize("options", [[], ["--act"]], ids=["observe", "act"])
def test_a_signal_reaches_the_trainer_at_once(
    tmp_path: Path,
    disk: tuple[Path, subprocess.Popen[bytes]],
    hang: signal.Signals,
    options: list[str],
) -> None:
    """Both its volume and its checkpoints are on the disk that hangs."""
    folder, served = disk
    save = folder / "save"
    save.mkdir()
    words = [*python(STEPS), "--save", str(save)]
    given = [*options, "--checkpoints", str(save)]
    with running(folder / "volume", *words, options=given) as wrapper:
        lines_until(wrapper, b"ready\n")
        child_pid(folder / "volume")
        tell(served, hang)
        began = time.monotonic()
        wrapper.send_signal(signal.SIGTERM)
        lines_until(wrapper, b"got it\n")
        assert time.monotonic() - began < 40  # it would be for ever
        until(lambda: has_left(wrapper.pid), LIMIT_SECONDS)
        served.kill()
        wrapper.wait(LIMIT_SECONDS)


@pytest.mark.parametrize("hang", HANGS, ids=["server gone", "never answers"])
def test_the_command_starts_although_its_volume_hangs(
    tmp_path: Path, disk: tuple[Path, subprocess.Popen[bytes]], hang: signal.Signals
) -> None:
    folder, served = disk
    tell(served, hang)
    code = (
        "import sys\nfrom mwatch_trainer.wrapper import wrapper\nwrapper._PREPARE_SECONDS = 1.0\n"
        "from mwatch_trainer.__main__ import main\nsys.exit(main(sys.argv[1:]))"
    )
    words = ["--dir", str(folder / "v"), "--", "sh", "-c", "echo ran; exit 9"]
    wrapper = subprocess.Popen(
        python(code, *words), env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        lines_until(wrapper, b"ran\n")
        until(lambda: has_left(wrapper.pid), LIMIT_SECONDS)
        served.kill()
        assert wrapper.wait(LIMIT_SECONDS) == 9
        assert wrapper.stderr is not None
        assert b"does not answer" in wrapper.stderr.read()
    finally:
        served.kill()
        wrapper.kill()
        wrapper.communicate(timeout=LIMIT_SECONDS)


def test_a_start_that_waits_for_a_disk_can_be_ended(
    disk: tuple[Path, subprocess.Popen[bytes]],
) -> None:
    """To act it needs its folder; nothing is started without it, and a signal is obeyed."""
    folder, served = disk
    tell(served, signal.SIGUSR1)
    with running(folder / "v", "sh", "-c", "echo ran", options=["--act"]) as wrapper:
        until(lambda: b"mwatch-prepare" in _threads(wrapper.pid))
        wrapper.send_signal(signal.SIGTERM)
        assert wrapper.wait(LIMIT_SECONDS) == 128 + signal.SIGTERM
        assert wrapper.stdout is not None and wrapper.stdout.read() == b""


def _threads(pid: int) -> bytes:
    """Its handlers are installed before it has more than one thread."""
    found = os.listdir(f"/proc/{pid}/task")
    return b"mwatch-prepare" if len(found) >= 4 else b""
