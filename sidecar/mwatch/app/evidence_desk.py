# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence for whoever asks over HTTP: a bundle now, the list of those there are, one of them.

One bundle at a time: who asks while one is being made gets that one. A bundle is there when its
manifest is, which is written last.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mwatch.act.incident_files import IncidentFiles
from mwatch.app.evidence_collector import Case, EvidenceCollector
from mwatch.model.incident import bundle_id, is_incident_id
from mwatch_trainer.incident_folders import MANIFEST, folder_bytes

WORD = "asked"
_LIST_SECONDS = 5.0
_MAX_MANIFEST_BYTES = 1 << 20


class EvidenceDesk:
    def __init__(
        self,
        collector: EvidenceCollector,
        files: IncidentFiles,
        now: Callable[[], float],
        running: Callable[[], int],
        asked: Callable[[], None] = lambda: None,
    ) -> None:
        """`running`: the number of the attempt that runs now. `asked`: called when evidence is
        asked for, which is done before something is decided."""
        self._collector = collector
        self._files = files
        self._now = now
        self._running = running
        self._asked = asked
        self._lock = threading.Lock()
        self._case: Case | None = None
        self._listing = threading.Lock()
        self._listed: list[Mapping[str, Any]] = []
        self._listed_at = -_LIST_SECONDS

    def ask(self, reason: str) -> str | None:
        """The id of the bundle that is being made."""
        self._asked()
        with self._lock:
            if self._case is None or self._case.saved.is_set():
                attempt = self._running()
                id = bundle_id(self._now(), attempt, WORD, self._files.names())
                self._files.prune(keep=id)
                folder = self._files.folder(id)
                self._case = self._collector.want(id, folder, attempt, reason)
            return self._case.id

    def manifest(self, id: str, wait_seconds: float) -> Mapping[str, Any] | None:
        with self._lock:
            case = self._case
        if case is not None and case.id == id and not case.saved.wait(wait_seconds):
            return None
        folder = self.folder(id)
        return None if folder is None else _manifest(folder)

    def listing(self) -> list[Mapping[str, Any]]:
        """Names and sizes, the oldest first. Anybody may ask: so not each time anew, and where the
        storage hangs only one waits for it."""
        if self._listing.acquire(blocking=False):
            try:
                if time.monotonic() - self._listed_at >= _LIST_SECONDS:
                    self._listed = [self._about(id) for id in self._files.names()]
                    self._listed_at = time.monotonic()
            finally:
                self._listing.release()
        return self._listed

    def folder(self, id: str) -> Path | None:
        """Of one that is finished."""
        if not is_incident_id(id):
            return None
        folder = self._files.folder(id)
        return folder if (folder / MANIFEST).is_file() else None

    def _about(self, id: str) -> Mapping[str, Any]:
        folder = self._files.folder(id)
        is_there = (folder / MANIFEST).is_file()
        state = "there" if is_there else "not there"
        return {"id": id, "state": state, "bytes": folder_bytes(str(folder))}


def _manifest(folder: Path) -> Mapping[str, Any] | None:
    try:
        with (folder / MANIFEST).open("rb") as file:
            found = json.loads(file.read(_MAX_MANIFEST_BYTES))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
