# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The command that inject writes, run by a real shell with the real wrapper in one file."""

from __future__ import annotations

import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from mwatch.manifests.parts import InjectRequest, launch
from mwatch.sources.wrapper_files import read_unwatched
from mwatch_trainer.zipapp_build import build
from support.runs.wrapper_runs import LIMIT_SECONDS, attempt, environ, kill, log
from support.waiting import until

TRAINER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))
print('ready', os.getppid(), flush=True)
while True: time.sleep(0.05)
"""


class Pod(NamedTuple):
    volume: Path
    configmap: Path

    def words(self, python: str | None = None, mode: str = "observe") -> list[str]:
        made = launch(InjectRequest("i", python=python), mode, 60)
        ours = [each.replace("/etc/mwatch-run/", f"{self.configmap}/") for each in made]
        return [each.replace("/mwatch/", f"{self.volume}/") for each in ours]


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    made = Pod(tmp_path / "volume", tmp_path / "configmap")
    made.volume.mkdir()
    made.configmap.mkdir()
    (made.volume / "trainer.log").touch()
    build(str(made.configmap / "mwatch-run.pyz"))
    return made


def variables(volume: Path, **more: str) -> dict[str, str]:
    found = environ(MWATCH_DIR=str(volume), **more)
    del found["PYTHONPATH"]  # the file must do without the sources
    return found


@pytest.mark.parametrize("mode", ["observe", "act"])
def test_the_command_runs_under_the_wrapper(pod: Pod, mode: str) -> None:
    volume = pod.volume
    (volume / "unwatched").write_text("as an earlier container of the pod was\n")
    done = subprocess.run(
        [*pod.words(mode=mode), "bash", "-c", 'echo "$0 said $1"; exit 5', "a b", "$x"],
        env=variables(volume), capture_output=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 5
    assert done.stdout == b"a b said $x\n"
    assert attempt(volume)["exit"]["code"] == 5
    assert read_unwatched(str(volume)) is None


def test_the_shell_becomes_the_wrapper_and_sigterm_reaches_the_trainer(
    pod: Pod, tmp_path: Path
) -> None:
    volume = pod.volume
    file = tmp_path / "trainer.py"
    file.write_text(TRAINER)
    script = f"set -e\necho begin\n{sys.executable} {file} | tee {tmp_path}/copy\necho after\n"
    with subprocess.Popen(
        [*pod.words(), "bash", "-c", script], env=variables(volume), stdout=subprocess.DEVNULL
    ) as process:
        try:
            until(lambda: b"ready" in log(volume))
            until((volume / "attempt.json").exists)  # the command may be quicker than the file
            assert attempt(volume)["wrapper_pid"] == process.pid  # exec: it is process 1 in a pod
            kill(process.pid, signal.SIGTERM)
            assert process.wait(LIMIT_SECONDS) == 0
        finally:
            process.kill()
    assert b"saved" in log(volume) and b"after" in log(volume)


def _break(pod: Pod, case: str, tmp_path: Path) -> str | None:
    """The Python to ask for, in a pod where the wrapper cannot be used."""
    wrapper = pod.configmap / "mwatch-run.pyz"
    if case == "no wrapper":
        wrapper.unlink()
    elif case == "cut wrapper":
        wrapper.write_bytes(wrapper.read_bytes()[:100_000])
    elif case == "no python":
        return str(tmp_path / "no-such-python")
    elif case == "old python":
        old = tmp_path / "python"
        old.write_text("#!/bin/sh\nexit 1\n")  # what sys.exit(version < 3.8) comes to
        old.chmod(0o755)
        return str(old)
    return None


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("no wrapper", "the namespace has no ConfigMap mwatch-run"),
        ("cut wrapper", "is damaged"),
        ("no python", "no Python 3.8"),
        ("old python", "no Python 3.8"),
    ],
)
def test_where_the_wrapper_cannot_be_used_the_command_runs_alone_and_the_sidecar_knows_why(
    pod: Pod, tmp_path: Path, case: str, why: str
) -> None:
    volume = pod.volume
    python = _break(pod, case, tmp_path)
    script = "echo $1; read answer; exit 3"
    with subprocess.Popen(
        [*pod.words(python, "act"), "sh", "-c", script, "zero", "one two"],
        env=variables(volume, MWATCH_RESTART_POLICY="Never"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None and process.stdout.readline() == "one two\n"
            found = read_unwatched(str(volume))
            assert found is not None and why in found.why
            assert (found.restart_policy, found.is_running) == ("Never", True)
            _, told = process.communicate("go\n", timeout=LIMIT_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 3
    assert f"not watched: {found.why}" in told
    assert read_unwatched(str(volume)) == found._replace(is_running=False)


def test_a_volume_that_cannot_be_written_does_not_keep_the_command_from_running(pod: Pod) -> None:
    (pod.configmap / "mwatch-run.pyz").unlink()
    gone = Pod(pod.volume / "gone", pod.configmap)
    done = subprocess.run(
        [*gone.words(), "echo", "trained"],
        env=variables(gone.volume), capture_output=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"trained\n")


def test_a_wrapper_that_fails_by_itself_leaves_word_too(pod: Pod, tmp_path: Path) -> None:
    wrapper, cut = pod.configmap / "mwatch-run.pyz", tmp_path / "cut.pyz"
    with zipfile.ZipFile(wrapper) as whole, zipfile.ZipFile(cut, "w") as part:
        for each in whole.infolist():
            if "wrapper/wrapper" not in each.filename:
                part.writestr(each, whole.read(each))
    cut.replace(wrapper)
    done = subprocess.run(
        [*pod.words(), "echo", "trained"],
        env=variables(pod.volume), capture_output=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"trained\n")
    found = read_unwatched(str(pod.volume))
    assert found is not None and "the wrapper failed: " in found.why
    assert found.is_running is False
