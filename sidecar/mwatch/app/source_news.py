# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Sources that are lost and found, as sentences for people: each change once.

One that was never there is not lost. A change counts once it has lasted for a moment: a file that
is replaced while it is read is no news.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mwatch.sources.sighted import Sighted

_LASTING_SECONDS = 3.0


class SourceNews:
    def __init__(self) -> None:
        self._told: dict[str, bool] = {}
        self._since: dict[str, float] = {}

    def of(self, sources: Iterable[Sighted], now: float) -> Iterator[str]:
        for each in sources:
            name, is_up = each.name, each.is_up
            if is_up is self._told.get(name, False):
                self._since.pop(name, None)
                continue
            since = self._since.setdefault(name, now)
            if not is_up and now - since < _LASTING_SECONDS:
                continue
            self._told[name] = is_up
            del self._since[name]
            yield f"source {name}: {'found' if is_up else f'lost: {each.reason}'}"
