# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""LLM-Foundry's arguments for a resume."""

from __future__ import annotations

from pathlib import Path

from mwatch_trainer.command.argv import Program, find_program
from mwatch_trainer.command.composer import from_beginning, is_composer, resume, settings

NAME = "ep0-ba100-rank{rank}.pt"


def program_of(config: Path, *more: str) -> Program:
    return find_program(["composer", "-n", "8", "train.py", str(config), *more], {})


def test_it_is_distinguished_from_megatron() -> None:
    assert is_composer(find_program(["composer", "train.py", "a.yaml"], {}))
    assert is_composer(find_program(["torchrun", "train.py", "a.yaml", "save_folder=/c"], {}))
    assert is_composer(find_program(["llmfoundry", "train", "a.yaml"], {}))
    assert not is_composer(find_program(["torchrun", "pretrain_gpt.py", "--save", "/c"], {}))


def test_the_words_win_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "m.yaml"
    config.write_text("run_name: r1\nsave_folder: /d/{run_name}/c\nautoresume: true\n")
    seen = settings(program_of(config))
    assert (seen.save_folder, seen.autoresume) == ("/d/r1/c", True)
    seen = settings(program_of(config, "save_folder=/e", "autoresume=false"))
    assert (seen.save_folder, seen.autoresume) == ("/e", False)


def test_a_folder_that_composer_has_yet_to_name_is_not_known(tmp_path: Path) -> None:
    config = tmp_path / "m.yaml"
    config.write_text("save_folder: ./{run_name}/c\n")
    assert settings(program_of(config)).save_folder is None
    config.write_text("save_folder: ${variables.where}\n")
    assert settings(program_of(config)).save_folder is None
    assert settings(program_of(tmp_path / "missing.yaml")).save_folder is None


def test_a_resume_names_the_checkpoint_and_turns_autoresume_off() -> None:
    args = ["m.yaml", "save_folder=/c", "autoresume=true", "max_duration=10ba"]
    edit = resume(args, "/c", NAME, "", False)
    assert edit.args == (
        "m.yaml",
        "save_folder=/c",
        "autoresume=false",
        "max_duration=10ba",
        f"load_path=/c/{NAME}",
    )


def test_what_a_first_attempt_left_out_is_loaded() -> None:
    config = "load_weights_only: true\nload_ignore_keys:\n  - state/optimizers\n"
    edit = resume(["m.yaml", "load_path=/p/base.pt"], "/c", NAME, config, False)
    assert edit.args[1:] == (
        f"load_path=/c/{NAME}",
        "load_weights_only=false",
        "load_ignore_keys=null",
    )
    assert "was load_path=/p/base.pt" in edit.changes[0]


def test_newer_files_are_written_over_only_where_there_are_some() -> None:
    assert "save_overwrite=true" in resume(["m.yaml"], "/c", NAME, "", True).args
    assert "save_overwrite=true" not in resume(["m.yaml"], "/c", NAME, "", False).args
    given = resume(["m.yaml"], "/c", NAME, "save_overwrite: true\n", True)
    assert "save_overwrite=true" not in given.args


def test_to_begin_again_it_does_not_resume_by_itself() -> None:
    edit = from_beginning(["m.yaml"], "autoresume: true\n", True)
    assert edit.args == ("m.yaml", "autoresume=false", "save_overwrite=true")
    assert not from_beginning(["m.yaml"], "", False).changes
