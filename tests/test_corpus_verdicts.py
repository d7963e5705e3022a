# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Recorded incidents get the right verdict, by the same code as `mwatch diagnose FOLDER`.

`verdict` in each `expect.json` was written by a person who read the log. A key that it does not
name has no single answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mwatch.replay.replay import ReplayRequest, replay

CORPUS = Path(__file__).parent / "corpus"
INCIDENTS = sorted(folder.name for folder in CORPUS.iterdir())
NOW = 2_000_000_000.0
"""Long after every recording: no file is fresh."""


@pytest.mark.parametrize("incident", INCIDENTS)
def test_the_incident_is_judged_rightly(incident: str) -> None:
    folder = CORPUS / incident
    expected: dict[str, Any] = json.loads((folder / "expect.json").read_text())["verdict"]
    report = replay(ReplayRequest([str(folder)]), NOW)
    found = {
        "cause": report.verdict.cause.value,
        "since_iteration": report.verdict.since_iteration,
        "action": report.decision.action.value,
        "resume_from": report.decision.resume_from,
        "rank": report.verdict.culprit.rank if report.verdict.culprit else None,
    }
    assert {key: found[key] for key in expected} == expected
    is_fine = expected["cause"] in ("finished", "healthy")
    assert report.exit_code == (0 if is_fine else 1)


@pytest.mark.parametrize("incident", INCIDENTS)
def test_nothing_is_done_to_a_run_that_finished(incident: str) -> None:
    """Not at any moment of it: a false kill is the one mistake that must not happen."""
    expected = json.loads((CORPUS / incident / "expect.json").read_text())["verdict"]
    if expected["cause"] == "finished":
        report = replay(ReplayRequest([str(CORPUS / incident)]), NOW)
        assert [each for each in report.timeline if each.kind == "action"] == []
