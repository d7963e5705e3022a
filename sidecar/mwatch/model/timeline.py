# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The line of history that is being continued, and which checkpoints belong to it.

After a rollback from 600 to 400 the old 500 and 600 are of an abandoned line: they are there,
complete, and never to be loaded again. A new 500 written after the rollback is another matter,
so a checkpoint is told apart by when it was written. Kept as `<save>/.mwatch/timeline.json`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_ROLLBACKS = 64


class Rollback(NamedTuple):
    at: float
    to_iteration: int
    """0: back to the beginning."""
    first_bad: int | None
    """The iteration that the bad sign was first seen at; None: a person's wish."""
    reason: str


@dataclass(slots=True)
class Timeline:
    rollbacks: deque[Rollback] = field(default_factory=lambda: deque(maxlen=MAX_ROLLBACKS))
    attempt: int = 0
    """The fencing token: the number of the newest attempt."""

    def is_abandoned(self, iteration: int, written_at: float | None) -> bool:
        """A checkpoint of unknown age above a rollback's point counts as abandoned."""
        return any(
            iteration > rollback.to_iteration and (written_at is None or written_at <= rollback.at)
            for rollback in self.rollbacks
        )
