# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The table of metrics over OTLP: what `/metrics` shows, sent to whoever collects it.

Two threads, so that neither the loop nor the next sample ever waits for a server: one takes the
newest snapshot of each run about every 15 seconds into a short queue, the other sends. A server
that is away is tried again after a pause that doubles; meanwhile the oldest samples are dropped,
and counted. A request that the server refuses for what it is, is dropped at once. OpenTelemetry's
exporter costs about 12 MiB: its packages are imported by the thread that sends, and only there.

It cannot know what the server does with a sample that it has taken.
"""

from __future__ import annotations

import os
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from mwatch.export.metrics.outgoing import cleaner
from mwatch.export.otlp.names import SendOutcome
from mwatch.model.snapshot.snapshot import Snapshot
from mwatch_trainer.scrub.scrubber import scrub_text

if TYPE_CHECKING:
    from mwatch.export.otlp.points import Points
    from mwatch.export.otlp.send import Sender


_LAST_SECONDS = 0.2
_PATH = "/v1/metrics"
_GRPC_PORT = 4317
_GRPC_HINT = " (port 4317 is that of gRPC; OTLP over HTTP is at 4318)"
_INSTALL = "pip install opentelemetry-exporter-otlp-proto-http"


def address(endpoint: str, environ: Mapping[str, str]) -> str:
    """`/v1/metrics` is added, as to OTEL_EXPORTER_OTLP_ENDPOINT; an address that is for metrics
    alone is taken as it is, and goes before the one for all."""
    own = environ.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") or None
    if own is not None and endpoint in (own, environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")):
        return own
    bare = endpoint.rstrip("/")
    return bare if bare.endswith(_PATH) else bare + _PATH


class SendSchedule(NamedTuple):
    period_seconds: float = 15.0
    """Between two samples."""
    limit_seconds: float = 10.0
    """Of one request, from the connection to the answer."""
    first_pause_seconds: float = 1.0
    last_pause_seconds: float = 60.0
    max_queued: int = 64
    """Samples: about a quarter of an hour of one run."""


class Otlp:
    def __init__(
        self,
        endpoint: str,
        snapshots: Callable[[], Iterable[Snapshot]],
        *,
        attributes: Mapping[str, str] | None = None,
        patterns: Sequence[str] = (),
        pace: SendSchedule | None = None,
    ) -> None:
        """`endpoint`: where OTLP is taken over HTTP, such as `http://collector:4318`.

        `attributes` are of the resource, such as `k8s.pod.name`; `patterns` the user's own secrets.
        ValueError where the endpoint is none.
        """
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{scrub_text(endpoint, patterns)!r} is not an http(s) address")
        self._endpoint = address(endpoint, os.environ)
        self._hint = _GRPC_HINT if parts.port == _GRPC_PORT else ""
        self._snapshots = snapshots
        self._attributes = dict(attributes or {})
        self._patterns = tuple(patterns)
        self._pace = pace or SendSchedule()
        self._queue: deque[Snapshot] = deque()
        self._changed = threading.Condition()
        self._is_complete = False
        """Nothing more comes into the queue."""
        self._closing = threading.Event()
        self._sender: Sender | None = None
        self._problem: str | None = None
        self._threads = [
            threading.Thread(target=target, name=f"mwatch-otlp-{name}", daemon=True)
            for name, target in (("sample", self._sample), ("send", self._send))
        ]
        self.sent = 0
        self.failures = 0
        """Requests that were not taken."""
        self.dropped = 0
        """Samples that nobody will ever get."""

    @property
    def problem(self) -> str | None:
        """Why something was last not taken, in one line and without secrets."""
        sender = self._sender
        text = self._problem or (None if sender is None else sender.problem)
        if text is None and self._is_broken:
            text = "a thread of ours has ended by a fault"
        if text is None:
            return None
        return scrub_text(" ".join(text.split()), self._patterns) + self._hint

    @property
    def _is_broken(self) -> bool:
        """By a fault that nobody foresaw, in the exporter or in ours."""
        is_started = self._threads[0].ident is not None
        has_ended = any(not thread.is_alive() for thread in self._threads)
        return is_started and has_ended and not self._closing.is_set()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self, seconds: float = 3.0) -> None:
        """Sends what there is, and the newest, for at most so long. It may have to be left undone:
        then it is counted as dropped."""
        self._closing.set()
        sends = self._threads[1]
        if not sends.is_alive():
            return
        sends.join(seconds)
        if self._sender is not None:
            self._sender.close()
            sends.join(_LAST_SECONDS)
        with self._changed:
            self.dropped += len(self._queue)
            self._queue.clear()

    def _sample(self) -> None:
        # Pods of one job start together: they need not all send together.
        is_last = self._closing.wait(self._pace.period_seconds * random.random())
        while True:
            for snapshot in self._snapshots():
                self._put(snapshot)
            if is_last:
                break
            is_last = self._closing.wait(self._pace.period_seconds)
        with self._changed:
            self._is_complete = True
            self._changed.notify_all()

    def _put(self, snapshot: Snapshot) -> None:
        with self._changed:
            if len(self._queue) >= self._pace.max_queued:
                self._queue.popleft()
                self.dropped += 1
            self._queue.append(snapshot)
            self._changed.notify_all()

    def _put_back(self, snapshot: Snapshot) -> None:
        with self._changed:
            if len(self._queue) >= self._pace.max_queued:
                self.dropped += 1  # it is the oldest
            else:
                self._queue.appendleft(snapshot)

    def _take(self) -> Snapshot | None:
        """Waits for one; None: none will come any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_complete)
            return self._queue.popleft() if self._queue else None

    def _send(self) -> None:
        opened = self._open()
        if opened is None:
            self._closing.set()
            return
        points, sender = opened
        pause = self._pace.first_pause_seconds
        while (snapshot := self._take()) is not None:
            points.keep({each.run for each in self._snapshots()} | {snapshot.run})
            outcome = sender.send(points.data(snapshot))
            if outcome is SendOutcome.TAKEN:
                self.sent += 1
                pause = self._pace.first_pause_seconds
                continue
            self.failures += 1
            if outcome is SendOutcome.REFUSED:
                self.dropped += 1
                continue
            self._put_back(snapshot)
            if self._closing.is_set():
                return
            self._closing.wait(pause * (0.5 + random.random()))
            pause = min(2 * pause, self._pace.last_pause_seconds)

    def _open(self) -> tuple[Points, Sender] | None:
        try:
            from mwatch.export.otlp.points import Points
            from mwatch.export.otlp.send import Sender

            self._sender = Sender(self._endpoint, self._pace.limit_seconds)
            points = Points(self._attributes, cleaner(self._patterns))
        except ImportError as error:
            self._problem = f"{error}; {_INSTALL}"
            return None
        except (OSError, ValueError, RuntimeError) as error:
            self._problem = f"cannot be sent: {error}"
            return None
        return points, self._sender
