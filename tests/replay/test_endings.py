# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Ends of runs by any launcher are judged rightly: before the first step and in the middle."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mwatch.replay.replay import ReplayRequest, replay

FILE = Path(__file__).parents[1] / "data" / "endings.toml"
ENDINGS: list[dict[str, Any]] = tomllib.loads(FILE.read_text())["ending"]
STEP = (
    " iteration {:8d}/    1000 | consumed samples: {:12d} | elapsed time per iteration (ms): 1510.2"
    " | learning rate: 1.000E-04 | global batch size:    64 | lm loss: 4.512345E+00 |"
    " loss scale: 1.0 | grad norm: 0.912 | number of skipped iterations:   0 |"
    " number of nan iterations:   0 |\n"
)
STEPS = "".join(STEP.format(number, number * 64) for number in range(10, 60, 10))
NOW = 1_800_000_000.0
A_DAY = 86_400.0


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending["name"])
@pytest.mark.parametrize("place", ["before", "after"])
def test_the_end_is_judged_rightly(ending: dict[str, Any], place: str, tmp_path: Path) -> None:
    if ending.get("only", place) != place:
        return
    log = tmp_path / "trainer.log"
    log.write_text((STEPS if place == "after" else "") + ending["text"].lstrip("\n"))
    os.utime(log, (NOW - A_DAY, NOW - A_DAY))
    report = replay(ReplayRequest([str(log)]), NOW)
    assert report.verdict.cause in ending["causes"], report.verdict.summary
    assert report.decision.action in ending["actions"], report.decision.reason
