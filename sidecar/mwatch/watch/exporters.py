# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where else a watched run is told, besides `/metrics`: OTLP, and notes for TensorBoard.

Both work aside and are told of everything; neither is ever waited for. What they need is imported
only where they are wanted: it is as much memory as all the rest of a sidecar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mwatch.errors import InputError
from mwatch.model.incident import IncidentRecord
from mwatch.model.snapshot.snapshot import Snapshot

if TYPE_CHECKING:
    from mwatch.export.otlp.exporter import Otlp
    from mwatch.export.tensorboard.notes import TensorboardNotes

_CLOSE_SECONDS = 0.5
"""Each: a pod that ends does not wait for a collector."""


class Exporters:
    def __init__(
        self,
        snapshots: Callable[[], Iterable[Snapshot]],
        *,
        otlp_endpoint: str | None = None,
        tensorboard_notes: Path | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """InputError for an endpoint that is none."""
        self._snapshots = snapshots
        self._otlp: Otlp | None = None
        self._notes: TensorboardNotes | None = None
        self._told: dict[str, IncidentRecord] = {}
        if otlp_endpoint is not None:
            from mwatch.export.otlp.exporter import Otlp

            try:
                self._otlp = Otlp(otlp_endpoint, snapshots, attributes=attributes)
            except ValueError as error:
                raise InputError(f"--otlp-endpoint: {error}") from None
            self._otlp.start()
        if tensorboard_notes is not None:
            from mwatch.export.tensorboard.notes import TensorboardNotes

            self._notes = TensorboardNotes(tensorboard_notes)

    def looked(self, records: Sequence[IncidentRecord]) -> None:
        """After each look; `records` are of all incidents that are known."""
        notes = self._notes
        if notes is None:
            return
        for snapshot in self._snapshots():
            notes.update(snapshot)
        for record in records:
            if self._told.get(record.id) is not record:
                notes.incident(record)
        self._told = {record.id: record for record in records}

    def problems(self) -> list[str]:
        """What a person should know; may be told again."""
        found = []
        if self._otlp is not None and self._otlp.problem is not None:
            found.append(f"OTLP: {self._otlp.problem}")
        if self._notes is not None and self._notes.problem is not None:
            found.append(f"TensorBoard: {self._notes.problem}")
        return found

    def dropped(self) -> dict[str, int]:
        """What nobody will ever get, by the way it should have gone."""
        found = {}
        if self._otlp is not None:
            found["otlp"] = self._otlp.dropped
        if self._notes is not None:
            found["tensorboard_notes"] = self._notes.dropped
        return found

    def close(self) -> None:
        if self._otlp is not None:
            self._otlp.close(_CLOSE_SECONDS)
        if self._notes is not None:
            self._notes.close(_CLOSE_SECONDS)
