# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Sends the metrics of each run over OTLP, without ever blocking the main loop.

One thread puts the newest snapshot of each run into a short queue about every 15 seconds, another
sends. If the server is unreachable, the sender retries with exponential backoff, and the oldest
samples are dropped and counted. A sample that the server rejects is dropped without a retry.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from mwatch.export.drop_queue import DropQueue
from mwatch.model.snapshot.snapshot import Snapshot
from mwatch_trainer.scrub.scrubber import scrub_text

if TYPE_CHECKING:
    from mwatch.export.otlp.send import Points, Sender

_LAST_SECONDS = 0.2
_PATH = "/v1/metrics"
_GRPC_PORT = 4317
_GRPC_HINT = " (port 4317 is for gRPC; OTLP over HTTP uses 4318)"
_INSTALL = "pip install opentelemetry-exporter-otlp-proto-http"


def address(endpoint: str, environ: Mapping[str, str]) -> str:
    """Add `/v1/metrics`, as the SDK does to OTEL_EXPORTER_OTLP_ENDPOINT; an endpoint only for
    metrics is used unchanged and takes precedence."""
    own = environ.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") or None
    if own is not None and endpoint in (own, environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")):
        return own
    bare = endpoint.rstrip("/")
    return bare if bare.endswith(_PATH) else bare + _PATH


class SendOutcome(Enum):
    TAKEN = "taken"
    LATER = "later"
    REFUSED = "refused"


class SendSchedule(NamedTuple):
    period_seconds: float = 15.0
    limit_seconds: float = 10.0
    first_pause_seconds: float = 1.0
    last_pause_seconds: float = 60.0
    max_queued: int = 64
    """Maximum queued samples: about a quarter of an hour of one run."""


class Otlp:
    def __init__(
        self,
        endpoint: str,
        snapshots: Callable[[], Iterable[Snapshot]],
        *,
        attributes: Mapping[str, str] | None = None,
        pace: SendSchedule | None = None,
    ) -> None:
        """`endpoint`: such as `http://collector:4318`; ValueError if it is not an http(s) address.
        `attributes`: resource attributes, such as `k8s.pod.name`."""
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{scrub_text(endpoint)!r} is not an http(s) address")
        self._endpoint = address(endpoint, os.environ)
        self._hint = _GRPC_HINT if parts.port == _GRPC_PORT else ""
        self._snapshots = snapshots
        self._attributes = dict(attributes or {})
        self._pace = pace or SendSchedule()
        self._queue: DropQueue[Snapshot] = DropQueue(self._pace.max_queued)
        self._closing = threading.Event()
        self._sender: Sender | None = None
        self._problem: str | None = None
        self._threads = [
            threading.Thread(target=target, name=f"mwatch-otlp-{name}", daemon=True)
            for name, target in (("sample", self._sample), ("send", self._send))
        ]
        self.sent = 0
        self.failures = 0

    @property
    def dropped(self) -> int:
        return self._queue.dropped

    @property
    def problem(self) -> str | None:
        """Why the last request failed, in one line and without secrets."""
        sender = self._sender
        text = self._problem or (None if sender is None else sender.problem)
        if text is None and self._is_broken:
            text = "an exporter thread ended with an internal error"
        if text is None:
            return None
        return scrub_text(" ".join(text.split())) + self._hint

    @property
    def _is_broken(self) -> bool:
        is_started = self._threads[0].ident is not None
        has_ended = any(not thread.is_alive() for thread in self._threads)
        return is_started and has_ended and not self._closing.is_set()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self, seconds: float = 3.0) -> None:
        """Send the queue and the newest sample, for up to `seconds`; count the rest as dropped."""
        self._closing.set()
        sends = self._threads[1]
        if not sends.is_alive():
            return
        sends.join(seconds)
        if self._sender is not None:
            self._sender.close()
            sends.join(_LAST_SECONDS)
        self._queue.drop_all()

    def _sample(self) -> None:
        # Pods of one job start together, but should not all send at the same time.
        is_last = self._closing.wait(self._pace.period_seconds * random.random())
        while True:
            for snapshot in self._snapshots():
                self._queue.put(snapshot)
            if is_last:
                break
            is_last = self._closing.wait(self._pace.period_seconds)
        self._queue.close()

    def _send(self) -> None:
        opened = self._open()
        if opened is None:
            self._closing.set()
            return
        points, sender = opened
        pause = self._pace.first_pause_seconds
        while (snapshot := self._queue.take()) is not None:
            points.keep({each.run for each in self._snapshots()} | {snapshot.run})
            outcome = sender.send(points.data(snapshot))
            if outcome is SendOutcome.TAKEN:
                self.sent += 1
                pause = self._pace.first_pause_seconds
                continue
            self.failures += 1
            if outcome is SendOutcome.REFUSED:
                self._queue.dropped += 1
                continue
            self._queue.put_back(snapshot)
            if self._closing.is_set():
                return
            self._closing.wait(pause * (0.5 + random.random()))
            pause = min(2 * pause, self._pace.last_pause_seconds)

    def _open(self) -> tuple[Points, Sender] | None:
        try:
            from mwatch.export.otlp.send import Points, Sender

            self._sender = Sender(self._endpoint, self._pace.limit_seconds)
            points = Points(self._attributes)
        except ImportError as error:
            self._problem = f"{error}; {_INSTALL}"
            return None
        except (OSError, ValueError, RuntimeError) as error:
            self._problem = f"cannot send: {error}"
            return None
        return points, self._sender
