# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A folder that holds one folder for each incident, bounded in number and bytes.

The oldest go first, as a whole: a name begins with its time. Nothing is touched whose name is not
that of an incident, and no link is followed.
"""

from __future__ import annotations

import os
import re
import shutil
import stat

from mwatch_trainer.checkpoint.timeline import FOLDER

INCIDENTS = "incidents"
MANIFEST = "manifest.json"
MAX_INCIDENTS = 64
MAX_BYTES = 1 << 30
"""Beside the checkpoints, of all evidence of a run: less than one checkpoint of a small model."""
VOLUME_BYTES = 128 << 20
"""On the volume that the containers of a pod share."""
_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-a[0-9]{1,9}-[a-z-]{1,40}(?:-[0-9]{1,6})?", re.ASCII)


def is_incident_id(name: str) -> bool:
    return _ID.fullmatch(name) is not None


def beside(save: str) -> str:
    """Where the incidents of a run lie that saves there."""
    return os.path.join(save, FOLDER, INCIDENTS)


def incident_names(root: str) -> list[str]:
    """The oldest first. Raises OSError, but not where there is no such folder."""
    try:
        return sorted(filter(is_incident_id, os.listdir(root)))
    except FileNotFoundError:
        return []


def prune(
    root: str,
    *,
    keep: str | None = None,
    max_incidents: int = MAX_INCIDENTS,
    max_bytes: int = MAX_BYTES,
) -> list[str]:
    """The oldest beyond the bounds go; one that cannot be removed stays. Returns what went."""
    names = [each for each in incident_names(root) if _is_folder(os.path.join(root, each))]
    sizes = {name: folder_bytes(os.path.join(root, name)) for name in names}
    total, count = sum(sizes.values()), len(names)
    gone = []
    for name in names:
        if count <= max_incidents and total <= max_bytes:
            break
        if name == keep:
            continue
        shutil.rmtree(os.path.join(root, name), ignore_errors=True)
        gone.append(name)
        total, count = total - sizes[name], count - 1
    return gone


def folder_bytes(folder: str) -> int:
    """Of all that lies below it; links count as links."""
    total = 0
    for above, _, files in os.walk(folder):
        for file in files:
            try:
                total += os.lstat(os.path.join(above, file)).st_size
            except OSError:
                continue
    return total


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
