# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The workflows run the commands of this repository, with the least rights and time limits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
COMMANDS = {"ci.yml": ".ci/run", "release.yml": "make dist"}


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))["jobs"]
    return found


def test_there_is_one_for_changes_and_one_for_releases() -> None:
    assert [path.name for path in WORKFLOWS] == sorted(COMMANDS)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_it_runs_what_a_developer_runs(path: Path) -> None:
    steps = [step for job in jobs(path).values() for step in job["steps"]]
    assert COMMANDS[path.name] in [step.get("run") for step in steps]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_it_has_time_limits_least_rights_and_versions_of_actions(path: Path) -> None:
    assert yaml.safe_load(path.read_text("utf-8"))["permissions"] == {"contents": "read"}
    for job in jobs(path).values():
        assert job["timeout-minutes"] <= 90
        used = [step["uses"] for step in job["steps"] if "uses" in step]
        assert [each for each in used if not re.search(r"@(?:release/)?v\d+$", each)] == []


def test_the_commands_exist() -> None:
    assert (ROOT / ".ci/run").stat().st_mode & 0o100
    assert re.search(r"^dist:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
