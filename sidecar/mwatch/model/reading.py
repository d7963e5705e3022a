# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The result of reading a source: a value, nothing to read here, or a failure. The latter two are
never represented by an empty value, because unknown is not zero.
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
    """There is nothing to read, which is not a fault: for example no GPU, or no folder yet."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    error: str


Reading = Ok[T] | Absent | Failed
