# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The ledger as texts of a ConfigMap: bounded, and read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mwatch.model.cause import Cause
from mwatch.model.decision import Act, Action
from mwatch.model.incident import IncidentRecord
from mwatch.model.kube.gang import GangStep, Method
from mwatch.model.kube.job import JobKind
from mwatch.model.kube.ledger import (
    MAX_ACTS,
    Halt,
    JobEntry,
    LedgerData,
    LedgerNote,
    from_data,
    to_data,
)
from mwatch.model.kube.restart_state import RestartState

ACT = Act(1.0, 2, Action.RESTART, Cause.HANG, "f", 100, 120, True)
INCIDENT = IncidentRecord("20260101T000000Z-a1-hang", "r", 1, Cause.HANG, "stuck", 0.9, "stalled")


def step(pods: int, state: RestartState = RestartState.PLANNED) -> GangStep:
    uids = tuple(f"{index:08d}-0000-0000-0000-000000000000" for index in range(pods))
    return GangStep(
        "i1", Method.DELETE_PODS, JobKind.PYTORCH_JOB, "ns", "t", "u", uids, 1.0, 3, state=state
    )


def test_all_of_it_is_read_back() -> None:
    entry = JobEntry(
        "u", 5.0, 3, (ACT,), (INCIDENT,), (LedgerNote(1.0, "me", "paused", "x"),), step(2)
    )
    book = LedgerData({"PyTorchJob.t": entry}, Halt(1.0, None, "me", "maintenance"))
    assert from_data(to_data(book)) == book


def test_texts_of_release_0_1_are_read_and_written_byte_for_byte() -> None:
    data = json.loads((Path(__file__).parent / "ledger_0_1.json").read_text("utf-8"))
    book = from_data(data)
    assert book.unread == {} and book.halt is not None and len(book.common) == 1
    entry = book.of("PyTorchJob.t")
    assert entry.step is not None and entry.state is RestartState.RELEASED
    assert entry.start is not None and entry.start.rollbacks[0].to_iteration == 400
    assert entry.request is not None and entry.request.resume_from == 400
    (record,) = entry.incidents
    assert record.culprit is not None and record.culprit.coordinates == {"tp": 1, "pp": 0}
    assert [each.agrees for each in record.witnesses] == [True, False]
    assert to_data(book) == data


def test_causes_and_keys_of_a_newer_release_are_tolerated() -> None:
    act = {"at": 1, "attempt": 2, "action": "restart", "cause": "gremlins", "resume_from": None}
    incident = {"id": "i", "run": "r", "attempt": 1, "cause": "gremlins", "checkpoint": None,
                "culprit": {"rank": 1, "state": "asleep"}, "colour": "red"}  # fmt: skip
    text = json.dumps({"version": 1, "acts": [act], "incidents": [incident], "moon": "full"})
    entry = from_data({"Job.x": text}).of("Job.x")
    assert entry.acts[0].cause is Cause.UNKNOWN and entry.acts[0].spends_budget
    assert entry.incidents[0].cause is Cause.UNKNOWN
    assert entry.incidents[0].culprit is not None and entry.incidents[0].culprit.state is None


@pytest.mark.parametrize(
    "text",
    [
        "[]", "7", "null", "{", "[" * 100_000, '{"version":"x"}', '{"version":1,"acts":7}',
        '{"version":1,"acts":[{}]}', '{"version":1,"acts":[7]}', '{"version":1,"notes":[[]]}',
        '{"version":1,"incidents":[{"id":"i"}]}', '{"version":1,"incidents":[[]]}',
        '{"version":1,"step":{}}', '{"version":1,"step":{"state":"lost"}}',
        '{"version":1,"step":7}',
        '{"version":1,"start":{}}', '{"version":1,"wish":{"id":"x"}}',
    ],
)  # fmt: skip
def test_a_wrong_text_is_kept_as_it_is(text: str) -> None:
    book = from_data({"Job.x": text, "fleet": text})
    assert not book.jobs and book.unread == {"Job.x": text, "fleet": text}


def test_texts_of_a_newer_release_or_of_somebody_else_are_kept_as_they_are() -> None:
    data = {"PyTorchJob.t": '{"version":99}', "notes.txt": "hello", "fleet": "{}"}
    book = from_data(data)
    assert book.jobs == {} and book.halt is None
    assert to_data(book) == data


def test_the_oldest_goes_first_and_what_is_under_way_never() -> None:
    note = LedgerNote(1.0, "me", "x" * 1000, "y")
    jobs = {f"Job.{index}": JobEntry(updated_at=float(index), notes=(note,)) for index in range(20)}
    jobs["Job.0"] = JobEntry(updated_at=0.0, notes=(note,), step=step(10))
    data = to_data(LedgerData(jobs), max_bytes=8_000)
    assert sum(len(key) + len(text) for key, text in data.items()) <= 8_000
    kept = from_data(data).jobs
    assert kept["Job.0"].step == step(10) and "Job.19" in kept and "Job.1" not in kept


def test_three_gangs_of_2048_pods_fit() -> None:
    jobs = {f"PyTorchJob.{index}": JobEntry(step=step(2048)) for index in range(3)}
    assert len(from_data(to_data(LedgerData(jobs))).jobs) == 3


def test_a_step_that_is_done_does_not_hold_its_place() -> None:
    entry = JobEntry(step=step(2048, RestartState.DONE))
    assert not entry.is_under_way
    assert to_data(LedgerData({"Job.x": entry}), max_bytes=1000) == {}


def test_acts_of_a_long_life_are_bounded() -> None:
    entry = JobEntry(acts=(ACT,) * 500)
    assert len(from_data(to_data(LedgerData({"Job.x": entry}))).of("Job.x").acts) == MAX_ACTS
