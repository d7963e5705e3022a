# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The ledger: one ConfigMap by name, changed only from the version that was read.

Two writers (a controller, a person's command) cannot undo each other's changes: the second one
reads again and makes its change anew. `LedgerClient` keeps the newest book at hand and changes the
entry of one job, from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from mwatch.kube.access import Access
from mwatch.kube.answer import CallOutcome
from mwatch.kube.errors import KubeError, Unavailable
from mwatch.kube.resources import CONFIG_MAPS
from mwatch.model.kube.fields import text, words
from mwatch.model.kube.ledger import Book, JobEntry, from_data, to_data

NAME = "mwatch-ledger"
_TRIES = 8


class LedgerStore:
    def __init__(self, access: Access, namespace: str, name: str = NAME) -> None:
        self._access = access
        self._namespace = namespace
        self._name = name
        self.errors = 0
        """Reads and changes that came to nothing, by the cluster's fault."""

    def read(self) -> Book:
        """An empty one where there is none yet."""
        with self._counted():
            return self._read()[0]

    def change(self, change: Callable[[Book], Book]) -> Book:
        """As it is written. `change` may be called several times, each time with what is there;
        what it raises leaves the ledger as it was."""
        with self._counted():
            for _ in range(_TRIES):
                book, version = self._read()
                wanted = change(book)
                if wanted == book and version is not None:
                    return book
                if self._write(wanted, version):
                    return wanted
            raise Unavailable(f"ConfigMap {self._name} changes faster than it can be written")

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except KubeError:
            self.errors += 1
            raise

    def _read(self) -> tuple[Book, str | None]:
        """With its version; None: it is not there."""
        answer = self._access.get(CONFIG_MAPS, self._namespace, self._name)
        if not answer.is_ok:
            return Book(), None
        return from_data(words(answer.body, "data")), text(
            answer.body, "metadata", "resourceVersion"
        )

    def _write(self, book: Book, version: str | None) -> bool:
        data = to_data(book)
        if any(each.must_finish and key not in data for key, each in book.jobs.items()):
            raise Unavailable(f"ConfigMap {self._name} is full of restarts that are under way")
        about = {"name": self._name, "namespace": self._namespace}
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": about if version is None else {**about, "resourceVersion": version},
            "data": data,
        }
        if version is None:
            answer = self._access.create(CONFIG_MAPS, self._namespace, body)
        else:
            answer = self._access.replace(CONFIG_MAPS, self._namespace, self._name, body)
        return answer.outcome is CallOutcome.OK


def same_job(entry: JobEntry, uid: str) -> JobEntry:
    """A job that was made anew under the same name starts anew here too."""
    return entry if entry.uid in ("", uid) else JobEntry(uid=uid)


class LedgerClient:
    def __init__(self, ledger: LedgerStore, clock: Callable[[], float]) -> None:
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
        of another job of that name: a late change of the old one has no effect."""
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
