# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A pod whose trainer stands still: what the sidecar finds is beside the checkpoints, whole, before
anybody has touched a process, and the record follows its evidence.

Real wrapper, probe and sidecar; a stall takes seconds to be one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mwatch_trainer.evidence.incidents import MANIFEST, beside
from support.runs import live_runs, sidecar_runs, wrapper_runs
from support.waiting import until


def records(save: Path) -> list[Path]:
    return sorted(Path(beside(str(save))).glob(f"*/{MANIFEST}"))


@pytest.mark.timeout(420)
def test_evidence_of_a_stopped_rank_outlives_its_pod(tmp_path: Path) -> None:
    volume, save = tmp_path / "volume", tmp_path / "save"
    save.mkdir()
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "HF_TOKEN": "hf_secret"}
    words = live_runs.trainer("--train-iters", "1000", "--then", "stop", "--at", "40")
    options = ["--act", "--checkpoints", str(save)]
    given = wrapper_runs.environ(**rank)
    with (
        wrapper_runs.running(volume, *words, options=options, given=given),
        sidecar_runs.sidecar(volume),
    ):
        manifest = until(lambda: records(save), 150)[0]
        trainer = wrapper_runs.child_pid(volume)
        assert wrapper_runs.is_alive(trainer), "evidence comes before the kill"
        folder = manifest.parent
        until(lambda: (folder / "incident.json").exists(), 90)
        os.kill(trainer, 18)  # it goes on: that the incident is over is to be read there, too
        until(lambda: _read(folder / "incident.json")["times"]["closed"], 150)
    told = _read(manifest)
    names = {each["name"] for each in told["files"]}
    wanted = {"attempt.json", "trainer.log", "probe.json", "processes.json", "environment.json"}
    assert wanted <= names
    silent = _read(folder / "missing.json")["ranks"]
    assert silent == [{"rank": 0, "why": "stopped by a signal (state T)"}]
    assert told["missing"] == [] or all("rank-0" not in each["what"] for each in told["missing"])
    assert told["seconds"] <= 60


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found
