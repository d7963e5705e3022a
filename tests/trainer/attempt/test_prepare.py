# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What an attempt of one node starts from, in act and in observe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mwatch_trainer import contract
from mwatch_trainer.command.argv import value_of
from support.builders.attempt import (
    act,
    broken,
    contents,
    decide,
    megatron,
    ran,
    saved,
    timeline_of,
)
from support.builders.checkpoint import torch_file, track


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def command(tmp_path: Path, *more: str, launcher: tuple[str, ...] = ("torchrun",)) -> list[str]:
    save = str(tmp_path / "ck")
    return [*launcher, megatron(tmp_path / "w"), "--save", save, "--load", save, *more]


def test_observe_changes_nothing_and_says_what_would_have_been(tmp_path: Path) -> None:
    save = saved(tmp_path / "ck", 10, 20)
    broken(save, 30)
    ran(tmp_path / "v", 1)
    before = contents(save)
    given = command(tmp_path, "--finetune")
    plan = act(given, tmp_path / "v", mode=contract.OBSERVE)
    assert plan.argv == tuple(given) and plan.number == 2 and plan.refused is None
    assert any("would have" in each and "--finetune" in each for each in plan.changes)
    assert any("would have" in each and "20" in each for each in plan.changes)
    assert contents(save) == before


def test_a_first_attempt_runs_as_it_was_given(tmp_path: Path) -> None:
    given = command(tmp_path, "--finetune")
    given[given.index("--load") + 1] = "/pretrained"
    saved(tmp_path / "ck", 10)
    plan = act(given, tmp_path / "v")
    assert plan.argv == tuple(given) and plan.number == 1 and plan.resume_from is None
    assert timeline_of(tmp_path / "ck")["attempt"] == 1


def test_a_first_attempt_that_resumes_by_itself_is_left_alone_when_its_checkpoint_is_good(
    tmp_path: Path,
) -> None:
    saved(tmp_path / "ck", 10, 20)
    given = command(tmp_path)
    plan = act(given, tmp_path / "v")
    assert plan.argv == tuple(given) and plan.resume_from == 20
    assert timeline_of(tmp_path / "ck")["attempts"][0]["resumed_from"] == 20


def test_a_first_attempt_is_led_away_from_a_checkpoint_that_is_not_whole(tmp_path: Path) -> None:
    broken(saved(tmp_path / "ck", 10, 20), 30)
    plan = act(command(tmp_path), tmp_path / "v")
    assert value_of(plan.argv, "--ckpt-step") == "20" and plan.resume_from == 20
    assert "30 is incomplete" in plan.resume_reason
    assert (tmp_path / "ck" / "latest_checkpointed_iteration.txt").read_text() == "30"


def test_a_first_attempt_without_a_tracker_does_not_start_from_random(tmp_path: Path) -> None:
    save = saved(tmp_path / "ck", 10, 20)
    (save / "latest_checkpointed_iteration.txt").unlink()
    plan = act(command(tmp_path), tmp_path / "v")
    assert plan.resume_from == 20 and value_of(plan.argv, "--ckpt-step") == "20"


def test_a_tracker_that_a_person_set_back_is_respected_at_first(tmp_path: Path) -> None:
    save = saved(tmp_path / "ck", 10, 20, 30, 40, 50, 60)
    track(save, 10)
    given = command(tmp_path)
    plan = act(given, tmp_path / "v")
    assert plan.argv == tuple(given) and plan.resume_from == 10


def test_a_later_attempt_resumes_from_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    save = saved(tmp_path / "ck", 10)
    given = ["torchrun", megatron(tmp_path / "w"), "--save", str(save), "--finetune"]
    given += ["--load", "/pretrained", "--no-load-rng"]
    assert act(given, tmp_path / "v").number == 1
    broken(saved(save, 20), 30)
    plan = act(given, tmp_path / "v")
    assert plan.number == 2 and plan.resume_from == 20
    expected = ["torchrun", given[1], "--save", str(save), "--load", str(save)]
    assert list(plan.argv) == [*expected, "--ckpt-step", "20"]
    noted = timeline_of(save)["attempts"]
    assert [each["resumed_from"] for each in noted] == [None, 20]


def test_nothing_starts_where_no_checkpoint_is_complete(tmp_path: Path) -> None:
    save = tmp_path / "ck"
    given = command(tmp_path)
    act(given, tmp_path / "v")
    broken(save, 10)
    before = contents(save)
    plan = act(given, tmp_path / "v")
    assert plan.refused is not None and "incomplete" in plan.refused
    assert (plan.exit_code, plan.is_permanent) == (93, True)
    assert contents(save) == before


def test_without_any_checkpoint_a_later_attempt_begins_as_it_was_given(tmp_path: Path) -> None:
    given = command(tmp_path)
    for number in (1, 2):
        plan = act(given, tmp_path / "v")
        assert (plan.number, plan.argv, plan.resume_from) == (number, tuple(given), None)


def test_an_unverified_checkpoint_is_taken_only_where_nothing_else_is(tmp_path: Path) -> None:
    save = saved(tmp_path / "ck", 10, 20)
    ran(tmp_path / "v", 1)
    given = command(tmp_path)
    (save / "iter_0000020" / ".metadata").write_bytes(b"garbage")
    assert act(given, tmp_path / "v").resume_from == 10
    (save / "iter_0000010" / ".metadata").write_bytes(b"garbage")
    plan = act(given, tmp_path / "v")
    assert plan.resume_from == 20 and "unverified" in plan.resume_reason


