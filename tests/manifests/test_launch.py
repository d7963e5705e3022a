# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The command that inject writes, run by a real shell with the real wrapper in one file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mwatch.manifests.parts import InjectRequest, launch
from mwatch_trainer.zipapp_build import build
from support.runs.wrapper_runs import LIMIT_SECONDS, attempt, environ, kill, log
from support.waiting import until

TRAINER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))
print('ready', os.getppid(), flush=True)
while True: time.sleep(0.05)
"""


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "mwatch"
    folder.mkdir()
    (folder / "trainer.log").touch()
    build(str(folder / "mwatch-run.pyz"))
    return folder


def words(volume: Path, python: str | None = None, mode: str = "observe") -> list[str]:
    made = launch(InjectRequest("i", python=python), mode, 60)
    return [each.replace("/mwatch/", f"{volume}/") for each in made]


def variables(volume: Path, **more: str) -> dict[str, str]:
    found = environ(MWATCH_DIR=str(volume), **more)
    del found["PYTHONPATH"]  # the file must do without the sources
    return found


@pytest.mark.parametrize("mode", ["observe", "act"])
def test_the_command_runs_under_the_wrapper(volume: Path, mode: str) -> None:
    done = subprocess.run(
        [*words(volume, mode=mode), "bash", "-c", 'echo "$0 said $1"; exit 5', "a b", "$x"],
        env=variables(volume), capture_output=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 5
    assert done.stdout == b"a b said $x\n"
    assert attempt(volume)["exit"]["code"] == 5


def test_the_shell_becomes_the_wrapper_and_sigterm_reaches_the_trainer(
    volume: Path, tmp_path: Path
) -> None:
    file = tmp_path / "trainer.py"
    file.write_text(TRAINER)
    script = f"set -e\necho begin\n{sys.executable} {file} | tee {tmp_path}/copy\necho after\n"
    with subprocess.Popen(
        [*words(volume), "bash", "-c", script], env=variables(volume), stdout=subprocess.DEVNULL
    ) as process:
        try:
            until(lambda: b"ready" in log(volume))
            assert attempt(volume)["wrapper_pid"] == process.pid  # exec: it is process 1 in a pod
            kill(process.pid, signal.SIGTERM)
            assert process.wait(LIMIT_SECONDS) == 0
        finally:
            process.kill()
    assert b"saved" in log(volume) and b"after" in log(volume)


@pytest.mark.parametrize("case", ["no wrapper", "no python"])
def test_without_wrapper_or_python_the_command_runs_as_it_is(
    volume: Path, tmp_path: Path, case: str
) -> None:
    """The trainer is sacred: it runs, and one line says that nobody watches it."""
    python = None
    if case == "no wrapper":
        (volume / "mwatch-run.pyz").unlink()
    else:
        python = str(tmp_path / "no-such-python")
    done = subprocess.run(
        [*words(volume, python, "act"), "sh", "-c", "echo $1; exit 3", "zero", "one two"],
        env=variables(volume), capture_output=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, b"one two\n")
    assert b"unwatched" in done.stderr


def test_a_python_that_is_too_old_is_not_used(volume: Path, tmp_path: Path) -> None:
    old = tmp_path / "bin" / "python3"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\nexit 1\n")  # what sys.exit(version < 3.8) comes to
    old.chmod(0o755)
    done = subprocess.run(
        [*words(volume), "echo", "trained"],
        env=variables(volume, PATH=f"{old.parent}:{os.environ['PATH']}"),
        capture_output=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    assert done.stdout == b"trained\n"
    assert done.returncode == 0
