# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Recordings of torch's flight recorder, and the result of comparing those of several ranks.

A recording is one rank's own view: which operations it has enqueued, and which it knows to be
complete. It does not show why a rank has not enqueued an operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from mwatch.model.observation import SignState


class Operation(NamedTuple):
    """One call of a collective, a send or a receive, as one rank recorded it."""

    record: int  # its position in the rank's own order
    group: str  # name of the process group, the same for all members
    number: int  # counted in the group: the same on all members for a collective, not for a send
    kind: str  # `all_reduce`, `send`, `coalesced`, …: without the library's name
    peer: tuple[int, int] | None  # from and to, as positions in the group; None for a collective
    shape: str  # sizes and types of its tensors as text; equal texts are equal shapes
    is_done: bool
    may_have_failed: bool  # complete, but the library (gloo) does not record whether it succeeded
    is_started: bool
    at: float | None  # when it was enqueued: seconds since 1970, by the rank's clock
    timeout_seconds: float | None

    @property
    def is_p2p(self) -> bool:
        return self.peer is not None


class GroupSeen(NamedTuple):
    """A process group as one rank knows it."""

    name: str
    description: str
    ranks: tuple[int, ...] | None
    """Global ranks in the order of the group; None: not recorded (gloo)."""
    first: int  # number of the oldest collective still in the recording; 0: none
    last: int  # number of the newest
    has_p2p: bool


class Dump(NamedTuple):
    rank: int
    version: str
    groups: Mapping[str, GroupSeen]
    operations: tuple[Operation, ...]  # the newest, and all incomplete ones; oldest first
    has_wrapped: bool  # older operations were overwritten

    @property
    def last_at(self) -> float | None:
        return max((each.at for each in self.operations if each.at is not None), default=None)


class Attendance(NamedTuple):
    """Which ranks answered a request for their stacks and recording."""

    answered: frozenset[int] = frozenset()
    """Alive, also without a recording: it takes longer than the stacks."""
    unanswered: frozenset[int] | None = None
    """Asked without an answer. None: unknown, so a rank without a dump may be elsewhere."""


class BlamedRank(NamedTuple):
    """A rank that others wait for and that itself waits for none."""

    rank: int
    state: SignState  # NEVER_JOINED, STUCK, OUT_OF_STEP; STOPPED: it left no dump
    text: str
    waiting: int  # ranks that wait for it, directly or not
    confidence: float
    coordinates: Mapping[str, int] = MappingProxyType({})
    """Its coordinates in the parallel groups (`tp`, `pp`, `dp`, …), if recorded."""


class RankPlace(NamedTuple):
    rank: int
    state: SignState  # STUCK: it waits in an operation. UNKNOWN: it waits in none, or left no dump.
    text: str


class GroupPlace(NamedTuple):
    """A process group in which a rank waits."""

    name: str
    description: str
    ranks: tuple[int, ...]
    state: SignState  # NEVER_JOINED, STUCK, OUT_OF_STEP, ALL_EQUAL, or UNKNOWN if dumps are missing
    text: str


class Analysis(NamedTuple):
    state: SignState  # state of the first blamed rank; without one: ALL_EQUAL, MOVING or UNKNOWN
    summary: str
    confidence: float
    blamed: tuple[BlamedRank, ...]
    """Most likely first; several if they cannot be distinguished or are waited for independently.
    """
    chain: tuple[str, ...]
    """The chain of waits as text, from a waiting rank to the first blamed one."""
    chain_ranks: tuple[int, ...]
    ranks: Mapping[int, RankPlace]
    groups: tuple[GroupPlace, ...]
    missing: tuple[int, ...]  # ranks that exist and left no readable dump
    since: float | None  # when the first waiting rank began to wait
    last_at: float | None  # the newest time in any recording
    notes: tuple[str, ...] = ()
