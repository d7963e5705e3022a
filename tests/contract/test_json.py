# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every `--json` has one envelope, and the schema in docs is that of the code."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from mwatch.cli.shared.json_output import with_times, write_json
from mwatch.diagnose.checkpoints import JobCheckpoints
from mwatch.diagnose.fleet_status import Fleet, FleetLine
from mwatch.model.finding import Culprit
from mwatch.model.observation import StoredCheckpoint, StoredCheckpoints
from mwatch.operate.overrides import JobOverrides
from release.json_shapes import schema
from support.repository.json_schema import FILE, read_json, schemas

CLI = Path(__file__).resolve().parents[2] / "sidecar/mwatch/cli"
# Lines of events, and settings that one process of ours hands to another.
OTHER_WRITERS = {"render/run_lines.py", "sidecar_process.py"}


def test_the_schema_in_docs_is_current() -> None:
    """Fix: python -m release.json_shapes > docs/json.schema.json"""
    found = json.loads(FILE.read_text("utf-8"))
    Draft202012Validator.check_schema(found)
    assert found == schema()


def test_the_schema_has_every_kind_that_is_written() -> None:
    texts = [path.read_text("utf-8") for path in CLI.rglob("*.py")]
    written = {kind for text in texts for kind in re.findall(r'write_json\(\s*"(\w+)"', text)}
    assert written and written <= schemas().keys()


def test_no_command_writes_json_without_the_envelope() -> None:
    found = {
        str(path.relative_to(CLI))
        for path in CLI.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "json.dumps"
    }
    assert found == OTHER_WRITERS | {"shared/json_output.py"}


def test_a_time_in_seconds_has_its_text_beside_it() -> None:
    given = {"since": 0.0, "at": None, "jobs": ({"written_at": 1.5, "seconds": 2.0},), "x": 1e400}
    assert with_times(given) == {
        "since": 0.0,
        "since_time": "1970-01-01T00:00:00.000+00:00",
        "at": None,
        "jobs": [
            {
                "written_at": 1.5,
                "written_at_time": "1970-01-01T00:00:01.500+00:00",
                "seconds": 2.0,
            }
        ],
        "x": None,
    }
    assert with_times({"since": 1e300}) == {"since": 1e300}, "outside the calendar"


def test_what_the_commands_of_a_cluster_print(capsys: pytest.CaptureFixture[str]) -> None:
    """The cluster tests run the commands; here are their bodies, of every shape."""
    culprit = Culprit(rank=3, coordinates={"tp": 1}, pod="gpt-worker-0", xid=79)
    line = FleetLine("PyTorchJob", "train", "gpt", "act", "training", since=9.0, culprit=culprit)
    write_json(
        "status", Fleet(10.0, (line, line._replace(since=None)), ("no right",), 0.1).to_json()
    )
    (first, second) = read_json(capsys.readouterr().out, "status")["jobs"]
    assert (first["since_time"], "since_time" in second) == ("1970-01-01T00:00:09.000+00:00", False)

    stored = StoredCheckpoints("/ckpt", (StoredCheckpoint(20, "complete", None, 5, 3.0),))
    for found in (stored, None):
        write_json("job_checkpoints", JobCheckpoints("gpt", 10.0, found).to_json())
        read_json(capsys.readouterr().out, "job_checkpoints")

    overrides = object.__new__(JobOverrides)
    overrides.namespace, overrides.who = "train", "me"
    for facts in ({"until": 9.0}, {"until": None}, {"mode": "act"}, {"refused": "no checkpoint"}):
        result = JobOverrides.result(overrides, "pause", "gpt", "gpt: paused", ["note"], **facts)
        write_json("change", result.body)
        assert read_json(capsys.readouterr().out, "change")["command"] == "pause"
