# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The checkpoint folder: what is really on disk, and which of it is fit to resume from."""

from __future__ import annotations

from dataclasses import dataclass

from sim.curve import Weights


@dataclass(slots=True)
class Saved:
    iteration: int
    weights: Weights
    began_at: float
    written_at: float | None = None
    """None: half written."""
    is_corrupt: bool = False
    """Bytes are wrong; sizes are right, so a look at the files does not show it."""
    line: int = 0
    """The line of history that wrote it; a rollback opens the next one."""

    @property
    def changed_at(self) -> float:
        """As the files show; of one that is half written the newest may be of its first second."""
        return self.began_at if self.written_at is None else self.written_at

    @property
    def is_complete(self) -> bool:
        return self.written_at is not None


class Folder:
    def __init__(self) -> None:
        self.saved: dict[int, Saved] = {}
        self.failed_loads: set[int] = set()
        self.line = 0
        self._rollbacks: list[tuple[int, int]] = []
        """Line of history that began, and the iteration that it began from."""

    def begin(self, weights: Weights, at: float) -> Saved:
        entry = Saved(weights.iteration, weights.copy(), at, line=self.line)
        self.saved[weights.iteration] = entry
        return entry

    def roll_back(self, to_iteration: int) -> None:
        """The next attempt continues from here: what lies above is of an abandoned line."""
        self.line += 1
        self._rollbacks.append((self.line, to_iteration))

    def is_abandoned(self, entry: Saved) -> bool:
        return any(
            entry.line < line and entry.iteration > to_iteration
            for line, to_iteration in self._rollbacks
        )

    def fit(self, before: int | None = None) -> list[int]:
        """Iterations that may be resumed from; `before`: the first bad iteration."""
        return sorted(
            number
            for number, entry in self.saved.items()
            if entry.is_complete
            and number not in self.failed_loads
            and not self.is_abandoned(entry)
            and (before is None or number < before)
        )

    def why_unfit(self, iteration: int, before: int | None) -> str | None:
        """Why this must not be resumed from; None: it may."""
        entry = self.saved.get(iteration)
        if entry is None:
            return "there is no such checkpoint"
        if not entry.is_complete:
            return "it is half written"
        if self.is_abandoned(entry):
            return "it is of an abandoned line"
        if iteration in self.failed_loads:
            return "loading it has failed before"
        if before is not None and iteration >= before:
            return f"it is not older than the first bad iteration {before}"
        return None
