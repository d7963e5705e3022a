# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch-run` as one file, with every Python from 3.8 on that is here."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mwatch_trainer import zipapp_build
from mwatch_trainer.control.client import ask
from support.runs.wrapper_runs import LIMIT_SECONDS, attempt, environ, kill, log, until


def pythons() -> list[str]:
    """This one, and each that can be started by its usual name."""
    found = [sys.executable]
    for minor in range(8, 16):
        path = shutil.which(f"python3.{minor}")
        if path is None or minor == sys.version_info.minor:
            continue
        done = subprocess.run([path, "-c", ""], capture_output=True, check=False)
        found += [path] if done.returncode == 0 else []
    return found


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zip") / "mwatch-run.pyz"
    assert zipapp_build.main([str(path)]) == 0
    return path


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).name)
def test_one_file_runs_the_command_and_returns_its_exit_code(
    tmp_path: Path, pyz: Path, python: str
) -> None:
    env = {name: text for name, text in environ().items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [
            python,
            str(pyz),
            "--dir",
            str(tmp_path),
            "--",
            "sh",
            "-c",
            "echo out; echo err >&2; exit 16",
        ],
        env=env,
        capture_output=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (16, b"out\n", b"err\n")
    assert sorted(log(tmp_path).split()) == [b"err", b"out"]
    assert attempt(tmp_path)["exit"]["code"] == 16
    until(lambda: (tmp_path / "node").is_dir())


def test_it_can_be_started_by_its_own_name_from_a_relative_path(tmp_path: Path, pyz: Path) -> None:
    shutil.copy(pyz, tmp_path / "mwatch-run.pyz")
    wrapper = subprocess.Popen(
        ["./mwatch-run.pyz", "--dir", "dir", "--", "sleep", "60"],
        cwd=tmp_path,
        env=environ(PYTHONPATH=""),
        stderr=subprocess.PIPE,
    )
    try:
        until(lambda: ask(str(tmp_path / "dir"), {"op": "status"}).get("is_running"))
        assert ask(str(tmp_path / "dir"), {"op": "stop"})["ok"] is True
        _, err = wrapper.communicate(timeout=LIMIT_SECONDS)
    finally:
        kill(wrapper.pid)
    assert (wrapper.returncode, err) == (143, b"")


@pytest.mark.parametrize(
    "missing",
    ["wrapper/wrapper", "output/pump", "gpu/node_sampler", "attempt/prepare", "exits/explain"],
)
def test_a_damaged_file_still_runs_the_command(tmp_path: Path, pyz: Path, missing: str) -> None:
    damaged = tmp_path / "damaged.pyz"
    with zipfile.ZipFile(pyz) as whole, zipfile.ZipFile(damaged, "w") as part:
        assert f"mwatch_trainer/{missing}.py" in whole.namelist()
        for name in whole.namelist():
            if name != f"mwatch_trainer/{missing}.py":
                part.writestr(name, whole.read(name))
    done = subprocess.run(
        [sys.executable, str(damaged), "--dir", str(tmp_path / "dir"), "--", "sh", "-c", "exit 16"],
        env=environ(PYTHONPATH=""),
        capture_output=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 16
    assert b"Traceback" not in done.stderr


def test_the_same_sources_give_the_same_file(tmp_path: Path, pyz: Path) -> None:
    zipapp_build.build(str(tmp_path / "again.pyz"))
    assert (tmp_path / "again.pyz").read_bytes() == pyz.read_bytes()


def test_a_place_that_cannot_be_written_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert zipapp_build.main(["/proc/none/x.pyz"]) == 2
    assert "No such file" in capsys.readouterr().err
    assert zipapp_build.main([]) == 2
