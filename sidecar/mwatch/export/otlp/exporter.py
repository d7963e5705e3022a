# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The table of metrics over OTLP: what `/metrics` shows, sent to whoever collects it.

Two threads, so that neither the loop nor the next sample ever waits for a server: one takes the
newest snapshot of each run about every 15 seconds into a short queue, the other sends. A server
that is away is tried again after a pause that doubles; meanwhile the oldest samples are dropped,
and counted. A request that the server refuses for what it is, is dropped at once. OpenTelemetry's
packages cost about 8 MiB: they are imported by the thread that sends, and only there.

It cannot know what the server does with a sample that it has taken.

What became of one request; apart from what sends it, which is dear to import.

HTTP for one request at a time that somebody else can cut off.

Each read of a socket has its own time limit, so a server that sends a byte now and then would hold
a request for ever: `cut` ends it from another thread. Proxies come from the usual variables; a
redirection is not followed, for it would take the headers, and what is secret in them, elsewhere.

One request of OTLP over HTTP.

OpenTelemetry's encoder makes the request; its own HTTP exporter is not used: with the libraries
below it, it takes 6 MiB more, has no limit for the time of one request, and tells nobody what the
server said. Headers, compression and certificates come from the standard OTEL_EXPORTER_OTLP_*
variables. Only the thread that sends may import this.
"""

from __future__ import annotations

import base64
import gzip
import os
import random
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.util.re import parse_env_headers

from mwatch import __version__
from mwatch.export.metrics.outgoing import cleaner
from mwatch.model.snapshot.snapshot import Snapshot
from mwatch_trainer.scrub.scrubber import scrub_text

if TYPE_CHECKING:
    from mwatch.export.otlp.points import Points


class SendOutcome(Enum):
    TAKEN = "taken"
    LATER = "later"
    """It may be taken another time."""
    REFUSED = "refused"
    """The same bytes will never be taken."""


_LAST_SECONDS = 0.2
_PATH = "/v1/metrics"
_GRPC_PORT = 4317
_GRPC_HINT = " (port 4317 is that of gRPC; OTLP over HTTP is at 4318)"
_MEND = "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-common"


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
            raise ValueError(f"{scrub_text(endpoint, patterns)!r} is no http(s) address")
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

            self._sender = Sender(self._endpoint, self._pace.limit_seconds, os.environ)
            points = Points(self._attributes, cleaner(self._patterns))
        except ImportError as error:
            self._problem = f"{error}; {_MEND}"
            return None
        except (OSError, ValueError, RuntimeError) as error:
            self._problem = f"cannot be sent: {error}"
            return None
        return points, self._sender


class Wire:
    def __init__(
        self,
        certificate: str | None = None,
        client_certificate: str | None = None,
        client_key: str | None = None,
    ) -> None:
        """Paths of files. OSError where one cannot be read."""
        self._socket: socket.socket | None = None
        self._is_cut = False
        self._lock = threading.Lock()
        context = None
        if certificate or client_certificate:
            context = ssl.create_default_context(cafile=certificate)
            if client_certificate:
                context.load_cert_chain(client_certificate, client_key)
        self._opener = build_opener(_Plain(self), _Secured(self, context), _NoRedirection())

    def begin(self) -> None:
        """Before each request: what was cut before it does not matter any more."""
        with self._lock:
            self._socket, self._is_cut = None, False

    def open(self, request: Request, limit_seconds: float) -> Any:
        return self._opener.open(request, timeout=limit_seconds)

    def cut(self) -> None:
        """Whatever is under way fails, also where its connection is only just being made."""
        with self._lock:
            self._is_cut = True
            self._shut()

    @property
    def is_cut(self) -> bool:
        """Since the request began: then half an answer may look like a whole one."""
        return self._is_cut

    def hold(self, connected: socket.socket) -> None:
        with self._lock:
            self._socket = connected
            if self._is_cut:
                self._shut()

    def _shut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                # Not the method of a TLS socket, which also takes away what its reader uses.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _Plain(HTTPHandler):
    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def http_open(self, req: Request) -> Any:
        wire = self._wire

        class Held(HTTPConnection):
            def connect(self) -> None:
                super().connect()
                wire.hold(self.sock)

        return self.do_open(Held, req)


class _Secured(HTTPSHandler):
    def __init__(self, wire: Wire, context: ssl.SSLContext | None) -> None:
        super().__init__()
        self._wire = wire
        self._own_context = context

    def https_open(self, req: Request) -> Any:
        wire = self._wire

        class Held(HTTPSConnection):
            def connect(self) -> None:
                super().connect()
                wire.hold(self.sock)

        context = self._own_context or ssl.create_default_context()
        return self.do_open(Held, req, context=context)


class _NoRedirection(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def without_user(address: str) -> str:
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def authorization(address: str) -> dict[str, str]:
    """Of `http://user:password@host`."""
    parts = urlsplit(address)
    if parts.username is None:
        return {}
    both = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"authorization": "Basic " + base64.b64encode(both.encode()).decode()}


_MAX_ANSWER_BYTES = 16_384
_LATER = frozenset(
    {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)


class Sender:
    """For one thread."""

    def __init__(self, endpoint: str, limit_seconds: float, environ: Mapping[str, str]) -> None:
        """OSError where a certificate cannot be read."""
        self.problem: str | None = None
        """Why something was last not taken."""
        self._address = without_user(endpoint)
        self._limit = limit_seconds
        self._is_packed = _option(environ, "COMPRESSION").strip().lower() == "gzip"
        self._headers = {
            "content-type": "application/x-protobuf",
            "user-agent": f"mwatch/{__version__}",
            **({"content-encoding": "gzip"} if self._is_packed else {}),
            **authorization(endpoint),
            **parse_env_headers(_option(environ, "HEADERS"), liberal=True),
        }
        names = ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")
        self._wire = Wire(*(_option(environ, name) or None for name in names))

    def send(self, data: MetricsData) -> SendOutcome:
        body = encode_metrics(data).SerializeToString()
        packed = gzip.compress(body, 5) if self._is_packed else body
        request = Request(self._address, packed, self._headers, method="POST")
        self._wire.begin()
        watch = threading.Timer(self._limit, self._wire.cut)
        watch.daemon = True
        watch.start()
        try:
            with self._wire.open(request, self._limit) as response:
                problem = _rejected(response)
            if not self._wire.is_cut:
                self.problem = problem
                return SendOutcome.TAKEN
            error: Exception = TimeoutError()
        except HTTPError as refused:
            refused.close()
            self.problem = f"the server answered {refused.code}"
            return SendOutcome.LATER if refused.code in _LATER else SendOutcome.REFUSED
        except (OSError, HTTPException, ValueError) as failed:
            # A connection that we cut may look as if the server had.
            error = TimeoutError() if self._wire.is_cut else failed
        finally:
            watch.cancel()
            watch.join()  # a cut that is on its way is not for the next request
        is_late = isinstance(error, TimeoutError) or isinstance(error.__context__, TimeoutError)
        self.problem = f"no answer within {self._limit:g} s" if is_late else _innermost(error)
        return SendOutcome.LATER

    def close(self) -> None:
        """From any thread: a request that is under way ends."""
        self._wire.cut()


def _option(environ: Mapping[str, str], name: str) -> str:
    """That for metrics alone goes before that for all."""
    own = environ.get(f"OTEL_EXPORTER_OTLP_METRICS_{name}")
    return own or environ.get(f"OTEL_EXPORTER_OTLP_{name}") or ""


def _rejected(response: Any) -> str | None:
    """Points may be refused one by one, in an answer that says yes."""
    try:
        body = response.read1(_MAX_ANSWER_BYTES)
        partial = ExportMetricsServiceResponse.FromString(body).partial_success
    except (OSError, HTTPException, DecodeError):
        return None  # what does not speak OTLP has said yes all the same
    if not partial.rejected_data_points:
        return None
    return f"{partial.rejected_data_points} points were refused: {partial.error_message[:200]}"


def _innermost(error: BaseException) -> str:
    """`Connection refused`, and not who passed it on."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    said = (error.strerror if isinstance(error, OSError) else None) or str(error)[:200]
    return said or type(error).__name__
