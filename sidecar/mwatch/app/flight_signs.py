# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the flight recorders of one dump say about each rank, as signs for the engine."""

from __future__ import annotations

import time
from pathlib import Path

from mwatch.app.flight import Flight, gather_folder
from mwatch.model.observation import Sign
from mwatch.parse.flight_analysis import signs
from mwatch.sources.flight_dumps import attendance
from mwatch_trainer import contract

_WAIT_SECONDS = 6.0
_LOOK_SECONDS = 0.2
"""A rank writes its stacks at once; its recording may take a few seconds longer."""


def signs_of(
    volume: Path, id: str, world_size: int | None = None, wait_seconds: float = _WAIT_SECONDS
) -> list[Sign]:
    """Of the dump `id` on the volume; nothing where there is none that can be read.

    `world_size`: of the job, where it is known; a volume may hold the dumps of one pod of many.
    """
    folder = str(volume / contract.DUMPS_FOLDER / id)
    began = time.monotonic()
    flight = gather_folder(folder)
    while time.monotonic() - began < _patience(folder, flight, wait_seconds):
        time.sleep(_LOOK_SECONDS)
        flight = gather_folder(folder)
    if flight is None or not flight.dumps:
        return []
    return signs(flight.analysis(world_size))


def _patience(folder: str, flight: Flight | None, wait_seconds: float) -> float:
    """How long to wait for who answered and has left no recording; where nobody has left one,
    none may ever come."""
    there = {} if flight is None else flight.dumps
    if attendance(folder).answered <= there.keys():
        return 0.0
    return wait_seconds if there else wait_seconds / 2
