# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a wrapper says of itself: which attempt it runs, how, and how that ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainerEnd:
    code: int | None
    signal: str | None
    """By name: SIGKILL."""
    reason: str | None
    returned: int | None
    """What the wrapper itself exits with."""
    at: float
    asked: bool


@dataclass(frozen=True, slots=True)
class WrapperState:
    attempt: int
    mode: str
    started_at: float
    pid: int | None
    host: str | None
    node_rank: int | None
    nnodes: int | None
    changes: tuple[str, ...]
    """What was, or when only observing would have been, changed about the command."""
    resume_from: int | None
    resume_reason: str | None
    save: str | None
    """The checkpoint folder."""
    exit: TrainerEnd | None
    is_final: bool
    argv: tuple[str, ...] = ()
    """As it was run, without secrets."""
