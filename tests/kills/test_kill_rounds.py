# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever part of mwatch is killed: training ends, every byte arrives, nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.kills import KillRound, compared
from benchmarks.kills_trainer import stream


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 6])
def test_a_round_ends_well(tmp_path: Path, seed: int) -> None:
    done = KillRound(seed, seed, 3_000_000, tmp_path).carry_out()
    assert done.problems == [], done.text


def test_a_byte_that_is_lost_changed_or_doubled_is_noticed(tmp_path: Path) -> None:
    whole, out = stream(9, 300_000), tmp_path / "out"
    for data, sent, is_right in [
        (whole, [300_000], True),
        (whole[:100_000] + whole, [90_000, 300_000], True),
        (whole[:100_000] + whole[100_001:], [300_000], False),
        (whole[:-1], [300_000], False),
        (whole + b"x", [300_000], False),
        (whole[:80_000] + whole, [90_000, 300_000], False),
    ]:
        out.write_bytes(data)
        _, problems = compared(out, 9, 300_000, sent)
        assert (problems == []) is is_right
