# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Records of incidents: written whole, read back, bounded, and without secrets."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from mwatch.evidence.incident_store import FILE, IncidentFiles
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision, Witness
from mwatch.model.finding import Culprit, CulpritState, Finding, Severity
from mwatch.model.incident import (
    IncidentRecord,
    IncidentTimes,
    SavedEvidence,
    describe,
    from_json,
    incident_id,
    is_incident_id,
    to_json,
)

AT = 1_767_615_194.0
CULPRIT = Culprit(1, CulpritState.SILENT, {"tp": 1, "pp": 0}, "pod-0", "node-a", "GPU-1", 79)
FINDING = Finding(
    "stalled", Cause.HANG, Severity.CRITICAL, "no progress for 9 s",
    since_time=AT - 9, since_iteration=43, confidence=0.9, culprit=CULPRIT, fingerprint="hang/x",
)  # fmt: skip
DECISION = Decision(
    Action.RESTART, Cause.HANG, 1, "progress is silent", resume_from=40, resume_reason="the newest",
    witnesses=(Witness("process", True, "stopped"), Witness("cpu_time", False, "busy")),
)  # fmt: skip


def record(at: float = AT, **change: object) -> IncidentRecord:
    made = describe(
        incident_id(at, 1, Cause.HANG), "demo", FINDING, DECISION, attempt=1, is_act=True
    )
    made = replace(made, evidence=SavedEvidence("/x", ("a.txt",), ("dump: no answer",)))
    return replace(made, **change)  # type: ignore[arg-type]


def test_a_record_has_what_the_contract_names() -> None:
    body = to_json(record())
    assert body["version"] == 1
    assert (body["cause"], body["confidence"], body["action"]) == ("hang", 0.9, "restart")
    assert body["culprit"] == {
        "rank": 1, "state": "silent", "coordinates": {"tp": 1, "pp": 0}, "pod": "pod-0",
        "node": "node-a", "gpu_uuid": "GPU-1", "xid": 79,
    }  # fmt: skip
    assert [each["name"] for each in body["witnesses"]["for"]] == ["process"]
    assert [each["name"] for each in body["witnesses"]["against"]] == ["cpu_time"]
    assert body["first_bad_iteration"] == 43
    assert body["checkpoint"] == {"iteration": 40, "why": "the newest"}
    assert body["times"]["fault"] == AT - 9
    assert set(body["times"]) == {
        "fault", "detected", "decided", "acted", "first_new_iteration", "closed"
    }  # fmt: skip


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    files = IncidentFiles(tmp_path / "incidents")
    second = record(AT + 5, culprit=None, evidence=None)
    for each in (second, record()):
        path = files.write(each)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert files.read().records == (record(), second)
    assert files.read().broken == ()


def test_the_cost_is_from_the_fault_to_the_first_new_iteration() -> None:
    times = IncidentTimes(
        fault=100.0, detected=105.0, acted=110.0, first_new_iteration=160.0, closed=111.0
    )
    done = record().with_outcome(times, world_size=8, lost_iterations=3)
    assert (done.gpu_seconds, done.lost_iterations) == (480.0, 3)
    open_still = record().with_outcome(
        IncidentTimes(fault=100.0), world_size=8, lost_iterations=None
    )
    assert open_still.gpu_seconds is None
    unknown = record().with_outcome(times, world_size=None, lost_iterations=None)
    assert unknown.gpu_seconds is None


def test_observing_carries_nothing_out() -> None:
    seen = describe("x", "demo", FINDING, DECISION, attempt=1, is_act=False)
    assert (seen.action, seen.is_carried_out) == (Action.RESTART, False)
    assert record().is_carried_out
    assert describe("x", "demo", FINDING, None, attempt=1, is_act=True).action is Action.NONE


def test_ids_sort_by_time_and_do_not_collide() -> None:
    first, later = incident_id(AT, 1, Cause.HANG), incident_id(AT + 3600, 12, Cause.LOST_POD)
    assert first == "20260105T121314Z-a1-hang"
    assert first < later
    second = incident_id(AT, 1, Cause.HANG, taken={first})
    assert second == f"{first}-2"
    assert all(map(is_incident_id, (first, later, second)))


@pytest.mark.parametrize("name", ["", "..", "20260105T121314Z-a1-../x", "notes", "x" * 300])
def test_what_is_no_id_is_no_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not the name"):
        IncidentFiles(tmp_path).folder(name)


def test_the_oldest_go_when_there_are_too_many(tmp_path: Path) -> None:
    files = IncidentFiles(tmp_path, max_incidents=3)
    (tmp_path / "notes").mkdir()
    for number in range(5):
        files.write(record(AT + number))
    assert [each.id for each in files.read().records] == [
        incident_id(AT + number, 1, Cause.HANG) for number in (2, 3, 4)
    ]
    assert (tmp_path / "notes").is_dir()


def test_the_oldest_go_when_they_are_too_large_but_never_the_new_one(tmp_path: Path) -> None:
    files = IncidentFiles(tmp_path, max_bytes=20_000)
    for number in range(3):
        files.write(record(AT + number))
        (files.folder(record(AT + number).id) / "evidence").write_bytes(b"x" * 30_000)
    files.write(record(AT + 2))
    assert [each.id for each in files.read().records] == [record(AT + 2).id]


def test_secrets_are_taken_out_and_it_is_still_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345678"
    monkeypatch.setenv("MWATCH_SCRUB", r"ours-\d+")
    files = IncidentFiles(tmp_path)
    path = files.write(record(summary=f"HF_TOKEN={secret}", reason='it said "ours-123"'))
    text = path.read_text()
    assert secret not in text
    assert "ours-123" not in text
    assert json.loads(text)["cause"] == "hang"


def test_a_broken_record_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    files = IncidentFiles(tmp_path)
    files.write(record())
    for number, text in enumerate(["{", "[]", "{}", '{"id": 1, "run": 2, "attempt": "x"}'], 1):
        broken = tmp_path / incident_id(AT + number, 1, Cause.NAN)
        broken.mkdir()
        (broken / FILE).write_text(text)
    (tmp_path / incident_id(AT + 9, 1, Cause.NAN)).mkdir()
    found = files.read()
    assert [each.id for each in found.records] == [record().id]
    assert len(found.broken) == 4


def test_a_record_of_a_newer_release_can_be_read() -> None:
    body = to_json(record()) | {"version": 9, "cause": "gremlins", "news": 1}
    body["culprit"]["state"] = "haunted"
    found = from_json(body)
    assert found.cause is Cause.UNKNOWN
    assert found.culprit is not None
    assert found.culprit.state is None


def test_a_record_of_the_first_release_can_be_read() -> None:
    path = Path(__file__).parents[1] / "data" / "incident-v1.json"
    assert from_json(json.loads(path.read_bytes())) == record()


def test_no_folder_is_no_incident(tmp_path: Path) -> None:
    assert IncidentFiles(tmp_path / "none").read().records == ()
