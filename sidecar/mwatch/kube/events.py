# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Events on a job, as `kubectl describe` shows them.

The same text about the same job is one Event with a count. The rate is bounded for each job: a
burst of ten, then one every half minute. An Event that cannot be written is dropped and counted.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

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


class Events:
    def __init__(
        self,
        access: Access,
        instance: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._access = access
        self._instance = instance
        self._clock = clock
        self._wall = wall
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()
        self.dropped = 0

    def emit(self, job: KubeJob, reason: str, text: str, *, is_warning: bool = False) -> bool:
        """Write an Event; from any thread. False: it was dropped. Never raises for a failure of the
        API server."""
        text = scrub_text(text)[:_MAX_TEXT]
        digest = hashlib.sha256(f"{job.uid} {reason} {text} {self._instance}".encode()).hexdigest()
        is_sent = False
        if self._may(job.uid):
            try:
                self._send(job, reason, text, is_warning, digest)
                is_sent = True
            except KubeError:
                pass
        self.dropped += not is_sent
        return is_sent

    def _send(self, job: KubeJob, reason: str, text: str, is_warning: bool, digest: str) -> None:
        name, now = (
            f"{job.name[:200]}.{digest[:16]}",
            f"{datetime.fromtimestamp(self._wall(), UTC):%Y-%m-%dT%H:%M:%SZ}",
        )
        with self._lock:
            count = self._counts.get(digest, 0) + 1
        if count > 1:
            body = {"count": count, "lastTimestamp": now}
            if not self._access.patch(EVENTS, job.namespace, name, body).is_ok:
                count = 1  # the API server keeps Events for an hour
        if count == 1:  # a conflict comes from our own retry
            event = _event(job, reason, text, is_warning, name, now, self._instance)
            self._access.create(EVENTS, job.namespace, event)
        with self._lock:
            self._counts[digest] = count
            while len(self._counts) > _MAX_KNOWN:
                self._counts.popitem(last=False)

    def _may(self, uid: str) -> bool:
        now = self._clock()
        with self._lock:
            left, at = self._left.pop(uid, (_BURST, now))
            left = min(_BURST, left + (now - at) * _PER_SECOND)
            self._left[uid] = (max(0.0, left - 1.0) if left >= 1.0 else left, now)
            while len(self._left) > _MAX_KNOWN:
                self._left.popitem(last=False)
        return left >= 1.0


def _event(job: KubeJob, reason: str, text: str, is_warning: bool, name: str, now: str,
           instance: str) -> dict[str, Any]:  # fmt: skip
    about = {"namespace": job.namespace, "name": job.name, "uid": job.uid}
    return {
        "metadata": {"name": name, "namespace": job.namespace},
        "involvedObject": OF_KIND[job.kind].typed(about),
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
