# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What torch's flight recorder holds, and what comparing the recordings of several ranks says.

A recording is one rank's own view: which operations it has handed over, and which of them it
knows to be over. Why a rank has not handed one over is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from mwatch.model.observation import SignState


class Operation(NamedTuple):
    """One call of a collective, or of a send or receive, as one rank recorded it."""

    record: int  # Its place in the rank's own order
    group: str  # The name of the process group, which its members share
    number: int  # Counted in the group: the same on all members for a collective, not for a send
    kind: str  # `all_reduce`, `send`, `coalesced`, …: without the library's name
    peer: tuple[int, int] | None
    """Of a send or receive: from and to, as places in the group. None for a collective."""
    shape: str  # Sizes and types of its tensors, in words; two equal texts are equal shapes
    is_done: bool
    may_have_failed: bool  # It is over, and the library (gloo) does not record whether it went well
    is_started: bool
    at: float | None  # When it was handed over: seconds since 1970, by the rank's clock
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
    first: int  # The number of the oldest collective that is still in the recording; 0: none is
    last: int  # Of the newest
    has_p2p: bool


class Dump(NamedTuple):
    """The recording of one rank."""

    rank: int
    version: str
    groups: Mapping[str, GroupSeen]
    operations: tuple[Operation, ...]
    """The newest ones, and every one that is not over; oldest first."""
    has_wrapped: bool  # Older operations have been overwritten

    @property
    def last_at(self) -> float | None:
        return max((each.at for each in self.operations if each.at is not None), default=None)


class Attendance(NamedTuple):
    """Whether ranks answered when they were asked for their stacks and their recording."""

    answered: frozenset[int] = frozenset()
    """They live, also where their recording has not come: it takes longer than the stacks."""
    unanswered: frozenset[int] | None = None
    """Asked in vain. None: nobody has told, so whoever left no dump may be elsewhere."""


class BlamedRank(NamedTuple):
    """A rank that others wait for, and which waits for nobody itself."""

    rank: int
    state: SignState  # NEVER_JOINED, STUCK, OUT_OF_STEP; STOPPED: it left no dump
    text: str
    waiting: int  # How many ranks wait for it, at whatever distance
    confidence: float
    coordinates: Mapping[str, int] = MappingProxyType({})
    """Its places in the parallel groups (`tp`, `pp`, `dp`, …), where the recordings tell."""


class RankPlace(NamedTuple):
    """Where one rank stands."""

    rank: int
    state: SignState  # STUCK: it waits in an operation. UNKNOWN: it waits in none, or left no dump.
    text: str
    waits_for: tuple[int, ...]


class GroupPlace(NamedTuple):
    """One process group in which somebody waits."""

    name: str
    description: str
    ranks: tuple[int, ...]
    state: SignState
    """NEVER_JOINED, STUCK, OUT_OF_STEP, ALL_EQUAL, or UNKNOWN where dumps are missing."""
    text: str


class Analysis(NamedTuple):
    state: SignState
    """Of the job: that of the first blamed; ALL_EQUAL, MOVING, or UNKNOWN where nobody is."""
    summary: str
    confidence: float
    blamed: tuple[BlamedRank, ...]
    """The one to blame first; more than one only where they cannot be told apart or where
    several ranks are waited for independently."""
    chain: tuple[str, ...]
    """Who waits for whom, in words, from somebody who waits to the first blamed."""
    chain_ranks: tuple[int, ...]
    ranks: Mapping[int, RankPlace]
    groups: tuple[GroupPlace, ...]
    missing: tuple[int, ...]  # Ranks that are known to exist and left no dump that can be read
    since: float | None  # When the first of those who wait began to wait
    last_at: float | None  # The newest moment that any recording knows
    notes: tuple[str, ...] = ()
