# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a source answers: a value, nothing to be had here, or a failure. Never an empty value
for one of the latter two: unknown is not zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, slots=True)
class Ok(Generic[T]):
    value: T


@dataclass(frozen=True, slots=True)
class Absent:
    """There is nothing of the kind here, and that is no fault: no GPU, no folder yet."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """It should be there and could not be read."""

    error: str


Reading = Ok[T] | Absent | Failed
