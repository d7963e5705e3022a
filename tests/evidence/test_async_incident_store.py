# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Records of incidents on storage that may hang: nobody waits for it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mwatch.evidence.incident_store import AsyncIncidentStore
from mwatch.model.incident import IncidentRecord, from_json
from support.waiting import until

OLD = Path(__file__).resolve().parents[1] / "data" / "incident-v1.json"


def record() -> IncidentRecord:
    return from_json(json.loads(OLD.read_text("utf-8")))


def files(root: Path) -> AsyncIncidentStore:
    return AsyncIncidentStore(root, max_incidents=4, max_bytes=1 << 20)


def test_a_record_is_written_aside_and_the_newest_stays(tmp_path: Path) -> None:
    one = files(tmp_path)
    for confidence in (0.1, 0.5, 0.9):
        path = one.write(replace(record(), confidence=confidence))
    assert one.drain(60)
    assert json.loads(path.read_text())["confidence"] == 0.9


def test_storage_that_hangs_holds_nobody(tmp_path: Path) -> None:
    """A pipe that nobody reads stands for a server that is gone."""
    one = files(tmp_path)
    folder = one.folder(record().id)
    folder.mkdir()
    pipe = folder / f".incident.json.{os.getpid()}.tmp"
    os.mkfifo(pipe)
    began = time.monotonic()
    for _ in range(1000):
        one.write(record())
    assert time.monotonic() - began < 40
    assert not one.drain(0.05)
    descriptor = os.open(pipe, os.O_RDONLY)  # the server is back
    assert until(lambda: one.drain(0.05))
    os.close(descriptor)


def test_what_could_not_be_written_is_reported_at_the_next(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    one = files(tmp_path / "file")
    one.write(record())
    assert one.drain(60)
    with pytest.raises(OSError):
        one.write(record())
