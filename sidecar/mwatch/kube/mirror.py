# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A local copy of the objects of one kind: listed once, then updated by a watch.

Each watch ends after a short time and continues from the same version, so that a copy without
changes is still known to be fresh; 410 means list again. Callers must not act on a stale copy: see
`Mirror.status`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from mwatch import json_codec
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError, Unavailable
from mwatch.kube.resources import ApiResource
from mwatch.model.kube.fields import text

T = TypeVar("T")
WATCH_SECONDS = 10.0
_QUIET_SECONDS = 10.0
_LONGEST_WAIT = 15.0
_ABSENT_SECONDS = 60.0


class MirrorStatus(NamedTuple):
    age_seconds: float | None
    """Since the copy was last known to be up to date; None: never."""
    problem: str
    """Why the objects cannot be read now; empty: they can be."""
    is_known: bool
    """False: the cluster does not have this kind of object."""


class Mirror(Generic[T]):
    def __init__(
        self,
        access: Access,
        resource: ApiResource,
        namespace: str | None,
        read: Callable[[Mapping[str, Any]], T | None],
        *,
        labels: str = "",
        clock: Callable[[], float] = time.monotonic,
        watch_seconds: float = WATCH_SECONDS,
        on_change: Callable[[T | None, T | None], None] | None = None,
    ) -> None:
        """`read`: the part of an object to keep; None: skip the object. `on_change`: called with
        the kept value before and after; not called for an object that vanished between watches."""
        self._access = access
        self._resource = resource
        self._namespace = namespace
        self._read = read
        self._labels = labels
        self._clock = clock
        self._watch_seconds = watch_seconds
        self._on_change = on_change or (lambda before, after: None)
        self._lock = threading.Lock()
        self._objects: dict[str, T] = {}
        self._version: str | None = None
        self._fresh_at: float | None = None
        self._problem = ""
        self._is_known = True
        self.changed = threading.Event()
        """Set at each change; the waiting thread clears it."""
        self.relists = 0

    def objects(self) -> list[T]:
        with self._lock:
            return list(self._objects.values())

    @property
    def status(self) -> MirrorStatus:
        with self._lock:
            age = None if self._fresh_at is None else self._clock() - self._fresh_at
            return MirrorStatus(age, self._problem, self._is_known)

    def follow(self, stop: threading.Event, list_seconds: float | None = None) -> None:
        """Run until `stop`; never raises for a failure of the API server. `list_seconds`: list with
        this period instead of watching, for a kind that the controller may list but not watch."""
        failures = 0
        while not stop.is_set():
            try:
                if list_seconds is None:
                    self.turn(stop)
                else:
                    self._list()
                failures = 0
                wait = (list_seconds or 0.0) if self._is_known else _ABSENT_SECONDS
            except KubeError as error:
                failures += 1
                with self._lock:
                    self._problem = str(error)
                longest = min(_LONGEST_WAIT, 0.5 * 2.0 ** min(failures, 8))
                wait = longest * (0.5 + 0.5 * random.random())
            stop.wait(wait)

    def turn(self, stop: threading.Event | None = None) -> None:
        """List if nothing is known, else watch for a bounded time."""
        if self._version is None:
            self._list()
        else:
            self._watch(self._version, stop)

    def _list(self) -> None:
        began = self._clock()
        listing = self._access.list(self._resource, self._namespace, labels=self._labels)
        found: dict[str, T] = {}
        for body in listing.objects:
            if (kept := self._read(body)) is not None:
                found[text(body, "metadata", "uid")] = kept
        with self._lock:
            for uid, each in found.items():
                self._on_change(self._objects.get(uid), each)
            self._objects = found
            self._version = listing.version if listing.is_known else None
            self._is_known = listing.is_known
            self._fresh_at, self._problem = began, ""
        self.relists += 1
        self.changed.set()

    def _watch(self, version: str, stop: threading.Event | None) -> None:
        seconds = self._watch_seconds
        query: dict[str, Any] = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": max(1, round(seconds)),
        }
        if self._labels:
            query["labelSelector"] = self._labels
        path = self._resource.path(self._namespace)
        for line in self._access.stream(path, query, seconds + _QUIET_SECONDS):
            if not self._apply(_parsed(line)) or (stop is not None and stop.is_set()):
                return
        # The watch ended as requested, so it has reported every change so far.
        with self._lock:
            self._fresh_at, self._problem = self._clock(), ""

    def _apply(self, change: Mapping[str, Any]) -> bool:
        """False: this watch is over, and the objects must be listed again."""
        kind, body = str(change.get("type")), change.get("object") or {}
        if kind == "ERROR":
            code = body.get("code")
            with self._lock:
                self._version = None
            if code not in (404, 410):
                raise Unavailable(f"a watch ended with an error: {body.get('message') or code}")
            return False
        with self._lock:
            self._version = text(body, "metadata", "resourceVersion") or self._version
            if kind != "BOOKMARK":
                self._keep(kind, body)
            self._fresh_at, self._problem = self._clock(), ""
        if kind != "BOOKMARK":
            self.changed.set()
        return True

    def _keep(self, kind: str, body: Mapping[str, Any]) -> None:
        uid = text(body, "metadata", "uid")
        kept = None if kind == "DELETED" else self._read(self._resource.typed(body))
        self._on_change(self._objects.get(uid), kept)
        if kept is None:
            self._objects.pop(uid, None)
        else:
            self._objects[uid] = kept


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        found = json_codec.decode(line)
    except ValueError:
        raise Unavailable("the API server sent invalid JSON on a watch") from None
    return found if isinstance(found, dict) else {}
