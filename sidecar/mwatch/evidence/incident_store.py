# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Stores incidents: one folder each, with its record and its evidence, bounded in number and size.

`<root>/ID/incident.json` is replaced atomically. The oldest incidents are removed, each with its
whole folder; the one just written is kept. Files with other names are never touched.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple

from mwatch import json_codec
from mwatch.model.incident import IncidentRecord, from_json, is_incident_id, to_json
from mwatch.runtime.files import make_private_folder, write_private
from mwatch_trainer.evidence.incidents import MAX_BYTES, MAX_INCIDENTS, incident_names, prune

FILE = "incident.json"
_MAX_RECORD_BYTES = 1 << 20


class Incidents(NamedTuple):
    records: tuple[IncidentRecord, ...]
    broken: tuple[str, ...]


class IncidentFiles:
    def __init__(
        self,
        root: Path,
        *,
        max_incidents: int = MAX_INCIDENTS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """`root`: folder of all incidents, such as `<save>/.mwatch/incidents`."""
        self._root = root
        self._max_incidents = max_incidents
        self._max_bytes = max_bytes

    def names(self) -> list[str]:
        """List the incidents that have a folder, oldest first."""
        return incident_names(str(self._root))

    def folder(self, id: str) -> Path:
        """Return the folder of an incident. ValueError if `id`, part of the path, is invalid."""
        if not is_incident_id(id):
            raise ValueError(f"{id!r} is not the name of an incident")
        return self._root / id

    def write(self, record: IncidentRecord) -> Path:
        folder = self.folder(record.id)
        make_private_folder(folder)
        body = json_codec.encode_scrubbed(to_json(record), indent=1)
        write_private(folder / FILE, body + b"\n")
        self.prune(keep=record.id)
        return folder / FILE

    def read(self) -> Incidents:
        records, broken = [], []
        for name in self.names():
            try:
                with (self._root / name / FILE).open("rb") as file:
                    data = file.read(_MAX_RECORD_BYTES)
                records.append(from_json(json_codec.decode(data)))
            except FileNotFoundError:
                continue  # its evidence is saved before its record
            except (OSError, ValueError):
                broken.append(name)
        return Incidents(tuple(records), tuple(broken))

    def prune(self, *, keep: str | None = None) -> None:
        bounds = {"max_incidents": self._max_incidents, "max_bytes": self._max_bytes}
        prune(str(self._root), keep=keep, **bounds)


_MAX_WAITING = 256


class AsyncIncidentStore(IncidentFiles):
    """Writes records in a thread, because storage may hang: often the reason why a job is stuck.

    If several records of one incident are queued, only the newest is written.
    """

    def __init__(self, root: Path, *, max_incidents: int, max_bytes: int) -> None:
        super().__init__(root, max_incidents=max_incidents, max_bytes=max_bytes)
        self._changed = threading.Condition()
        self._waiting: dict[str, IncidentRecord] = {}
        self._error: OSError | None = None
        self._is_busy = False
        threading.Thread(target=self._work, name="mwatch-records", daemon=True).start()

    def write(self, record: IncidentRecord) -> Path:
        """Queue a record; OSError if an earlier one could not be written."""
        path = self.folder(record.id) / FILE
        with self._changed:
            if len(self._waiting) < _MAX_WAITING or record.id in self._waiting:
                self._waiting[record.id] = record
            self._changed.notify_all()
            error, self._error = self._error, None
        if error is not None:
            raise error
        return path

    def drain(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(self._is_idle, seconds)

    def _is_idle(self) -> bool:
        return not self._waiting and not self._is_busy

    def _work(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                record = self._waiting.pop(next(iter(self._waiting)))
                self._is_busy = True
            try:
                super().write(record)
            except OSError as error:
                self._error = error
