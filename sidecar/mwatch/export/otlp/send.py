# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One request by OpenTelemetry's own OTLP/HTTP exporter, with a total time limit.

The exporter encodes, compresses and takes headers and certificates from the standard
OTEL_EXPORTER_OTLP_* variables. Its session is ours and adds what the exporter lacks: a limit for
the whole request (each read of a socket has its own, so a server that sends a byte now and then
would hold a request for ever), a bound for the answer, and what the server answered. A redirect is
refused, for it would take the headers, and the secrets in them, elsewhere. Only the thread that
sends may import this.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk.metrics.export import MetricsData
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

from mwatch import __version__
from mwatch.export.otlp.names import SendOutcome

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
_FILES = ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")


class Sender:
    """For one thread."""

    def __init__(self, endpoint: str, limit_seconds: float) -> None:
        """OSError where a certificate cannot be read."""
        for name in _FILES:
            own = os.environ.get(f"OTEL_EXPORTER_OTLP_METRICS_{name}")
            if path := own or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}"):
                open(path, "rb").close()
        self._session = BoundedSession(limit_seconds)
        self._exporter = OTLPMetricExporter(
            endpoint,
            headers={"user-agent": f"mwatch/{__version__}"},
            timeout=limit_seconds,
            session=self._session,
        )

    @property
    def problem(self) -> str | None:
        """Why something was last not taken."""
        return self._session.problem

    def send(self, data: MetricsData) -> SendOutcome:
        session = self._session
        session.outcome = None
        self._exporter.export(data)
        if session.outcome is None:
            session.problem = "OpenTelemetry cannot encode a sample"
        return session.outcome or SendOutcome.REFUSED

    def close(self) -> None:
        """From any thread: a request that is under way ends."""
        self._session.cut()


class NotTaken(Exception):
    """Neither a status nor an error after which the exporter itself would try again."""


class BoundedSession(requests.Session):
    """Each request has a connection of its own, which another thread can cut off."""

    def __init__(self, limit_seconds: float) -> None:
        super().__init__()
        self.outcome: SendOutcome | None = None
        """Of the last request."""
        self.problem: str | None = None
        self._limit = limit_seconds
        self._socket: Any = None
        self._is_cut = False
        self._lock = threading.Lock()
        for scheme in ("http://", "https://"):
            self.mount(scheme, _HoldingAdapter(self))

    def request(self, *args: Any, **options: Any) -> requests.Response:
        """Raises NotTaken: whether and when to send again is decided by our queue alone."""
        with self._lock:
            self._socket, self._is_cut = None, False
        watch = threading.Timer(self._limit, self.cut)
        watch.daemon = True
        watch.start()
        try:
            response = self._answer(*args, **options)
        finally:
            watch.cancel()
            watch.join()  # a cut that is on its way is not for the next request
            self.close()
        if self.outcome is not SendOutcome.TAKEN:
            raise NotTaken(self.problem)
        return response

    def cut(self) -> None:
        """Whatever is under way fails, also where its connection is only just being made."""
        with self._lock:
            self._is_cut = True
            self._shut()

    def hold(self, connected: Any) -> None:
        with self._lock:
            self._socket = connected
            if self._is_cut:
                self._shut()

    def _shut(self) -> None:
        if self._socket is not None:
            with suppress(OSError, TypeError):
                # Not the method of a TLS socket, which also takes away what its reader uses.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _answer(self, *args: Any, **options: Any) -> requests.Response:
        self.outcome = SendOutcome.LATER
        options.update(stream=True, allow_redirects=False)
        try:
            with super().request(*args, **options) as response:
                problem = _rejected(response)
        except (OSError, ValueError, HTTPError) as error:
            # A connection that we cut may look as if the server had.
            is_late = self._is_cut or isinstance(error, requests.Timeout)
            self.problem = self._too_late() if is_late else _innermost(error)
            raise NotTaken(self.problem) from None
        status = response.status_code
        if self._is_cut:  # then half an answer may look like a whole one
            self.problem = self._too_late()
        elif 200 <= status < 300:
            self.outcome, self.problem = SendOutcome.TAKEN, problem
        else:
            self.problem = f"the server answered {status}"
            self.outcome = SendOutcome.LATER if status in _LATER else SendOutcome.REFUSED
        return response

    def _too_late(self) -> str:
        return f"no answer within {self._limit:g} s"


class _HoldingAdapter(HTTPAdapter):
    """Passes each new connection to the session, through a proxy or not."""

    def __init__(self, session: BoundedSession) -> None:
        super().__init__(pool_connections=1, pool_maxsize=1)
        self._session = session

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*args, **options)
        base, hold = pool.ConnectionCls, self._session.hold

        def connect(connection: Any) -> None:
            base.connect(connection)
            hold(connection.sock)

        pool.ConnectionCls = type("HeldConnection", (base,), {"connect": connect})
        return pool


def _rejected(response: requests.Response) -> str | None:
    """Points may be refused one by one, in an answer that says yes."""
    try:
        body = response.raw.read1(_MAX_ANSWER_BYTES)
        partial = ExportMetricsServiceResponse.FromString(body).partial_success
    except (OSError, HTTPError, DecodeError):
        return None  # a server that does not speak OTLP has accepted it all the same
    if not partial.rejected_data_points:
        return None
    return f"{partial.rejected_data_points} points were refused: {partial.error_message[:200]}"


def _innermost(error: BaseException) -> str:
    """`Connection refused`, and not which library passed it on."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)[:200]
    return reason or type(error).__name__
