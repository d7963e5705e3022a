# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A folder with one folder per incident, limited in number and bytes.

The oldest are removed first: a name begins with its time. Other names are not touched, and no
link is followed.
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
"""Limit of a run's evidence beside the checkpoints: less than a checkpoint of a small model."""
VOLUME_BYTES = 128 << 20  # limit on the volume that the containers of a pod share
_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-a[0-9]{1,9}-[a-z-]{1,40}(?:-[0-9]{1,6})?", re.ASCII)


def is_incident_id(name: str) -> bool:
    return _ID.fullmatch(name) is not None


def beside(save: str) -> str:
    """Return the incidents folder of a run that saves to `save`."""
    return os.path.join(save, FOLDER, INCIDENTS)


def incident_names(root: str) -> list[str]:
    """Return the incidents, oldest first; none if the folder is missing. Raises OSError."""
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
    """Remove the oldest beyond the limits, but not `keep`; return the removed names."""
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
    """Return the size of all files below; a link counts as itself."""
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
