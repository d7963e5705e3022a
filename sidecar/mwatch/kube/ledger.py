# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The ledger: one ConfigMap by name, changed only from the version that was read.

Two writers (a controller, a person's command) cannot undo each other's words: who comes second
reads again and makes its change anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mwatch.kube.access import Access
from mwatch.kube.answer import Outcome
from mwatch.kube.errors import KubeError, Unavailable
from mwatch.kube.resources import CONFIG_MAPS
from mwatch.model.kube_fields import text, words
from mwatch.model.kube_ledger import Book, from_data, to_data

NAME = "mwatch-ledger"
_TRIES = 8


class Ledger:
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
        if any(each.is_under_way and key not in data for key, each in book.jobs.items()):
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
        return answer.outcome is Outcome.OK
