# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a wrapper says of itself: which attempt it runs, how, and how that ended."""

from __future__ import annotations

from msgspec import Struct


class TrainerEnd(Struct, frozen=True, omit_defaults=True):
    at: float
    code: int | None = None
    signal: str | None = None
    """By name: SIGKILL."""
    reason: str | None = None
    returned: int | None = None
    """What the wrapper itself exits with."""
    asked: bool = False


class WrapperState(Struct, frozen=True, omit_defaults=True):
    attempt: int
    mode: str
    started_at: float
    pid: int | None = None
    host: str | None = None
    node_rank: int | None = None
    nnodes: int | None = None
    changes: tuple[str, ...] = ()
    """What was, or when only observing would have been, changed about the command."""
    resume_from: int | None = None
    resume_reason: str | None = None
    save: str | None = None
    """The checkpoint folder."""
    exit: TrainerEnd | None = None
    is_final: bool = False
    argv: tuple[str, ...] = ()
    """As it was run, without secrets."""
