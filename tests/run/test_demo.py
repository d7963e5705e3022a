# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the demo runs, and how it judges what became of each fault; without training anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mwatch.errors import InputError
from mwatch.evidence.incident_store import IncidentFiles
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.incident import IncidentRecord, IncidentTimes
from mwatch.run import demo
from mwatch.run.demo import (
    STAND_IN,
    TRAININGS,
    DemoFault,
    DemoResult,
    Row,
    _rows,
    choose,
    command,
    settings,
)
from mwatch.run.folder import RunFolder
from support.builders.run import run_folder

STOP, NAN = TRAININGS[0].faults


def record(fault: DemoFault, at: float, **change: Any) -> IncidentRecord:
    (cause, *_) = fault.causes
    usual: dict[str, Any] = {
        "id": f"20260105T{int(at):06d}Z-a1-{cause.value.replace('_', '-')}",
        "run": "r", "attempt": 1, "cause": cause, "summary": "x", "confidence": 1.0,
        "detector": "x", "action": Action.RESTART, "is_carried_out": True,
        "resume_from": fault.resume_from,
        "times": IncidentTimes(detected=at + 5, first_new_iteration=at + 9),
    }  # fmt: skip
    return IncidentRecord(**(usual | change))


def happened(folder: RunFolder, fault: DemoFault, at: float) -> None:
    markers = folder.path / "faults"
    markers.mkdir(exist_ok=True)
    name = fault.flags[-1].replace(":", ".")
    (markers / f"{name}.by-rank-0").write_text(f"{at} by rank 0\n")


def judged(path: Path, *records: IncidentRecord) -> list[Row]:
    folder = run_folder(path)
    happened(folder, STOP, 100.0)
    happened(folder, NAN, 200.0)
    for each in records:
        IncidentFiles(folder.incidents).write(each)
    return _rows(folder, (STOP, NAN))


def test_what_was_found_and_resumed_rightly_is_recovered(tmp_path: Path) -> None:
    rows = judged(tmp_path, record(STOP, 100.0), record(NAN, 200.0))
    assert [row.is_recovered for row in rows] == [True, True]
    assert [row.detected_after for row in rows] == [5.0, 5.0]
    assert DemoResult((), rows, 1.0, [0]).is_fine
    assert not DemoResult((), rows, 1.0, [93]).is_fine


@pytest.mark.parametrize(
    "change",
    [
        {"cause": Cause.SLOW},
        {"resume_from": 20},
        {"action": Action.STOP},
        {"is_carried_out": False},
        {"times": IncidentTimes(detected=105.0)},
        {"times": IncidentTimes(detected=99.0, first_new_iteration=109.0)},
    ],
)
def test_anything_else_is_not(tmp_path: Path, change: dict[str, Any]) -> None:
    rows = judged(tmp_path, replace(record(STOP, 100.0), **change))
    assert not any(row.is_recovered for row in rows)
    assert not DemoResult((), rows, 1.0, [0]).is_fine


def test_a_fault_that_never_happened_is_not_recovered(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    IncidentFiles(folder.incidents).write(record(STOP, 100.0))
    (row,) = _rows(folder, (STOP,))
    assert (row.happened_at, row.is_recovered) == (None, False)


def test_an_interrupt_is_identified_by_its_exit_code() -> None:
    assert DemoResult((), (), 1.0, [130]).interrupted_by == 130
    assert DemoResult((), (), 1.0, [0, 143]).interrupted_by == 143
    assert DemoResult((), (), 1.0, [137]).interrupted_by is None


def test_every_fault_leaves_time_to_be_passed(tmp_path: Path) -> None:
    for training in (*TRAININGS, STAND_IN):
        line = command(run_folder(tmp_path / training.name), training)
        places = [int(flag.split("@")[1].split(":")[0]) for fault in training.faults
                  for flag in fault.flags]  # fmt: skip
        assert places == sorted(places)
        assert places[-1] < training.iterations
        for fault in training.faults:
            assert all(flag in line for flag in fault.flags)
            assert fault.resume_from % 20 == 0


def test_the_demo_has_the_five_faults_that_it_promises() -> None:
    assert sum(len(each.faults) for each in TRAININGS) == 5
    assert settings().act.restarts_per_window >= 5


@pytest.mark.parametrize(("asked", "without_torch"), [(None, True), (True, True), (False, None)])
def test_a_stand_in_is_taken_where_torch_is_not_or_if_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked: bool | None, without_torch: bool | None
) -> None:
    monkeypatch.setattr(demo, "_is_there", lambda name: True)
    assert choose(is_stand_in=asked) is bool(asked)
    monkeypatch.setattr(demo, "_is_there", lambda name: False)
    if without_torch is None:
        with pytest.raises(InputError, match=r"mwatch\[demo\]"):
            choose(is_stand_in=asked)
    else:
        assert choose(is_stand_in=asked) is without_torch
