# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The list of detectors is complete, matches the files, and each has a runbook."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwatch import detect
from mwatch.model.finding import Detector
from mwatch.model.settings import Settings
from support.builders.job import job, steps

PACKAGE = Path(detect.__file__).parent
RUNBOOKS = Path(__file__).resolve().parents[2] / "runbooks"


def test_every_file_with_a_detector_is_in_the_list_under_its_own_name() -> None:
    files = {path.stem for path in PACKAGE.glob("*.py") if "\nDETECTOR = " in path.read_text()}
    assert files == {detector.name for detector in detect.ALL}
    assert len(detect.ALL) == len(files)


@pytest.mark.parametrize("detector", detect.ALL, ids=lambda detector: detector.name)
def test_every_detector_has_a_runbook_and_tests(detector: Detector) -> None:
    assert (RUNBOOKS / f"{detector.runbook}.md").is_file()
    assert list(Path(__file__).parent.glob(f"test_{detector.name}*.py"))
    index = (RUNBOOKS / "README.md").read_text()
    rows = [row for row in index.splitlines() if f"`{detector.name}`" in row]
    assert len(rows) == 1 and f"({detector.runbook}.md)" in rows[0]


def test_a_healthy_job_has_no_findings() -> None:
    losses = [10.0 / (1 + 0.01 * i) for i in range(300)]
    assert detect.run(job(steps(losses)), Settings()) == []


def test_a_job_without_data_gets_no_other_finding() -> None:
    findings = detect.run(job(steps([2.0, None, None]), sights=()), Settings())
    assert {finding.detector for finding in findings} <= {"blind"}
