# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A fault of ours about one job keeps the hands from no other: it is raised at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class HandFaults:
    def __init__(self) -> None:
        self._first: Exception | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._first = self._first or error

    def raised(self) -> None:
        """The first of this turn, for whoever tells of it."""
        error, self._first = self._first, None
        if error is not None:
            raise error
