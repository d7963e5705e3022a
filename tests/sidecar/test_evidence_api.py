# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What has changed since a bundle was brought off the pod follows it; storage that hangs holds up
nobody else."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mwatch.evidence.bundle import OffloadResult
from mwatch.evidence.collector import EvidenceCollector, OffPod
from mwatch.evidence.incident_store import IncidentFiles
from mwatch.sidecar.server import EvidenceApi
from mwatch_trainer.evidence.incidents import beside
from support.waiting import PATIENCE, until

ID = "20260105T121314Z-a1-hang"


def nobody(request: Any, seconds: float) -> dict[str, Any]:
    return {"ok": False, "error": "there is no wrapper: no control socket"}


def desk_over(
    volume: Path, asked: Callable[[], None] = lambda: None
) -> tuple[EvidenceCollector, EvidenceApi]:
    save = volume.parent / "save"
    save.mkdir(parents=True)
    off_pod = OffPod(nobody, lambda: save, lambda: True)
    collector = EvidenceCollector(volume, "pod-0", time.time, lambda: 1, off_pod=off_pod)
    files = IncidentFiles(volume / "incidents")
    return collector, EvidenceApi(collector, files, time.time, lambda: 1, asked)


def test_a_record_that_changed_follows_its_evidence(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    collector, _ = desk_over(volume)
    case = collector.want(ID, volume / "incidents" / ID, 1)
    assert case.done.wait(PATIENCE)
    assert case.bundle is not None
    kept = Path(beside(str(tmp_path / "save"))) / ID
    assert case.bundle.stored is not None
    assert case.bundle.stored.folder == str(kept)
    assert not (kept / "incident.json").exists()
    (case.folder / "incident.json").write_text('{"closed": 5}')
    collector.keep_again(case)
    until(lambda: (kept / "incident.json").exists())
    collector.close()


def test_who_asks_is_about_to_decide(tmp_path: Path) -> None:
    """So the save folder is looked into once more."""
    asked: list[bool] = []
    collector, desk = desk_over(tmp_path / "volume", lambda: asked.append(True))
    id = desk.ask("x")
    assert id is not None and asked == [True]
    assert desk.manifest(id, PATIENCE) is not None
    collector.close()


def test_a_list_is_not_made_anew_for_everybody_who_asks(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    collector, desk = desk_over(volume)
    assert desk.listing() == []
    desk._listed_at += 600  # a moment ago, for as long as this test takes
    id = desk.ask("x")
    assert id is not None
    assert desk.manifest(id, PATIENCE) is not None
    assert desk.listing() == []  # as it was a moment ago
    desk._listed_at -= 660
    (listed,) = desk.listing()
    assert (listed["id"], listed["state"]) == (id, "there")
    assert listed["bytes"] > 0
    collector.close()


def test_a_name_that_is_no_incident_leads_nowhere(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    collector, desk = desk_over(volume)
    (volume / "incidents" / "notes").mkdir(parents=True)
    (volume / "incidents" / "notes" / "manifest.json").write_text("{}")
    for id in ("notes", "..", ".", "", "../incidents/notes"):
        assert desk.folder(id) is None
        assert desk.manifest(id, 0.0) is None
    collector.close()


def test_a_copy_that_takes_longer_is_asked_about_again(tmp_path: Path) -> None:
    """Another end of the socket, which is slow at first."""
    states = ["copying", "copying", "kept"]
    asked: list[Any] = []

    def wrapper(request: Any, seconds: float) -> dict[str, Any]:
        if request["op"] != "keep":
            return {"ok": False, "error": "not now"}
        asked.append(request)
        return {"ok": True, "state": states[min(len(asked), 3) - 1], "folder": "/save/x"}

    volume = tmp_path / "volume"
    off_pod = OffPod(wrapper, lambda: None, lambda: True)
    collector = EvidenceCollector(volume, "pod-0", time.time, lambda: 1, off_pod=off_pod)
    case = collector.want(ID, volume / "incidents" / ID, 1)
    assert case.saved.wait(PATIENCE)
    until(lambda: case.bundle is not None and case.bundle.stored == OffloadResult("/save/x"))
    collector.close()
    assert len(asked) == 3
