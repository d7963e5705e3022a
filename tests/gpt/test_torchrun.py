# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer under torchrun, as people start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpt.launch import ROOT, TINY, Nursery


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    folder = tmp_path_factory.mktemp("torchrun")
    save = str(folder / "ck")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    flags = [*TINY, "--train-iters", "8", "--save", save, "--save-interval", "2"]
    return subprocess.run(
        [sys.executable, *launcher, "-m", "mwatch_gpt", *flags, "--fault", "kill@5"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "trainer"), "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=170,
        cwd=folder,
    )


def test_torchrun_shows_which_rank_was_killed(
    killed: subprocess.CompletedProcess[str],
) -> None:
    assert killed.returncode == 1
    assert "Signal 9 (SIGKILL) received by PID" in killed.stdout
    assert "mwatch_gpt FAILED" in killed.stdout


def test_without_a_launcher_it_is_alone_and_needs_no_port(nursery: Nursery, tmp_path: Path) -> None:
    log = tmp_path / "alone.log"
    pid = nursery.start("train", [*TINY, "--train-iters", "2"], {}, log)
    assert nursery.wait(pid, 120) == 0
    assert "using world size: 1, " in log.read_text()
    assert "iteration        2/       2 |" in log.read_text()


def test_it_trained_and_saved_before_that(killed: subprocess.CompletedProcess[str]) -> None:
    assert "using world size: 2, data-parallel size: 2" in killed.stdout
    assert "iteration        4/       8 |" in killed.stdout
    assert "successfully saved checkpoint from iteration       4" in killed.stdout
