# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Megatron's tracker file, changed so that a chosen checkpoint is loaded.

It is replaced in one step, and what it said before is kept in `.mwatch/tracker-before.json`. Only
the owner of the attempt changes it. Megatron takes the *largest* number that any of its ranks
reads there, so every node must see the new one before it starts (`said_by`).
"""

from __future__ import annotations

import os

from mwatch_trainer import contract
from mwatch_trainer.checkpoint import NON_PERSISTENT, TRACKER, read_tracker
from mwatch_trainer.timeline import FOLDER

BEFORE = "tracker-before.json"


def said_by(folder: str) -> str | None:
    """`20`, `release`, or None where there is nothing that Megatron could use."""
    pointer = read_tracker(folder)
    return None if pointer is None else pointer.value


def point_at(folder: str, iteration: int, attempt: int) -> str | None:
    """The tracker names `iteration`. What was done, or None; raises OSError."""
    pointer = read_tracker(folder)
    was = None if pointer is None else pointer.value
    if was == str(iteration):
        return None
    _keep(folder, pointer is not None, was, str(iteration), attempt)
    temporary = os.path.join(folder, FOLDER, f"tracker.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="ascii") as file:
        file.write(str(iteration))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, os.path.join(folder, TRACKER))
    before = "there was none" if pointer is None else f"was {was or 'unreadable'}"
    return f"pointed {TRACKER} at {iteration} ({before}, kept in {FOLDER}/{BEFORE})"


def set_aside(folder: str, attempt: int) -> str | None:
    """Megatron finds no tracker, and so nothing to load. What was done, or None."""
    path = os.path.join(folder, TRACKER)
    if not os.path.lexists(path):
        return None
    aside = os.path.join(folder, FOLDER, f"tracker-aside-{attempt}.txt")
    os.makedirs(os.path.dirname(aside), exist_ok=True)
    os.replace(path, aside)
    return f"moved {TRACKER} to {os.path.relpath(aside, folder)}"


def set_non_persistent_aside(folder: str, attempt: int) -> str | None:
    """Megatron would prefer a newer non-persistent checkpoint to the chosen one."""
    path = os.path.join(folder, NON_PERSISTENT, TRACKER)
    if not os.path.lexists(path):
        return None
    aside = f"{path}.mwatch-{attempt}"
    os.replace(path, aside)
    return f"moved {NON_PERSISTENT}/{TRACKER} to {os.path.basename(aside)}"


def _keep(folder: str, was_there: bool, was: str | None, now: str, attempt: int) -> None:
    beside = os.path.join(folder, FOLDER)
    os.makedirs(beside, exist_ok=True)
    record = {"attempt": attempt, "was_there": was_there, "value": was, "now": now}
    contract.write_json(os.path.join(beside, BEFORE), record)
