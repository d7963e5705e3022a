# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Iteration lines that follow each other and look alike, as columns.

A run prints millions of them; who takes them a column at a time needs a quarter of what single
events cost. Each line is still there as an event, for whoever has to look at one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mwatch.model.event import Iteration


@dataclass(frozen=True, slots=True)
class StepLines:
    events: Sequence[Iteration]
    """The same lines, one by one; none is the first of its process."""
    steady: Iteration
    """What all lines share. Of the fields that have columns here it tells nothing."""
    iterations: Sequence[int]
    """Each larger than the one before by what the line covers."""
    covers: Sequence[int]
    numbers: Sequence[int]
    """Of the lines in the file; there may be more than there are lines here."""
    stamps: Sequence[str] | None
    losses: Mapping[str, Sequence[float]]
    varying: Mapping[str, Sequence[float]]
    """By field of `Iteration`: the values that are not the same in all lines."""

    def __len__(self) -> int:
        return len(self.iterations)

    def column(self, field: str) -> Sequence[float] | None:
        """None: these lines do not print it."""
        values = self.varying.get(field)
        if values is not None:
            return values
        value = getattr(self.steady, field)
        return None if value is None else [value] * len(self)


class PlacedLines(NamedTuple):
    """With the moment of each line; moments never step back."""

    stream: str
    ats: Sequence[float]
    lines: StepLines
