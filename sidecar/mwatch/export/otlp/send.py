# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One request of OTLP over HTTP, which another thread can cut off.

OpenTelemetry's encoder makes the request; its own HTTP exporter is not used: with the libraries
below it, it takes 6 MiB more, has no limit for the time of one request, and tells nobody what the
server said. Headers, compression and certificates come from the standard OTEL_EXPORTER_OTLP_*
variables. Only the thread that sends may import this.

Each read of a socket has its own time limit, so a server that sends a byte now and then would hold
a request for ever: `cut` ends it from another thread. Proxies come from the usual variables; a
redirection is not followed, for it would take the headers, and what is secret in them, elsewhere.
"""

from __future__ import annotations

import base64
import gzip
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
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
from mwatch.export.otlp.names import SendOutcome


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
