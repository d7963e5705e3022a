# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The fleet breaker: so many gang restarts at a time, the others wait in a line.

Pure. It counts what its caller tells; a restart that a person does by hand it cannot know.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple


class Waiting(NamedTuple):
    key: str
    due_at: float
    is_asked: bool = False
    """By a person, who does not wait in the line; but those after do wait for it."""


class Admitted(NamedTuple):
    now: tuple[str, ...]
    line: tuple[str, ...]
    """The first of them is next."""


def admit(waiting: Iterable[Waiting], busy: Collection[str], most: int) -> Admitted:
    order = sorted(waiting, key=lambda each: (not each.is_asked, each.due_at, each.key))
    asked = [each.key for each in order if each.is_asked]
    others = [each.key for each in order if not each.is_asked]
    free = max(0, most - len(set(busy) | set(asked)))
    return Admitted((*asked, *others[:free]), tuple(others[free:]))
