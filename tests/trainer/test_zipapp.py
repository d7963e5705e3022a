# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch-run` as one file, with every Python from 3.8 on that is here."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mwatch_trainer import zipapp_build
from mwatch_trainer.probe.record_file import unpack
from support.builders.nvml import FakeDriver
from support.runs.wrapper_runs import LIMIT_SECONDS, ask, attempt, environ, kill, log
from support.waiting import until


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
            'echo out; echo err >&2; until [ -d "$0/node" ]; do sleep 0.1; done; exit 16',
            str(tmp_path),
        ],
        env=env,
        capture_output=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (16, b"out\n", b"err\n")
    assert sorted(log(tmp_path).split()) == [b"err", b"out"]
    assert attempt(tmp_path)["exit"]["code"] == 16


def test_from_one_file_the_probe_starts_in_a_python_that_has_nothing_of_mwatch(
    tmp_path: Path, pyz: Path
) -> None:
    """An installation from a checkout would add modules that the copy on the volume lacks."""
    python = str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
    record = tmp_path / "probe" / "rank-3"
    waits = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)\n"
    (tmp_path / "train.py").write_text(waits)
    done = subprocess.run(
        [python, str(pyz), "--dir", str(tmp_path), "--",
         "timeout", "100", python, str(tmp_path / "train.py"), str(record)],
        env={**environ(RANK="3", LOCAL_RANK="0", WORLD_SIZE="4"), "PYTHONPATH": ""},
        capture_output=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    beat = unpack(record.read_bytes())
    assert beat is not None and (beat.rank, beat.world_size) == (3, 4)


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
    ["wrapper/wrapper", "output/pump", "gpu/sampler", "attempt/prepare", "exits/explain"],
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


def test_every_file_in_it_is_python_3_8_and_nvml_has_its_licence(pyz: Path) -> None:
    with zipfile.ZipFile(pyz) as archive:
        names = archive.namelist()
        for name in names:
            if name.endswith(".py"):
                ast.parse(archive.read(name), filename=name, feature_version=(3, 8))
        licence = archive.read("pynvml.LICENSE").decode()
    assert "pynvml.py" in names
    assert "NVIDIA Corporation.  All rights reserved." in licence
    assert "THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS" in licence
    assert "import" not in licence


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).name)
def test_one_file_reads_gpus_without_a_package_of_the_image(
    tmp_path: Path, pyz: Path, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeDriver(tmp_path, monkeypatch)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver.library.parent))
    wrapper = subprocess.Popen(
        [python, "-S", str(pyz), "--dir", str(tmp_path), "--", "sleep", "60"],
        env=environ(PYTHONPATH=""),
    )
    try:
        until((tmp_path / "node/gpus.json").exists)
        document = json.loads((tmp_path / "node/gpus.json").read_text())
    finally:
        kill(wrapper.pid)
        wrapper.wait(LIMIT_SECONDS)
    assert (document["state"], len(document["gpus"])) == ("ok", 8)


def test_without_nvidia_ml_py_nothing_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(zipapp_build, "find_spec", lambda name: None)
    assert zipapp_build.main([str(tmp_path / "x.pyz")]) == 2
    assert "nvidia-ml-py is not installed" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_same_sources_give_the_same_file(tmp_path: Path, pyz: Path) -> None:
    zipapp_build.build(str(tmp_path / "again.pyz"))
    assert (tmp_path / "again.pyz").read_bytes() == pyz.read_bytes()


def test_a_place_that_cannot_be_written_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert zipapp_build.main(["/proc/none/x.pyz"]) == 2
    assert "No such file" in capsys.readouterr().err
    assert zipapp_build.main([]) == 2
