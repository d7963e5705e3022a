# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What `mwatch run` decided for an attempt of one node: rollbacks, beginnings, pauses."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from mwatch_trainer.command.argv import value_of
from support.builders.attempt import act, contents, decide, megatron, ran, saved, timeline_of
from support.builders.checkpoint import torch_dist

SHARDS = {"__0_0.distcp": 64}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    save = str(saved(tmp_path / "ck", 10, 20, 30))
    return ["torchrun", megatron(tmp_path / "w"), "--save", save, "--load", save]


def rollback(to: int) -> dict[str, object]:
    return {"at": time.time(), "to_iteration": to, "first_bad": 25, "reason": "nan", "marked": []}


def test_a_rollback_is_followed_noted_and_protected(tmp_path: Path, run: list[str]) -> None:
    save = tmp_path / "ck"
    ran(tmp_path / "v", 1)
    decide(tmp_path / "v", 2, resume_from=10, rollbacks=[rollback(10)], reason="nan from 25")
    plan = act(run, tmp_path / "v")
    assert (plan.number, plan.resume_from, plan.resume_reason) == (2, 10, "nan from 25")
    assert value_of(plan.argv, "--ckpt-step") == "10"
    (noted,) = timeline_of(save)["rollbacks"]
    assert [iteration for iteration, _ in noted["marked"]] == [20, 30]
    kept = save / ".mwatch" / "keep" / "iter_0000010"
    assert (kept / "metadata.json").samefile(save / "iter_0000010" / "metadata.json")


def test_what_was_rolled_back_is_never_chosen_again(tmp_path: Path, run: list[str]) -> None:
    ran(tmp_path / "v", 1)
    decide(tmp_path / "v", 2, resume_from=10, rollbacks=[rollback(10)])
    act(run, tmp_path / "v")
    ran(tmp_path / "v", 2)
    plan = act(run, tmp_path / "v")
    assert (plan.number, plan.resume_from) == (3, 10)
    assert "30 is abandoned" in plan.resume_reason


def test_what_is_saved_after_a_rollback_counts(tmp_path: Path, run: list[str]) -> None:
    ran(tmp_path / "v", 1)
    decide(tmp_path / "v", 2, resume_from=10, rollbacks=[rollback(10)])
    act(run, tmp_path / "v")
    ran(tmp_path / "v", 2)
    # The file system's clock need not have moved since the rollback: its time decides, not ours.
    folder = torch_dist(tmp_path / "ck", 15, SHARDS)
    later = time.time() + 5
    for path in folder.iterdir():
        if path.is_file():
            os.utime(path, (later, later))
    assert act(run, tmp_path / "v").resume_from == 15


def test_a_quarantine_holds_until_a_rollback(tmp_path: Path, run: list[str]) -> None:
    ran(tmp_path / "v", 1)
    bad = {"at": 1.0, "first_bad": 20, "reason": "inf"}
    decide(tmp_path / "v", 2, resume_from=10, quarantine=bad)
    act(run, tmp_path / "v")
    ran(tmp_path / "v", 2)
    assert act(run, tmp_path / "v").resume_from == 10
    ran(tmp_path / "v", 3)
    decide(tmp_path / "v", 4, resume_from=10, rollbacks=[rollback(10)])
    act(run, tmp_path / "v")
    assert timeline_of(tmp_path / "ck")["quarantine"] is None


def test_without_a_choice_the_command_stays_as_it_is(tmp_path: Path, run: list[str]) -> None:
    decide(tmp_path / "v", 1, not_before=12.5)
    plan = act([*run, "--finetune"], tmp_path / "v")
    assert plan.argv == (*run, "--finetune") and plan.not_before == 12.5


def test_a_run_that_begins_again_loads_nothing(tmp_path: Path, run: list[str]) -> None:
    ran(tmp_path / "v", 1)
    decide(tmp_path / "v", 2, from_beginning=True, rollbacks=[rollback(0)], reason="all are bad")
    plan = act(run, tmp_path / "v")
    assert plan.argv == tuple(run[:4]) and plan.resume_from is None
    ran(tmp_path / "v", 2)
    again = act(run, tmp_path / "v")
    assert again.argv == tuple(run[:4]) and "beginning" in again.resume_reason