def test_a_megatron_that_ignores_the_step_is_led_by_the_tracker(tmp_path: Path) -> None:
    save = broken(saved(tmp_path / "ck", 10, 20), 30).parent
    given = command(tmp_path)
    megatron(tmp_path / "w", "iteration = -1\n")
    plan = act(given, tmp_path / "v")
    assert plan.argv == tuple(given) and plan.resume_from == 20
    assert (save / "latest_checkpointed_iteration.txt").read_text() == "20"
    kept = contract.read_json(str(save / ".mwatch" / "tracker-before.json"))
    assert kept is not None and kept["value"] == "30"
    assert any("latest_checkpointed_iteration.txt" in each for each in plan.changes)


def test_a_launcher_that_restarts_its_workers_is_led_by_the_tracker(tmp_path: Path) -> None:
    broken(saved(tmp_path / "ck", 10, 20), 30)
    plan = act(command(tmp_path, launcher=("torchrun", "--max-restarts=3")), tmp_path / "v")
    assert value_of(plan.argv, "--ckpt-step") is None
    assert (tmp_path / "ck" / "latest_checkpointed_iteration.txt").read_text() == "20"


@pytest.mark.parametrize("value", ["garbage", "release", ""])
def test_a_tracker_that_would_win_over_the_step_is_fixed_too(tmp_path: Path, value: str) -> None:
    save = saved(tmp_path / "ck", 10, 20)
    track(save, value)
    plan = act(command(tmp_path), tmp_path / "v")
    assert value_of(plan.argv, "--ckpt-step") == "20"
    assert (save / "latest_checkpointed_iteration.txt").read_text() == "20"


def test_a_shells_text_is_left_alone_and_led_by_the_tracker(tmp_path: Path) -> None:
    save = broken(saved(tmp_path / "ck", 10, 20), 30).parent
    text = f"cd /w; torchrun pretrain_gpt.py --save $CK --load {save} | tee log"
    plan = act(["bash", "-c", text], tmp_path / "v", environ={"CK": str(save)})
    assert plan.argv == ("bash", "-c", text) and plan.resume_from == 20
    assert (save / "latest_checkpointed_iteration.txt").read_text() == "20"
    assert any("text for bash" in each for each in plan.changes)


def test_what_cannot_be_brought_about_is_reported(tmp_path: Path) -> None:
    save = saved(tmp_path / "ck", 10)
    ran(tmp_path / "v", 1)
    text = f"torchrun pretrain_gpt.py --save {save} --load /pretrained"
    plan = act(["bash", "-c", text], tmp_path / "v")
    assert plan.resume_from is None and any("not loaded" in each for each in plan.changes)


def test_the_folder_of_a_launch_script_is_named_or_learned(tmp_path: Path) -> None:
    save = broken(saved(tmp_path / "ck", 10), 20).parent
    script = ["bash", "train.sh"]
    assert act(script, tmp_path / "v").save is None
    for given in (script, ["python", "train.py", "--config", "x"]):
        plan = act(given, tmp_path / "v", environ={"MWATCH_SAVE": str(save)})
        assert (plan.save, plan.resume_from, plan.argv) == (str(save), 10, tuple(given))
    ran(tmp_path / "u", 1, argv=script, save=str(save))
    assert act(script, tmp_path / "u").save == str(save)


def test_an_object_store_is_left_to_the_trainer(tmp_path: Path) -> None:
    given = ["torchrun", "pretrain_gpt.py", "--save", "s3://bucket/ck", "--load", "s3://bucket/ck"]
    plan = act(given, tmp_path / "v")
    assert plan.argv == tuple(given) and plan.save is None
    assert any("object store" in each for each in plan.changes)


def test_a_volume_that_cannot_be_written_does_not_keep_one_node_from_training(
    tmp_path: Path,
) -> None:
    save = saved(tmp_path / "ck", 10)
    (save / ".mwatch").write_text("in the way")
    given = command(tmp_path)
    plan = act(given, tmp_path / "v")
    assert plan.refused is None and plan.argv == tuple(given)
    assert any("without a fencing token" in each for each in plan.changes)


def test_a_folder_that_cannot_be_listed_is_worth_a_restart(tmp_path: Path) -> None:
    (tmp_path / "ck").write_text("no folder")
    plan = act(command(tmp_path), tmp_path / "v")
    assert plan.refused is not None and plan.exit_code == 202 and not plan.is_permanent


def test_composer_gets_its_load_path(tmp_path: Path) -> None:
    save = tmp_path / "ck"
    for rank in (0, 1):
        torch_file(save / f"ep0-ba100-rank{rank}.pt")
    torch_file(save / "ep0-ba200-rank1.pt")
    ran(tmp_path / "v", 1)
    given = ["composer", "train.py", "m.yaml", f"save_folder={save}", "autoresume=true"]
    plan = act(given, tmp_path / "v")
    assert plan.resume_from == 100
    assert f"load_path={save}/ep0-ba100-rank{{rank}}.pt" in plan.argv
    assert "autoresume=false" in plan.argv and "save_overwrite=true" in plan.argv
    assert not (save / "latest_checkpointed_iteration.txt").exists()


def test_a_fault_of_ours_does_not_keep_anybody_from_training(tmp_path: Path) -> None:
    given: list[Any] = [*command(tmp_path), 3]
    plan = act(given, tmp_path / "v")
    assert plan.argv == tuple(given) and plan.refused is None
    assert "could not be prepared" in plan.changes[0] and plan.env["MWATCH_ATTEMPT"] == "1"


def test_the_decision_of_an_earlier_attempt_says_nothing_now(tmp_path: Path) -> None:
    saved(tmp_path / "ck", 10, 20)
    decide(tmp_path / "v", 2, resume_from=10)
    ran(tmp_path / "v", 2)
    plan = act(command(tmp_path), tmp_path / "v")
    assert plan.number == 3 and plan.resume_from == 20
