# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer's environment: what is added, and what the user's own settings keep."""

from __future__ import annotations

import subprocess
import sys
import zipapp
from pathlib import Path

import mwatch_trainer
from mwatch_trainer.command.run_facts import child_environment, site_folder

PACKAGE = Path(mwatch_trainer.__file__).parent


def test_recorders_and_probe_are_set_under_old_and_new_names(tmp_path: Path) -> None:
    env, problems = child_environment({"HOME": "/h"}, str(tmp_path), 3, True)
    assert not problems and env["HOME"] == "/h"
    assert env["TORCH_FR_BUFFER_SIZE"] == env["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    assert env["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1" and env["NCCL_RAS_ENABLE"] == "1"
    assert env["PYTHONUNBUFFERED"] == "1"
    assert env["TORCH_FR_DUMP_TEMP_FILE"] == env["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]
    assert Path(env["TORCH_FR_DUMP_TEMP_FILE"]).parent.is_dir()
    assert (env["MWATCH_DIR"], env["MWATCH_ATTEMPT"]) == (str(tmp_path), "3")
    assert (Path(env["PYTHONPATH"]) / "sitecustomize.py").is_file()


def test_the_users_settings_stay_under_either_name(tmp_path: Path) -> None:
    own = {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "20000",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/local/nccl_trace_rank_",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "NCCL_RAS_ENABLE": "0",
        "PYTHONUNBUFFERED": "",
    }
    env, _ = child_environment(own, str(tmp_path), 1, True)
    assert {name: env[name] for name in own} == own
    assert "TORCH_FR_BUFFER_SIZE" not in env and "TORCH_FR_DUMP_TEMP_FILE" not in env


def test_a_place_for_dumps_is_no_request_for_a_dump_at_every_exit(tmp_path: Path) -> None:
    """Megatron fills in what is missing beside it, and its ranks then hang when they exit."""
    env, _ = child_environment({"TORCH_INCLUDE_ONLY_ACTIVE": "1"}, str(tmp_path), 1, True)
    assert env["TORCH_NCCL_EXTRA_DUMP_ON_EXEC"] == "0"
    assert env["TORCH_INCLUDE_STACK_TRACE"] == "1" and env["TORCH_INCLUDE_ONLY_ACTIVE"] == "1"
    own, _ = child_environment({"TORCH_FR_DUMP_TEMP_FILE": "/local/fr_"}, str(tmp_path), 1, True)
    assert "TORCH_NCCL_EXTRA_DUMP_ON_EXEC" not in own


def test_megatrons_own_flag_for_the_place_of_dumps_is_left_to_work(tmp_path: Path) -> None:
    for words in (["--flight-recorder-dump-path", "/fr"], ["--flight-recorder-dump-path=/fr"]):
        env, _ = child_environment({}, str(tmp_path), 1, True, ["pretrain_gpt.py", *words])
        assert "TORCH_FR_DUMP_TEMP_FILE" not in env
        assert "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" not in env


def test_the_users_python_path_follows_ours_byte_for_byte(tmp_path: Path) -> None:
    site = site_folder(str(tmp_path))
    env, _ = child_environment({"PYTHONPATH": ":/a::/b"}, str(tmp_path), 1, True)
    assert env["PYTHONPATH"] == f"{site}::/a::/b"
    again, _ = child_environment(env, str(tmp_path), 2, True)
    assert again["PYTHONPATH"] == env["PYTHONPATH"]


def test_the_probe_can_be_left_out(tmp_path: Path) -> None:
    for env, _ in (
        child_environment({}, str(tmp_path), 1, False),
        child_environment({"MWATCH_PROBE": "0"}, str(tmp_path), 1, True),
        child_environment({}, None, 1, True),
    ):
        assert "PYTHONPATH" not in env
    env, problems = child_environment({}, str(tmp_path / "file"), 1, True)
    assert "MWATCH_DIR" in env and not problems


def test_a_volume_that_cannot_be_written_costs_only_the_dumps(tmp_path: Path) -> None:
    (tmp_path / "dumps").write_text("in the way")
    env, problems = child_environment({}, str(tmp_path), 1, True)
    assert "TORCH_FR_DUMP_TEMP_FILE" not in env and len(problems) == 1


def test_out_of_a_zipapp_the_probe_is_copied_to_the_volume(tmp_path: Path) -> None:
    source, archive = tmp_path / "source", tmp_path / "app.pyz"
    target = source / "mwatch_trainer"
    for path in PACKAGE.rglob("*.py"):
        copy = target / path.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (source / "__main__.py").write_text(
        "import sys\nfrom mwatch_trainer.command.run_facts import site_folder\n"
        "print(site_folder(sys.argv[1]))\n"
    )
    zipapp.create_archive(source, archive)
    volume = tmp_path / "v"
    command = [sys.executable, "-I", str(archive), str(volume)]
    for _ in range(2):
        told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        site = Path(told.stdout.strip())
        assert volume in site.parents and (site / "sitecustomize.py").is_file()
        root = site.parent.parent
        assert (root / "mwatch_trainer" / "contract.py").is_file()
