# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The ledger of restarts: one ConfigMap by name, replaced only from the version that was read.

Two writers (a controller, a person's command) cannot undo each other's changes: the second one
reads again and repeats its change. The newest content is cached. Safe to use from any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from mwatch.kube.access import Access, CallOutcome
from mwatch.kube.errors import KubeError, Rejected, Unavailable
from mwatch.kube.resources import CONFIG_MAPS
from mwatch.model.kube.fields import text, text_map
from mwatch.model.kube.ledger import JobEntry, LedgerData, from_data, to_data

NAME = "mwatch-ledger"
_TRIES = 8


def same_job(entry: JobEntry, uid: str) -> JobEntry:
    """The entry, or an empty one if it belongs to an earlier job of the same name."""
    return entry if entry.uid in ("", uid) else JobEntry(uid=uid)


class Ledger:
    def __init__(
        self, access: Access, namespace: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._access = access
        self._namespace = namespace
        self._clock = clock
        self.book: LedgerData | None = None
        """As last read or written; None: never."""
        self.read_at: float | None = None
        self.errors = 0
        """Reads and changes that failed because of the cluster."""

    def read(self) -> LedgerData:
        """Empty if there is no ledger yet. KubeError if it cannot be read."""
        with self._refreshed() as began:
            return self._keep(self._read()[0], began)

    def change(self, change: Callable[[LedgerData], LedgerData]) -> LedgerData:
        """Return the ledger as written. `change` is called again if another writer was faster; an
        exception from it leaves the ledger unchanged."""
        with self._refreshed() as began:
            for _ in range(_TRIES):
                book, version = self._read()
                wanted = change(book)
                if (wanted == book and version is not None) or self._write(wanted, version):
                    return self._keep(wanted, began)
            raise Unavailable(f"ConfigMap {NAME} changes faster than it can be written")

    def change_entry(self, key: str, uid: str, change: Callable[[JobEntry], JobEntry]) -> JobEntry:
        """Return the entry as written. A change without effect does not replace the entry of
        another job of that name: a late change of the old job is ignored."""
        now = self._clock()

        def changed(book: LedgerData) -> LedgerData:
            before = same_job(book.of(key), uid)
            after = change(before)
            if after in (before, book.of(key)):
                return book
            return book.with_job(key, replace(after, uid=uid, updated_at=now))

        return same_job(self.change(changed).of(key), uid)

    def entry(self, key: str, uid: str) -> JobEntry:
        book = self.book
        return JobEntry(uid=uid) if book is None else same_job(book.of(key), uid)

    @contextmanager
    def _refreshed(self) -> Iterator[float]:
        try:
            yield self._clock()
        except KubeError:
            self.errors += 1
            raise

    def _keep(self, book: LedgerData, began: float) -> LedgerData:
        # A slow read must not replace a later one.
        if self.read_at is None or began >= self.read_at:
            self.book, self.read_at = book, began
        return book

    def _read(self) -> tuple[LedgerData, str | None]:
        """The content and its version; version None: there is no ledger."""
        answer = self._access.get(CONFIG_MAPS, self._namespace, NAME)
        if not answer.is_ok:
            return LedgerData(), None
        version = text(answer.body, "metadata", "resourceVersion")
        return from_data(text_map(answer.body, "data")), version

    def _write(self, book: LedgerData, version: str | None) -> bool:
        data = to_data(book)
        if any(each.must_finish and key not in data for key, each in book.jobs.items()):
            raise Unavailable(f"ConfigMap {NAME} is full of restarts that are under way")
        about = {"name": NAME, "namespace": self._namespace}
        if version is None:
            body = {"metadata": about, "data": data}
            answer = self._access.create(CONFIG_MAPS, self._namespace, body)
            if answer.outcome is CallOutcome.MISSING:
                raise Rejected(f"ConfigMap {NAME} cannot be created: {answer.text}")
            return answer.is_ok
        body = {"metadata": {**about, "resourceVersion": version}, "data": data}
        return self._access.replace(CONFIG_MAPS, self._namespace, NAME, body).is_ok
