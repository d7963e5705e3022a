# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the flight recorders of one dump say about each rank, as signs for the engine."""

from __future__ import annotations

from pathlib import Path

from mwatch.app.flight import gather_folder
from mwatch.model.observation import Sign
from mwatch.parse.flight_analysis import signs
from mwatch_trainer import contract


def signs_of(volume: Path, id: str, world_size: int | None = None) -> list[Sign]:
    """Of the dump `id` on the volume; nothing where there is none that can be read.

    `world_size`: of the job, where it is known; a volume may hold the dumps of one pod of many.
    """
    flight = gather_folder(str(volume / contract.DUMPS_FOLDER / id))
    if flight is None or not flight.dumps:
        return []
    return signs(flight.analysis(world_size))
