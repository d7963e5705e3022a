# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the training has begun at all, for a watcher that may be there long before it.

A sidecar is started before the trainer's image is pulled. What it sees meanwhile (a save folder,
idle GPUs, a source that is not there) is no beginning of an attempt, and that time no slow start:
it is held back until the wrapper, the log or a probe speaks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from mwatch.model.observation import Observed, SightChange, Sign, Stored

_EARLY = (SightChange, Sign, Stored)
_MAX_HELD = 256


class FirstSight:
    def __init__(self) -> None:
        self.has_begun = False
        self._held: deque[Observed] = deque(maxlen=_MAX_HELD)

    def let_through(self, seen: Iterable[Observed]) -> list[Observed]:
        """In the order in which it was seen; what was held back is of the moment it is told."""
        new = list(seen)
        if self.has_begun:
            return new
        first = next(filter(_is_beginning, new), None)
        if first is None:
            self._held.extend(new)
            return []
        self.has_begun = True
        held = [each._replace(at=max(each.at, first.at)) for each in self._held]
        self._held.clear()
        return [first, *held, *(each for each in new if each is not first)]


def _is_beginning(observed: Observed) -> bool:
    """A fault without a line is no word of the trainer: a source of the node has told it."""
    return not isinstance(observed.what, _EARLY) and getattr(observed.what, "line", 1) != 0
