# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Names that are not ours, such as those of losses and runs, as they may go out.

Without secrets, and without bytes that are no UTF-8: those would make all of a scrape or a request
one that cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from mwatch_trainer.scrub import Scrubber

_MAX_NAMES = 8192


def cleaner(patterns: Sequence[str]) -> Callable[[str], str]:
    """`patterns` are the user's own secrets. Remembers what it was asked: the same few thousand
    names go out again and again."""

    @lru_cache(_MAX_NAMES)
    def clean(name: str) -> str:
        return Scrubber(patterns).text(name).encode("utf-8", "replace").decode()

    return clean
