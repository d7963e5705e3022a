# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch run` beside ten thousand checkpoints, and with a gigabyte of output in one line."""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.builders import checkpoint
from support.runs.live_runs import command, environment, left_behind, run, trainer

pytestmark = pytest.mark.timeout(600)
MANY = 10_000
BLOCK = 1 << 20
FLOOD = """
import os, random
block = random.Random(1).randbytes(1 << 20).replace(b"\\n", b" ")
for _ in range(1024):
    rest = memoryview(block)
    while rest:
        rest = rest[os.write(1, rest):]
"""


def test_a_crash_beside_ten_thousand_checkpoints_resumes_from_the_last(tmp_path: Path) -> None:
    save = tmp_path / "ckpt"
    first = checkpoint.torch_dist(save, 4, {"__0_0.distcp": 1000})
    for step in range(8, 4 * MANY + 1, 4):
        shutil.copytree(first, save / f"iter_{step:07d}", copy_function=os.link)
    checkpoint.track(save, 4 * MANY)
    last = 4 * MANY + 40
    flags = ("--train-iters", str(last), "--save", str(save), "--load", str(save))
    breaks = ("--then", "kill", "--at", str(last - 18), "--state", str(tmp_path / "state"))
    ended = run(command(tmp_path, "--act", then=trainer(*flags, *breaks)), tmp_path)
    assert ended.code == 0, ended.err.decode()
    resumed = [each["resume_from"] for each in ended.of("attempt")]
    assert len(resumed) == 2
    assert resumed[1] == last - 20
    assert left_behind(tmp_path) == []


def test_a_gigabyte_without_a_newline_arrives_whole_and_fills_neither_memory_nor_disk(
    tmp_path: Path,
) -> None:
    line = command(tmp_path, then=[sys.executable, "-c", FLOOD])
    said = (tmp_path / "said").open("wb")
    with said, subprocess.Popen(
        line, cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=said,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        came, size, peak = hashlib.sha256(), 0, 0
        while data := running.stdout.read(BLOCK):
            came.update(data)
            size += len(data)
            peak = max(peak, _peak_bytes(running.pid))
        assert running.wait(120) == 0, (tmp_path / "said").read_text()
    block = random.Random(1).randbytes(BLOCK).replace(b"\n", b" ")
    sent = hashlib.sha256()
    for _ in range(1024):
        sent.update(block)
    assert (size, came.hexdigest()) == (1 << 30, sent.hexdigest())
    assert peak < 400 << 20
    kept = sum(each.stat().st_size for each in (tmp_path / "runs").rglob("*") if each.is_file())
    assert kept < 300 << 20
    assert left_behind(tmp_path) == []


def _peak_bytes(pid: int) -> int:
    """0 if it has ended and its last output is still on the way."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found.group(1)) << 10 if found else 0
