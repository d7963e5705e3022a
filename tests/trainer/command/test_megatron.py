# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Megatron's arguments for a resume, and whether its source follows `--ckpt-step`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwatch_trainer.command.argv import find_program
from mwatch_trainer.command.megatron import (
    folders,
    follows_ckpt_step,
    from_beginning,
    launcher_restarts,
    obstacle,
    resume,
)
from support.builders.attempt import megatron

# How the releases read the flag: core_v0.12 and later; v0.9 to v0.11 not at all; v0.6 to v0.8
# only for the arguments stored in a checkpoint.
FOLLOWED = "    if getattr(args, 'ckpt_step', None):\n        iteration = args.ckpt_step\n"
DEAD = "def _load_base_checkpoint(load_dir, args, rank0=False):\n    iteration = -1\n"
STORED_ARGUMENTS_ONLY = "        checkpoint_step=args.ckpt_step\n"


def test_load_and_step_are_added() -> None:
    edit = resume(["--save", "/c", "--lr", "1e-3"], "/c", 30, True)
    assert edit.args == ("--save", "/c", "--lr", "1e-3", "--load", "/c", "--ckpt-step", "30")
    assert len(edit.changes) == 2


def test_load_and_step_are_replaced_where_they_are() -> None:
    args = ["--load=/pretrained", "--ckpt-step", "5", "--save", "/c"]
    edit = resume(args, "/c", 30, True)
    assert edit.args == ("--load=/c", "--ckpt-step", "30", "--save", "/c")
    assert "was /pretrained" in edit.changes[0]


def test_the_flags_of_a_first_attempt_are_taken_away() -> None:
    args = ["--finetune", "--save", "/c", "--pretrained-checkpoint", "/p", "--no-load-optim"]
    args += ["--no-load-rng", "--pretrained-checkpoint=/q", "--load", "/c", "--fp16"]
    edit = resume(args, "/c", 30, True)
    assert edit.args == ("--save", "/c", "--load", "/c", "--fp16", "--ckpt-step", "30")
    assert len(edit.changes) == 5


def test_a_name_that_begins_alike_is_left_alone() -> None:
    args = ["--finetune-data", "/f", "--no-load-optimizer-x", "--load-main-params-from-ckpt"]
    edit = resume([*args, "--load", "/c"], "/c", 30, False)
    assert edit.args == (*args, "--load", "/c") and not edit.changes


def test_without_a_step_an_old_one_is_taken_away() -> None:
    edit = resume(["--load", "/c", "--ckpt-step", "5"], "/c", 30, False)
    assert edit.args == ("--load", "/c")


FLAGS = st.sampled_from(["--lr", "--fp16", "--data-path", "--loader", "--save-interval", "--loss"])
VALUES = st.text(st.characters(blacklist_categories=["Cs"]), max_size=8).map(
    lambda x: x.lstrip("-")
)


@given(st.lists(st.one_of(FLAGS, VALUES), max_size=12), st.booleans())
def test_all_other_arguments_stay_byte_equal(args: list[str], by_step: bool) -> None:
    mixed = ["--finetune", *args[:6], "--no-load-optim", *args[6:], "--save", "/c"]
    edit = resume(mixed, "/c", 30, by_step)
    added = ("--load", "/c", "--ckpt-step", "30")[: 4 if by_step else 2]
    assert edit.args == (*args, "--save", "/c", *added)


def test_a_fork_keeps_its_own_name_of_the_flag() -> None:
    edit = resume(["--save-dir", "/c", "--load-dir", "/p"], "/c", 30, False)
    assert edit.args == ("--save-dir", "/c", "--load-dir", "/c")
    program = find_program(["python", "x.py", "--save-dir", "/c", "--load_dir=/p"], {})
    assert folders(program) == ("/c", "/p")


def test_to_begin_again_nothing_is_loaded() -> None:
    args = ["--load", "/c", "--save", "/c", "--ckpt-step=3", "--exit-on-missing-checkpoint"]
    assert from_beginning(args).args == ("--save", "/c")


def test_a_launcher_that_restarts_its_workers_is_seen() -> None:
    for words in (["torchrun", "--max-restarts=3"], ["torchrun", "--max_restarts", "100"]):
        command = [*words, "x.py"]
        assert launcher_restarts(command, find_program(command, {}), {})
    command = ["torchrun", "x.py", "--max-restarts", "3"]
    program = find_program(command, {})
    assert not launcher_restarts(command, program, {})
    assert launcher_restarts(command, program, {"PET_MAX_RESTARTS": "100"})
    assert not launcher_restarts(command, program, {"PET_MAX_RESTARTS": "0"})


def test_a_yaml_configuration_is_read_and_not_edited(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("model:\n  layers: 2\nsave: /c  # here\nload: '/c'\nsave_interval: 5\n")
    program = find_program(["python", "x.py", "--yaml-cfg", str(config)], {})
    assert folders(program) == ("/c", "/c")
    assert obstacle(program) is not None


def test_a_value_that_a_shell_has_yet_to_make_is_not_used() -> None:
    program = find_program(["bash", "-c", "python x.py --save $WHERE --load `pwd`"], {})
    assert folders(program) == (None, None)


@pytest.mark.parametrize(
    ("source", "answer"),
    [(FOLLOWED, True), (DEAD, False), (STORED_ARGUMENTS_ONLY, False), (None, None)],
)
def test_the_source_shows_whether_the_step_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, answer: bool | None
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["some-python", megatron(tmp_path / "w", source)]
    assert follows_ckpt_step(command, find_program(command, {}), {}) is answer


def test_the_source_is_found_where_python_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    megatron(tmp_path / "w", FOLLOWED)
    command = ["some-python", "/elsewhere/pretrain_gpt.py"]
    program = find_program(command, {})
    assert follows_ckpt_step(command, program, {}) is None
    assert follows_ckpt_step(command, program, {"PYTHONPATH": f"/x:{tmp_path / 'w'}"}) is True
    monkeypatch.chdir(tmp_path / "w")
    assert follows_ckpt_step(command, program, {}) is True


def test_our_own_trainer_follows_it() -> None:
    command = ["python", "-m", "mwatch_gpt", "--save", "/c"]
    assert follows_ckpt_step(command, find_program(command, {}), {}) is True
