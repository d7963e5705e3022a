# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""SIGTERM and real shells: it reaches the trainer that a script waits for, which then saves."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

import pytest

from support.runs.wrapper_runs import LIMIT_SECONDS, kill, log, running
from support.waiting import until

TRAINER = """
import signal, sys, time
def save(number, frame):
    time.sleep(0.3)
    print('saved', flush=True)
    sys.exit(int(sys.argv[1]))
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
while True: time.sleep(0.05)
"""
SCRIPTS = {
    "several commands": "set -xe; cd /; {train} 0; echo after",
    "a pipe to tee": "{train} 0 2>&1 | tee /dev/null",
    "a nested script": "set -e\nbash {folder}/inner.sh\n",
    "a subshell and a pipe": "set -o pipefail; (cd /; {train} 0) | tee /dev/null; exit $?",
    "process substitution": "{train} 0 > >(tee /dev/null) 2>&1; sleep 0.1",
    "a single command": "{train} 0",
}


def made(folder: Path) -> Path:
    """The volume, with an empty log in it."""
    volume = folder / "volume"
    volume.mkdir()
    (volume / "trainer.log").touch()
    return volume


@pytest.fixture
def train(tmp_path: Path) -> str:
    file = tmp_path / "trainer.py"
    file.write_text(TRAINER)
    command = f"{sys.executable} -u {file}"
    (tmp_path / "inner.sh").write_text(f"echo inner\n{command} 0\necho done\n")
    return command


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=list(SCRIPTS))
def test_sigterm_reaches_the_trainer_behind_bash(tmp_path: Path, train: str, script: str) -> None:
    volume = made(tmp_path)
    text = script.format(train=train, folder=tmp_path)
    with running(volume, "bash", "-c", text) as wrapper:
        until(lambda: b"ready" in log(volume))
        kill(wrapper.pid, signal.SIGTERM)
        assert wrapper.wait(LIMIT_SECONDS) == 0
    assert b"saved" in log(volume)


@pytest.mark.parametrize("shell", ["sh", "dash"])
def test_other_shells_too_and_the_exit_code_is_the_trainers(
    tmp_path: Path, train: str, shell: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    volume = made(tmp_path)
    with running(volume, shell, "-c", f"true; {train} 3; exit $?") as wrapper:
        until(lambda: b"ready" in log(volume))
        kill(wrapper.pid, signal.SIGTERM)
        assert wrapper.wait(LIMIT_SECONDS) == 3
    assert b"saved" in log(volume)


def test_a_trap_of_the_script_is_the_scripts_own(tmp_path: Path) -> None:
    volume = made(tmp_path)
    text = "trap 'echo trapped; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    with running(volume, "bash", "-c", text) as wrapper:
        until(lambda: b"ready" in log(volume))
        kill(wrapper.pid, signal.SIGTERM)
        assert wrapper.wait(LIMIT_SECONDS) == 9
    assert b"trapped" in log(volume)


def test_a_loop_that_would_start_training_again_ends(tmp_path: Path, train: str) -> None:
    volume = made(tmp_path)
    text = f"while :; do echo begin; {train} 1; done"
    with running(volume, "bash", "-c", text) as wrapper:
        until(lambda: b"ready" in log(volume))
        kill(wrapper.pid, signal.SIGTERM)
        until(lambda: log(volume).count(b"begin") >= 2)  # the script does as it is written
        assert wrapper.wait(LIMIT_SECONDS) in (1, 128 + signal.SIGTERM)


def test_a_shell_that_runs_nothing_gets_it_itself(tmp_path: Path) -> None:
    volume = made(tmp_path)
    with running(volume, "bash", "-c", "echo ready; while :; do :; done") as wrapper:
        until(lambda: b"ready" in log(volume))
        kill(wrapper.pid, signal.SIGTERM)
        assert wrapper.wait(LIMIT_SECONDS) == 128 + signal.SIGTERM
