# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Events on a job: what `kubectl describe` shows of mwatch's doings.

The same words about the same job are one Event with a count. How many go out is bounded for each
job: ten at once, then one in half a minute. An Event is news, not a record: what cannot be
written is dropped and counted.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError
from mwatch.kube.resources import EVENTS, OF_KIND
from mwatch.model.kube.job import KubeJob
from mwatch_trainer.scrub.scrubber import scrub_text

COMPONENT = "mwatch"
_MAX_TEXT = 1000
_MAX_KNOWN = 512
_BURST = 10.0
_PER_SECOND = 1 / 30.0


class _Known(NamedTuple):
    name: str
    times: int


class Events:
    def __init__(
        self,
        access: Access,
        instance: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`instance`: which process speaks."""
        self._access = access
        self._instance = instance
        self._clock = clock
        self._wall = wall
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()
        self.dropped = 0

    def tell(self, job: KubeJob, reason: str, text: str, *, is_warning: bool = False) -> bool:
        """From any thread. False: dropped. Never raises for what the API server does."""
        text = scrub_text(text)[:_MAX_TEXT]
        digest = hashlib.sha256(f"{job.uid} {reason} {text} {self._instance}".encode()).hexdigest()
        if not self._may(job.uid):
            self.dropped += 1
            return False
        try:
            with self._lock:
                known = self._known.get(digest)
            is_sent = self._again(job, known) if known is not None else False
            if not is_sent:
                is_sent = self._create(job, reason, text, is_warning, digest)
        except KubeError:
            is_sent = False
        self.dropped += not is_sent
        return is_sent

    def _create(self, job: KubeJob, reason: str, text: str, is_warning: bool, digest: str) -> bool:
        name = f"{job.name[:200]}.{digest[:16]}"
        body = _event(job, reason, text, is_warning, name, self._now(), self._instance)
        self._access.create(EVENTS, job.namespace, body)  # a conflict: a retry of our own
        with self._lock:
            self._known[digest] = _Known(name, 1)
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return True

    def _again(self, job: KubeJob, known: _Known) -> bool:
        """False: it is forgotten by now, and has to be told anew."""
        body = {"count": known.times + 1, "lastTimestamp": self._now()}
        answer = self._access.patch(EVENTS, job.namespace, known.name, body)
        with self._lock:
            for digest, each in self._known.items():
                if each.name == known.name:
                    self._known[digest] = _Known(known.name, known.times + 1)
                    break
        return answer.is_ok

    def _may(self, uid: str) -> bool:
        now = self._clock()
        with self._lock:
            left, at = self._left.pop(uid, (_BURST, now))
            left = min(_BURST, left + (now - at) * _PER_SECOND)
            self._left[uid] = (max(0.0, left - 1.0) if left >= 1.0 else left, now)
            while len(self._left) > _MAX_KNOWN:
                self._left.popitem(last=False)
        return left >= 1.0

    def _now(self) -> str:
        return datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _event(job: KubeJob, reason: str, text: str, is_warning: bool, name: str, now: str,
           instance: str) -> dict[str, Any]:  # fmt: skip
    about = OF_KIND[job.kind]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": job.namespace},
        "involvedObject": {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
        },
        "reason": reason,
        "message": text,
        "type": "Warning" if is_warning else "Normal",
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": instance[:128],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