def test_where_the_launcher_restarts_its_workers_the_tracker_goes_away(
    tmp_path: Path, run: list[str]
) -> None:
    decide(tmp_path / "v", 1, from_beginning=True)
    given = [run[0], "--max-restarts=2", *run[1:]]
    plan = act(given, tmp_path / "v")
    assert plan.argv == tuple(given)
    assert not (tmp_path / "ck" / "latest_checkpointed_iteration.txt").exists()
    kept = tmp_path / "ck" / ".mwatch" / "tracker-aside-1.txt"
    assert kept.read_text() == "30"


def test_a_bad_non_persistent_checkpoint_is_not_preferred(tmp_path: Path, run: list[str]) -> None:
    own = saved(tmp_path / "ck" / "non_persistent", 25)
    ran(tmp_path / "v", 1)
    decide(tmp_path / "v", 2, resume_from=10, rollbacks=[rollback(10)])
    act(run, tmp_path / "v")
    assert not (own / "latest_checkpointed_iteration.txt").exists()
    assert (own / "latest_checkpointed_iteration.txt.mwatch-2").read_text() == "25"


def test_a_good_non_persistent_checkpoint_stays(tmp_path: Path, run: list[str]) -> None:
    own = saved(tmp_path / "ck" / "non_persistent", 35)
    ran(tmp_path / "v", 1)
    plan = act(run, tmp_path / "v")
    assert (own / "latest_checkpointed_iteration.txt").read_text() == "35"
    assert any("non-persistent" in each for each in plan.changes)


def test_a_checkpoint_that_does_not_come_into_view_ends_in_a_restart(
    tmp_path: Path, run: list[str]
) -> None:
    before = contents(tmp_path / "ck")
    decide(tmp_path / "v", 1, resume_from=40)
    plan = act(run, tmp_path / "v", wait=0.1)
    assert plan.refused is not None and "40" in plan.refused and plan.exit_code == 202
    assert contents(tmp_path / "ck") == before


def test_a_checkpoint_that_comes_into_view_in_time_is_taken(tmp_path: Path, run: list[str]) -> None:
    def sleep(_: float) -> None:
        if not (tmp_path / "ck" / "iter_0000040").exists():
            saved(tmp_path / "ck", 40)

    decide(tmp_path / "v", 1, resume_from=40)
    assert act(run, tmp_path / "v", wait=5.0, sleep=sleep).resume_from == 40


def test_a_new_run_in_an_old_folder_counts_on(tmp_path: Path, run: list[str]) -> None:
    for number in (1, 2, 3):
        assert act(run, tmp_path / "v").number == number
    decide(tmp_path / "new", 1)
    assert act(run, tmp_path / "new").number == 4


@pytest.mark.parametrize(
    "document",
    [
        {"resume_from": "ten"},
        {"resume_from": 10, "rollbacks": [{"at": "now"}]},
        {"resume_from": 10, "quarantine": 5},
        {"attempt": 0},
        {"attempt": True},
    ],
)
def test_half_of_a_decision_is_none(
    tmp_path: Path, run: list[str], document: dict[str, object]
) -> None:
    decide(tmp_path / "v", 1, **document)
    plan = act(run, tmp_path / "v")
    assert plan.argv == tuple(run) and plan.resume_from == 30


def test_a_damaged_timeline_stops_the_start(tmp_path: Path, run: list[str]) -> None:
    path = tmp_path / "ck" / ".mwatch" / "timeline.json"
    path.parent.mkdir()
    path.write_text("{")
    plan = act(run, tmp_path / "v")
    assert plan.refused is not None and (plan.exit_code, plan.is_permanent) == (93, True)


def test_a_timeline_is_fixed_by_the_claim_that_wrote_it(tmp_path: Path, run: list[str]) -> None:
    ran(tmp_path / "v", 1)
    decide(tmp_path / "v", 2, resume_from=10, rollbacks=[rollback(10)])
    act(run, tmp_path / "v")
    ran(tmp_path / "v", 2)
    (tmp_path / "ck" / ".mwatch" / "timeline.json").write_text("{")
    assert act(run, tmp_path / "v").resume_from == 10
    assert len(timeline_of(tmp_path / "ck")["rollbacks"]) == 1
