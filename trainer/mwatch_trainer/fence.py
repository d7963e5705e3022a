# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a newer attempt has begun on the same checkpoint folder.

Looked at every two seconds, so that the child of an older attempt is stopped before its next
save. What cannot be read says nothing: a file system that is away for a moment stops no training.
"""

from __future__ import annotations

from mwatch_trainer import claim, contract, timeline


class Fence:
    def __init__(self, save: str | None, number: int) -> None:
        self._save = save
        self._number = number

    def is_stale(self) -> str | None:
        """A text: a newer attempt has begun, stop the child now. Cheap, never raises."""
        if self._save is None:
            return None
        try:
            newest = claim.highest(self._save)
        except OSError:
            newest = 0
        document = contract.read_json(timeline.path_of(self._save)) or {}
        told = document.get("attempt")
        if isinstance(told, int) and not isinstance(told, bool):
            newest = max(newest, told)
        if newest <= self._number:
            return None
        return f"attempt {newest} has begun in {self._save}, and this is attempt {self._number}"
