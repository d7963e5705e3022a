# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A copy of some objects, kept up to date by a watch: list once, then follow what changes.

A watch is asked to end after a short while and is taken up again from where it was, so that a
copy that nothing changes is still known to be fresh. 410 means list again. `age` says how old
the sight is: nobody may act on an old one. What is kept of an object is what `read` makes of it.
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
from mwatch.kube.listing import list_all
from mwatch.kube.resources import ApiResource

T = TypeVar("T")
WATCH_SECONDS = 10.0
_QUIET_SECONDS = 10.0
_LONGEST_WAIT = 15.0
_ABSENT_SECONDS = 60.0


class MirrorStatus(NamedTuple):
    """How well the copy can be trusted."""

    age_seconds: float | None
    """Since it was last known to be up to date; None: never."""
    problem: str
    """Why it cannot be read now; empty: it can."""
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
        told: Callable[[T | None, T | None], None] | None = None,
    ) -> None:
        """`read` None: not to be kept. `told`: of each change, what was kept before it and what
        is now; of what went while nobody watched it is told nothing."""
        self._access = access
        self._resource = resource
        self._namespace = namespace
        self._read = read
        self._labels = labels
        self._clock = clock
        self._watch_seconds = watch_seconds
        self._told = told
        self._lock = threading.Lock()
        self._objects: dict[str, T] = {}
        self._version: str | None = None
        self._fresh_at: float | None = None
        self._problem = ""
        self._is_known = True
        self.changed = threading.Event()
        """Set with each change; whoever waits for it clears it."""
        self.relists = 0

    def objects(self) -> list[T]:
        """As of now; the list is the caller's own."""
        with self._lock:
            return list(self._objects.values())

    @property
    def sight(self) -> MirrorStatus:
        with self._lock:
            age = None if self._fresh_at is None else self._clock() - self._fresh_at
            return MirrorStatus(age, self._problem, self._is_known)

    def follow(self, stop: threading.Event) -> None:
        """In a thread of its own, until `stop`; never raises for what the API server does."""
        failures = 0
        while not stop.is_set():
            try:
                self.turn(stop)
                failures = 0
                if not self._is_known:
                    stop.wait(_ABSENT_SECONDS)
            except KubeError as error:
                failures += 1
                with self._lock:
                    self._problem = str(error)
                longest = min(_LONGEST_WAIT, 0.5 * 2.0 ** min(failures, 8))
                stop.wait(longest * (0.5 + 0.5 * random.random()))

    def follow_by_lists(self, stop: threading.Event, seconds: float) -> None:
        """As `follow`, where we may list and not watch: as old as `seconds` at most."""
        while not stop.is_set():
            try:
                self._list()
                stop.wait(seconds if self._is_known else _ABSENT_SECONDS)
            except KubeError as error:
                with self._lock:
                    self._problem = str(error)
                stop.wait(_LONGEST_WAIT)

    def turn(self, stop: threading.Event | None = None) -> None:
        """List where nothing is known, else one watch: a bounded time."""
        if self._version is None:
            self._list()
        else:
            self._watch(self._version, stop)

    def _list(self) -> None:
        began = self._clock()
        listing = list_all(self._access, self._resource, self._namespace, labels=self._labels)
        found: dict[str, T] = {}
        for body in listing.objects if listing is not None else ():
            if (made := self._read(body)) is not None:
                found[_uid(body)] = made
        with self._lock:
            if self._told is not None:
                for uid, each in found.items():
                    self._told(self._objects.get(uid), each)
            self._objects = found
            self._version = listing.version if listing is not None else None
            self._is_known = listing is not None
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
            if not self._took(_parsed(line)) or (stop is not None and stop.is_set()):
                return
        # It ended as it was asked to: what did not come by then had not happened.
        self._is_fresh()

    def _took(self, changes: Mapping[str, Any]) -> bool:
        """False: this watch is over, and the list has to be read again."""
        kind, body = str(changes.get("type")), changes.get("object") or {}
        if kind == "ERROR":
            code = body.get("code")
            with self._lock:
                self._version = None
            if code not in (404, 410):
                raise Unavailable(f"a watch ended with an error: {body.get('message') or code}")
            return False
        with self._lock:
            self._version = str(
                (body.get("metadata") or {}).get("resourceVersion") or self._version
            )
            self._keep(kind, body)
        self._is_fresh()
        if kind != "BOOKMARK":
            self.changed.set()
        return True

    def _keep(self, kind: str, body: Mapping[str, Any]) -> None:
        if kind == "BOOKMARK":
            return
        made = None if kind == "DELETED" else self._read(self._whole(body))
        if self._told is not None:
            self._told(self._objects.get(_uid(body)), made)
        if made is None:
            self._objects.pop(_uid(body), None)
        else:
            self._objects[_uid(body)] = made

    def _whole(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"apiVersion": self._resource.api_version, "kind": self._resource.kind, **body}

    def _is_fresh(self) -> None:
        with self._lock:
            self._fresh_at, self._problem = self._clock(), ""


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        found = json_codec.decode(line)
    except ValueError:
        raise Unavailable("the API server sent invalid JSON on a watch") from None
    return found if isinstance(found, dict) else {}


def _uid(body: Mapping[str, Any]) -> str:
    return str((body.get("metadata") or {}).get("uid", ""))
