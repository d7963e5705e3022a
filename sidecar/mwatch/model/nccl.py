# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The communicators of a job, as NCCL's own RAS service told of them at one moment.

RAS counts what each rank has *begun*, of five collectives (no send, receive or all-to-all). So
equal counts are no proof of health, and unequal ones are usual while a job moves. A rank is
numbered inside its communicator: only in one of the size of the world that is the global rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Nccl(NamedTuple):
    communicators: int
    missing_ranks: int
    """That no longer answer to RAS."""
    mismatched: int
    """Communicators whose ranks have been at different counts for longer than a moment."""
    operations: int | None
    """Collectives that the slowest rank of each communicator has begun, summed; None: not told
    in this form of the answer."""


class MissingRank(NamedTuple):
    rank: int
    process: str | None
    """Host, pid and GPU, by which a process is found again in another communicator."""
    is_dead: bool
    """RAS has given it up, which it does after a minute, and never takes back."""


class Communicator(NamedTuple):
    hash: str
    size: int
    begun: Mapping[int, int]
    """Rank to collectives begun. From text, where only a difference is printed, the sum is of
    the kinds that differ; empty where none does."""
    processes: Mapping[int, str]
    missing: tuple[MissingRank, ...]
    missing_count: int
    """Also of those that are not named."""
    is_settled: bool
    """No rank is still entering or already leaving it."""


class RasAnswer(NamedTuple):
    version: str | None
    communicators: int
    told: tuple[Communicator, ...]
    """All of them; from text, those with something to say."""
    gpus: int | None
    """Of the whole job, where the answer has it."""
    nodes: int | None
    counts_all: bool
    """Whether the counts of every communicator are told."""
