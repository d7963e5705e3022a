# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Records of incidents on storage that may hang: written by a thread that nobody waits for.

A network file system that has lost its server is often why a job stands still; whoever watches
that job must not stand still with it. Of several records of one incident only the newest is
written. What went wrong is raised at the next write.
"""

from __future__ import annotations

import threading
from pathlib import Path

from mwatch.act.incident_files import FILE, IncidentFiles
from mwatch.model.incident import IncidentRecord

_MAX_WAITING = 256


class AsideFiles(IncidentFiles):
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
