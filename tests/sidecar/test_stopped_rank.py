# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`kill -STOP` of a real rank below a real wrapper, seen by a real sidecar. Takes seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.builders.probe import record_of
from support.runs.sidecar_runs import sidecar, until
from support.runs.wrapper_runs import LIMIT_SECONDS, command, descendants, environ, kill

TRAINER = Path(__file__).resolve().parents[1] / "support" / "runs" / "printing_trainer.py"
FOUND = 'mwatch_finding{finding="rank_silent",severity="critical"}'
LAUNCHER = """
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, *sys.argv[1:]],
    env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"})
    for rank in range(2)]
for each in ranks: each.wait()
"""


@contextmanager
def two_ranks(volume: Path) -> Iterator[None]:
    """With the probe in each, and what the kernel says of them."""
    trainer = [str(TRAINER), "--train-iters", "100000", "--step-seconds", "0.2"]
    words = [sys.executable, "-c", LAUNCHER, *trainer]
    wrapper = subprocess.Popen(
        command(*words, options=["--dir", str(volume)]), env=environ(),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        for pid in (wrapper.pid, *descendants(wrapper.pid)):
            kill(pid)
        wrapper.wait(LIMIT_SECONDS)


def _stopped(findings: list[dict[str, Any]]) -> set[int | None]:
    """The ranks that hangs are blamed on."""
    return {(each["culprit"] or {}).get("rank") for each in findings if each["cause"] == "hang"}


def _kept(volume: Path) -> list[str]:
    """The files of all incidents: on a busy machine there may be another one before."""
    manifests = map(Path.read_text, volume.glob("incidents/*/manifest.json"))
    return [each["name"] for text in manifests for each in json.loads(text)["files"]]


def test_a_rank_that_is_stopped_is_found_named_and_evidence_of_it_kept(tmp_path: Path) -> None:
    volume = tmp_path / "mwatch"
    volume.mkdir()
    with sidecar(volume) as one, two_ranks(volume):
        assert until(lambda: (one.metric('mwatch_rank_iteration{rank="1"}') or 0) > 5)
        assert until(lambda: one.metric('mwatch_rank_threads{rank="1"}'))
        record = record_of(volume, 1)
        assert record is not None
        os.kill(record.pid, signal.SIGSTOP)
        began = time.monotonic()
        assert until(lambda: one.metric(FOUND) == 1)
        assert time.monotonic() - began < 50, "seconds, on a machine that is busy"
        # A busy machine may hold the others up too: then the finding of this moment is another one.
        assert until(lambda: _stopped(one.snapshot()["findings"]) == {1})
        assert until(lambda: "snapshot.json" in _kept(volume))
        os.kill(record.pid, signal.SIGCONT)
        assert until(lambda: "hang is over" in one.said)
