# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Other ways out of a watched run: told of everything, waited for by nobody."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mwatch.errors import InputError
from mwatch.model.incident import IncidentRecord, from_json
from mwatch.model.snapshot.snapshot import Snapshot
from mwatch.watch.metrics import Exporters
from support.builders.snapshot import busy_snapshot
from support.waiting import until

OLD = Path(__file__).resolve().parents[1] / "data" / "incident-v1.json"


def newest() -> list[Snapshot]:
    return [busy_snapshot()]


def record() -> IncidentRecord:
    return from_json(json.loads(OLD.read_text("utf-8")))


def event_files(folder: Path) -> list[Path]:
    return [each for each in folder.rglob("*tfevents*") if each.stat().st_size]


def test_without_a_request_there_is_nothing() -> None:
    out = Exporters(newest)
    out.update([record()])
    assert (out.problems(), out.dropped()) == ([], {})
    out.close()


def test_an_incident_becomes_a_note_for_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mwatch.watch.metrics._CLOSE_SECONDS", 60.0)
    out = Exporters(newest, tensorboard_notes=tmp_path)
    one = record()
    out.update([one])
    out.update([one])
    out.update([replace(one, confidence=0.99)])
    out.close()
    written = until(lambda: event_files(tmp_path))
    assert any(one.id.encode() in each.read_bytes() for each in written)
    assert out.dropped() == {"tensorboard_notes": 0}


def test_a_collector_that_is_away_holds_nobody() -> None:
    began = time.monotonic()
    out = Exporters(newest, otlp_endpoint="http://127.0.0.1:9")
    out.update([])
    out.close()
    assert time.monotonic() - began < 40
    assert "otlp" in out.dropped()


def test_an_endpoint_that_is_none_is_refused_by_the_name_of_its_flag() -> None:
    with pytest.raises(InputError, match="--otlp-endpoint"):
        Exporters(newest, otlp_endpoint="ftp://x")
