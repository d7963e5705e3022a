# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A bounded queue between two threads that drops and counts the oldest item instead of blocking."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class DropQueue(Generic[T]):
    def __init__(self, max_items: int) -> None:
        self._max = max_items
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self.dropped = 0

    def put(self, item: T) -> None:
        with self._changed:
            if self._is_closed:
                self.dropped += 1
                return
            if len(self._items) >= self._max:
                self._items.popleft()
                self.dropped += 1
            self._items.append(item)
            self._changed.notify_all()

    def put_back(self, item: T) -> None:
        """Put back an item that was taken, as the oldest; drop it if the queue is full."""
        with self._changed:
            if len(self._items) >= self._max:
                self.dropped += 1
            else:
                self._items.appendleft(item)

    def take(self) -> T | None:
        """Wait for the oldest item and remove it; None if the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._is_closed)
            return self._items.popleft() if self._items else None

    def take_rest(self) -> list[T]:
        """Remove and return all queued items."""
        with self._changed:
            found = list(self._items)
            self._items.clear()
            return found

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def drop_all(self) -> None:
        with self._changed:
            self.dropped += len(self._items)
            self._items.clear()
