# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Logs below which somebody pasted another run, to compare the one that failed with it."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from mwatch.model.cause import Cause
from mwatch.replay.comparison import comparison_from
from mwatch.replay.replay import ReplayRequest, replay
from support.runs.recorded import read

FAILED = [
    "$ python train.py --fp8",
    "step 1 | loss 9.1",
    "Traceback (most recent call last):",
    '  File "train.py", line 7, in <module>',
    "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
]
PIPE_BYTES = 1 << 16
WELL = ["step 1 | loss 9.1", "step 2 | loss 8.7", "step 3 | loss 8.1"]


@pytest.mark.parametrize(
    "between",
    [
        "# the same without --fp8:",
        "// identical job, one commit before",
        "$ FP8=0 python train.py",
    ],
)
def test_a_run_that_works_below_one_that_failed_is_left_out(between: str, tmp_path: Path) -> None:
    assert comparison_from([*FAILED, between, *WELL]) == len(FAILED)
    report = read(tmp_path, *FAILED, between, *WELL)
    assert report.decision.cause is Cause.USER_ERROR
    assert any("from line 6 on, is left out" in note for note in report.notes)


@pytest.mark.parametrize(
    "lines",
    [
        [*FAILED, "# restarted with the same command", *WELL],  # what became of it
        [*FAILED, "$ python train.py --fp8", *WELL],
        [*FAILED, "$ FP8=0 python other.py", *WELL],
        ["$ NGPU=6 ./train.py", "step 1 | loss 9.1", "^C", "[me@g7 x]$ NGPU=6 ./train.py", *WELL],
        [*FAILED, "# the same without --fp8:", *FAILED[1:]],  # that fails as well
        [*FAILED, *WELL, "# the same without --fp8:", *WELL],  # the error was caught
        [*FAILED, "# the same without --fp8: no change"],
        [*WELL, "# the same on two nodes:", *WELL],  # nothing failed
        [*FAILED, "### training with 16 ranks", *WELL],  # printed by a script that tries again
        [],
    ],
)
def test_what_became_of_a_run_is_read(lines: list[str]) -> None:
    assert comparison_from(lines) is None


def test_a_file_that_is_torn_in_its_first_piece_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    torn = tmp_path / "train.log.gz"
    torn.write_bytes(gzip.compress("".join(f"{line}\n" for line in FAILED).encode())[:-8])
    report = replay(ReplayRequest([str(torn)]), 1_800_000_000.0)
    assert report.verdict.cause is Cause.USER_ERROR
    assert any("ends too early" in note for note in report.notes)


def test_a_pipe_that_gives_it_in_pieces_is_read_alike(tmp_path: Path) -> None:
    start = [f"loading shard {number} of the data set" for number in range(4000)]
    text = "\n".join((*start, *FAILED, "# the same without --fp8:", *WELL)) + "\n"
    assert len(text) > PIPE_BYTES
    saved = tmp_path / "train.log"
    saved.write_text(text)
    command = [sys.executable, "-m", "mwatch", "diagnose", "--json"]
    for given in (str(saved), "-"):
        done = subprocess.run(
            [*command, given], input=text, capture_output=True, text=True, timeout=60, check=False
        )
        assert json.loads(done.stdout)["verdict"]["cause"] == Cause.USER_ERROR, given
