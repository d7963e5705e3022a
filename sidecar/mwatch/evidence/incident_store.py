# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The folder of incidents: one folder each, with its record and its evidence, bounded.

`<root>/ID/incident.json` is replaced in one step. When there are too many, or they are too large,
the oldest go, as a whole; the one that was just written stays. Nothing is touched whose name is
not that of an incident.

Records of incidents on storage that may hang: written by a thread that nobody waits for.

A network file system that has lost its server is often why a job stands still; whoever watches
that job must not stand still with it. Of several records of one incident only the newest is
written. What went wrong is raised at the next write.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mwatch.model.incident import IncidentRecord, from_json, is_incident_id, to_json
from mwatch.runtime.files import make_private_folder, write_private
from mwatch_trainer.evidence.incident_dirs import MAX_BYTES, MAX_INCIDENTS, incident_names, prune
from mwatch_trainer.scrub.scrubber import Scrubber

FILE = "incident.json"
_MAX_RECORD_BYTES = 1 << 20


class Incidents(NamedTuple):
    records: tuple[IncidentRecord, ...]
    """The oldest first."""
    broken: tuple[str, ...]
    """Names of those that cannot be read."""


class IncidentFiles:
    def __init__(
        self,
        root: Path,
        *,
        patterns: Sequence[str] = (),
        max_incidents: int = MAX_INCIDENTS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """`root` holds one folder for each incident: `<save>/.mwatch/incidents`, for instance.
        `patterns` are the user's own secrets."""
        self._root = root
        self._patterns = patterns
        self._max_incidents = max_incidents
        self._max_bytes = max_bytes

    def names(self) -> list[str]:
        """Of all that have a folder, the oldest first."""
        return incident_names(str(self._root))

    def folder(self, id: str) -> Path:
        """ValueError for what is no id: it becomes a path."""
        if not is_incident_id(id):
            raise ValueError(f"{id!r} is not the name of an incident")
        return self._root / id

    def write(self, record: IncidentRecord) -> Path:
        """Also of one that was written before. Raises OSError."""
        folder = self.folder(record.id)
        make_private_folder(folder)
        body = self._scrubbed(to_json(record))
        write_private(folder / FILE, json.dumps(body, indent=1).encode() + b"\n")
        self.prune(keep=record.id)
        return folder / FILE

    def read(self) -> Incidents:
        records, broken = [], []
        for name in self.names():
            try:
                with (self._root / name / FILE).open("rb") as file:
                    data = file.read(_MAX_RECORD_BYTES)
                records.append(from_json(json.loads(data)))
            except FileNotFoundError:
                continue  # evidence is saved before the record
            except (OSError, ValueError, RecursionError):
                broken.append(name)
        return Incidents(tuple(records), tuple(broken))

    def prune(self, *, keep: str | None = None) -> None:
        """The oldest beyond the bounds go; one that cannot be removed stays."""
        prune(
            str(self._root),
            keep=keep,
            max_incidents=self._max_incidents,
            max_bytes=self._max_bytes,
        )

    def _scrubbed(self, value: Any) -> Any:
        """Text by text, so that it is the same JSON."""
        if isinstance(value, str):
            return Scrubber(self._patterns).text(value)
        if isinstance(value, dict):
            return {key: self._scrubbed(inner) for key, inner in value.items()}
        return [self._scrubbed(each) for each in value] if isinstance(value, list) else value


_MAX_WAITING = 256


class AsyncIncidentStore(IncidentFiles):
    def __init__(self, root: Path, *, max_incidents: int, max_bytes: int) -> None:
        super().__init__(root, max_incidents=max_incidents, max_bytes=max_bytes)
        self._changed = threading.Condition()
        self._waiting: dict[str, IncidentRecord] = {}
        self._error: OSError | None = None
        self._is_busy = False
        threading.Thread(target=self._work, name="mwatch-records", daemon=True).start()

    def write(self, record: IncidentRecord) -> Path:
        """Never waits. OSError where an earlier one could not be written."""
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
        """Whether all is written within that time."""
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
