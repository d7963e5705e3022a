# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The words of a preparation: what it is told, and what it answers."""

from __future__ import annotations

import time
from typing import Callable, NamedTuple

from mwatch_trainer import contract


class Clock(NamedTuple):
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


REAL_TIME = Clock()


class Options(NamedTuple):
    mode: str = contract.OBSERVE
    directory: str | None = None
    """`$MWATCH_DIR`; None where there is no volume."""
    wait_seconds: float = 600.0
    """The longest wait for the job's other wrappers, and again for a chosen checkpoint to be seen
    here: a caching file system may show each of three files two minutes late."""
    controller_seconds: float = 60.0
    """The longest wait for the controller. Then the job goes on without it."""
    with_probe: bool = True


class Plan(NamedTuple):
    number: int
    argv: tuple[str, ...]
    """To be run; in observe byte-equal to what was given."""
    env: dict[str, str]
    """The whole environment of the child."""
    changes: tuple[str, ...] = ()
    """What was changed; in observe, what would have been."""
    resume_from: int | None = None
    resume_reason: str = ""
    save: str | None = None
    not_before: float | None = None
    """Wall time; the start waits for it."""
    refused: str | None = None
    """Why this wrapper must not start; then `exit_code` is what it exits with."""
    exit_code: int | None = None
    node_rank: int = 0
    nnodes: int = 1
    is_permanent: bool = False
    """With `refused`: no other start will do better (`final` in attempt.json)."""
