# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The ledger as the hands use it: the newest book at hand, changes of one job, from any thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mwatch.kube.ledger import Ledger
from mwatch.model.kube_ledger import Book, JobEntry


def same_job(entry: JobEntry, uid: str) -> JobEntry:
    """A job that was made anew under the same name starts anew here too."""
    return entry if entry.uid in ("", uid) else JobEntry(uid=uid)


class HandLedger:
    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        self.ledger = ledger
        self._clock = clock
        self.book: Book | None = None
        """As it was last seen; None: never."""
        self.read_at: float | None = None

    def refresh(self) -> Book:
        """KubeError where it cannot be read."""
        began = self._clock()
        book = self.ledger.read()
        self._keep(book, began)
        return book

    def change(self, key: str, uid: str, change: Callable[[JobEntry], JobEntry]) -> JobEntry:
        """The entry as it is written. What changes nothing does not take the place of the entry
        of another job of that name: who comes late about the old one has nothing to say."""
        now = self._clock()

        def changed(book: Book) -> Book:
            before = same_job(book.of(key), uid)
            after = change(before)
            if after in (before, book.of(key)):
                return book
            return book.with_job(key, replace(after, uid=uid, updated_at=now))

        book = self.ledger.change(changed)
        self._keep(book, now)
        return same_job(book.of(key), uid)

    def change_book(self, change: Callable[[Book], Book]) -> Book:
        began = self._clock()
        book = self.ledger.change(change)
        self._keep(book, began)
        return book

    def entry(self, key: str, uid: str) -> JobEntry:
        """As it was last seen."""
        book = self.book
        return JobEntry(uid=uid) if book is None else same_job(book.of(key), uid)

    def ours(self, key: str, uid: str) -> frozenset[str]:
        return self.entry(key, uid).ours

    def _keep(self, book: Book, began: float) -> None:
        # A slow read must not take the place of a later one.
        if self.read_at is None or began >= self.read_at:
            self.book, self.read_at = book, began
