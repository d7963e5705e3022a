# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How far a conversion is: a line on standard error every few seconds.

The share of the input is of plain files alone: how long a packed one is inside is not known.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

from mwatch_gpt.unfinished import State


class Screen:
    def __init__(self, inputs: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._inputs = inputs
        self._clock = clock
        self._started = clock()
        self._first: State | None = None

    def show(self, state: State) -> None:
        print(self.line(state), file=sys.stderr, flush=True)

    def line(self, state: State) -> str:
        self._first = self._first or state
        seconds = max(self._clock() - self._started, 1e-3)
        done = state.documents - self._first.documents if state is not self._first else 0
        speed = f", {done / seconds:.0f} documents/s" if done else ""
        place = state.place
        where = f"{self._inputs[place.file]}:{place.line}"
        counts = f"{state.documents} documents, {state.tokens} tokens{speed}"
        return f"{counts}; at {where}{self._share(state)}"

    def _share(self, state: State) -> str:
        """Of the bytes, where they can be counted."""
        try:
            sizes = [os.path.getsize(path) for path in self._inputs]
        except OSError:
            return ""
        if any(path.endswith((".gz", ".zst")) for path in self._inputs) or not sum(sizes):
            return f" (file {state.place.file + 1} of {len(sizes)})"
        read = sum(sizes[: state.place.file]) + state.place.offset
        return f" ({read / sum(sizes):.1%})"
