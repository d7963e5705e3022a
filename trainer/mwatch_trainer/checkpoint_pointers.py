# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the trainer itself would load: Megatron's tracker file, Composer's `latest` links.

A hint, no proof: the tracker may be written before all shards are, and a link may lead nowhere.
"""

from __future__ import annotations

import os
import re
from typing import Mapping, NamedTuple

from mwatch_trainer.checkpoint_files import read_bounded, said

TRACKER = "latest_checkpointed_iteration.txt"
_MAX_TRACKER_BYTES = 256  # Megatron writes up to 20
_LATEST = re.compile(r"latest(-sharded)?-rank[0-9]{1,7}(\.[\w.]+)?", re.ASCII)
MAX_POINTERS = 100


class Pointer(NamedTuple):
    """What the trainer itself would load."""

    file: str
    value: str | None
    """`20`, `release`, or where a link of Composer leads; None where it cannot be read."""
    checkpoint: str | None
    """The name of the checkpoint in this folder that it means; None where there is none."""
    problem: str | None


def read_tracker(folder: str) -> Pointer | None:
    """What Megatron's tracker says; None where there is none."""
    try:
        text = read_bounded(os.path.join(folder, TRACKER), _MAX_TRACKER_BYTES).decode("ascii")
    except FileNotFoundError:
        return None
    except OSError as error:
        return Pointer(TRACKER, None, None, f"cannot be read: {said(error)}")
    except UnicodeDecodeError:
        return Pointer(TRACKER, None, None, "holds no number and no `release`")
    value = text.strip()
    if not value:
        return Pointer(TRACKER, None, None, "is empty")
    if value == "release":
        return Pointer(TRACKER, value, None, None)
    if re.fullmatch(r"[0-9]{1,18}", value, re.ASCII):
        return Pointer(TRACKER, str(int(value)), None, None)
    return Pointer(TRACKER, None, None, f"holds {value[:40]!a}, no number")


def find_pointers(folder: str, names: list[str], meant: Mapping[str, str]) -> tuple[Pointer, ...]:
    """`meant`: by the name of a file or folder, the checkpoint that it belongs to."""
    found = []
    tracker = read_tracker(folder)
    if tracker:
        value = tracker.value
        name = f"iter_{int(value):07d}" if value and value.isdigit() else str(value)
        found.append(tracker._replace(checkpoint=meant.get(name)))
    for name in names:
        if _LATEST.fullmatch(name) and len(found) <= MAX_POINTERS:
            found.append(_link(folder, name, meant))
    return tuple(found)


def _link(folder: str, name: str, meant: Mapping[str, str]) -> Pointer:
    try:
        target = os.readlink(os.path.join(folder, name))
    except OSError:
        return Pointer(name, None, None, "is no link")
    # Not resolved further: what a link in the target's own path leads to is another folder.
    inside = os.path.relpath(os.path.join(folder, target), folder)
    return Pointer(name, target, meant.get(inside), None)
