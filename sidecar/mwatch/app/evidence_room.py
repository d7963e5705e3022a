# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where the controller keeps what it fetched: `DIR/JOB/INCIDENT/POD.tgz`, the newest of each job.

Bounded by their number for each job and by the room of all; what the wrappers have put beside the
checkpoints is not touched. A folder that cannot be removed stays, and is no reason not to act.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mwatch.model.incident import is_incident_id

MAX_OF_A_JOB = 16
MAX_BYTES = 16 << 30


def evidence_folder(root: Path | None, job: str, id: str) -> Path | None:
    """For a new bundle, after old ones have made room; None: nothing is kept here."""
    if root is None:
        return None
    with suppress(OSError):
        prune(root, job)
    return root / job / id


def prune(root: Path, job: str, *, most: int = MAX_OF_A_JOB, max_bytes: int = MAX_BYTES) -> None:
    """The oldest go; names of incidents sort by their time."""
    mine = sorted(_bundles(root / job))
    for folder in mine[: max(0, len(mine) - most + 1)]:
        shutil.rmtree(folder, ignore_errors=True)
    every = sorted(
        (each for place in _folders(root) for each in _bundles(place)), key=lambda path: path.name
    )
    sizes = {folder: _size(folder) for folder in every}
    while every and sum(sizes[each] for each in every) > max_bytes:
        shutil.rmtree(every.pop(0), ignore_errors=True)


def _folders(root: Path) -> Iterator[Path]:
    return (each for each in root.iterdir() if each.is_dir() and not each.is_symlink())


def _bundles(place: Path) -> list[Path]:
    if not place.is_dir():
        return []
    return [each for each in _folders(place) if is_incident_id(each.name)]


def _size(folder: Path) -> int:
    return sum(each.lstat().st_size for each in folder.iterdir())
