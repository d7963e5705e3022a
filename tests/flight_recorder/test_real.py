# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Real dumps of jobs that were broken on purpose: the culprit is named, with and without its dump.

`tests/flight/README.md` describes what happened.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mwatch.flight_recorder.analysis import analyse
from mwatch.flight_recorder.dump import read_dump
from mwatch.model.collective import Dump
from mwatch.model.observation import SignState

FOLDER = Path(__file__).resolve().parents[1] / "flight"
STATES = {
    "never-joined-rank-2": (2, 4, SignState.NEVER_JOINED),
    "gone-rank-0": (0, 4, SignState.STOPPED),
    "never-joined-rank-4-wrapped": (4, 8, SignState.NEVER_JOINED),
    "never-joined-rank-6-first": (6, 8, SignState.NEVER_JOINED),
    "never-joined-rank-0-pipeline": (0, 8, SignState.NEVER_JOINED),
    "stopped-inside-rank-6": (6, 8, SignState.STOPPED),
    "killed-rank-1": (1, 4, SignState.STOPPED),
    "wrong-kind-rank-2": (2, 4, SignState.OUT_OF_STEP),
    "wrong-size-rank-3": (3, 4, SignState.OUT_OF_STEP),
    "extra-call-rank-1": (1, 4, SignState.OUT_OF_STEP),
    "finished-early-rank-3": (3, 4, SignState.NEVER_JOINED),
}


def dumps_of(name: str) -> dict[int, Dump]:
    files = sorted((FOLDER / name).glob("rank-*"))
    ranks = {int(file.stem.removeprefix("rank-")): file for file in files}
    return {rank: read_dump(file.read_bytes(), rank) for rank, file in ranks.items()}


def test_every_folder_of_real_dumps_is_tested() -> None:
    assert {each.name for each in FOLDER.iterdir() if each.is_dir()} == set(STATES)


@pytest.mark.parametrize("is_given", [False, True], ids=["world-unknown", "world-given"])
@pytest.mark.parametrize("name", STATES)
def test_the_culprit_is_named(name: str, is_given: bool) -> None:
    rank, world, state = STATES[name]
    found = analyse(dumps_of(name), world if is_given else None)
    assert (found.blamed[0].rank, found.state) == (rank, state)
    assert found.confidence >= 0.6
    assert f"rank {rank}" in found.summary


@pytest.mark.parametrize("is_given", [False, True], ids=["world-unknown", "world-given"])
@pytest.mark.parametrize("name", STATES)
def test_the_culprit_is_named_without_its_own_dump(name: str, is_given: bool) -> None:
    rank, world, _ = STATES[name]
    dumps = dumps_of(name)
    dumps.pop(rank, None)
    found = analyse(dumps, world if is_given else None)
    if name == "wrong-size-rank-3":  # its partner left no dump either: one of the two
        assert rank in {each.rank for each in found.blamed}
        return
    assert (found.blamed[0].rank, found.state) == (rank, SignState.STOPPED)
    assert rank in found.missing


@pytest.mark.parametrize("name", [name for name in STATES if name.startswith("never-joined")])
def test_any_one_other_dump_may_be_missing(name: str) -> None:
    rank, world, _ = STATES[name]
    whole = dumps_of(name)
    for other in whole.keys() - {rank}:
        rest = {each: dump for each, dump in whole.items() if each != other}
        assert analyse(rest, world).blamed[0].rank == rank, f"without the dump of rank {other}"


def test_the_chain_leads_from_who_waits_to_who_is_to_blame() -> None:
    found = analyse(dumps_of("never-joined-rank-2"))
    assert found.chain_ranks == (1, 3, 2)
    assert found.chain[0].startswith("rank 1 waits in all_reduce #20 of DATA_PARALLEL_GROUP 4")
    assert found.chain[0].endswith("for rank 3")
    assert found.chain[1].endswith("(ranks 2-3) for rank 2")
    assert found.chain[2].startswith(
        "rank 2 never joined all_reduce #40 of TENSOR_MODEL_PARALLEL_GROUP 2 (ranks 2-3); "
        "rank 3 waits in it since 02:53:56 UTC"
    )
    assert found.blamed[0].coordinates == {"tp": 0, "dp": 1}
    assert found.since == pytest.approx(1794711236.107, abs=1e-3)


def test_groups_say_who_waits_where_and_for_whom() -> None:
    texts = [each.text for each in analyse(dumps_of("gone-rank-0")).groups]
    assert any("for rank 0 (no dump)" in text for text in texts)
    assert any("for rank 1 (never joined)" in text for text in texts)
