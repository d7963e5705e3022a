# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One request of OTLP over HTTP.

OpenTelemetry's encoder makes the request; its own HTTP exporter is not used: with the libraries
below it, it takes 6 MiB more, has no limit for the time of one request, and tells nobody what the
server said. Headers, compression and certificates come from the standard OTEL_EXPORTER_OTLP_*
variables. Only the thread that sends may import this.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.util.re import parse_env_headers

from mwatch import __version__
from mwatch.export.otlp_outcome import Outcome
from mwatch.export.otlp_wire import Wire, authorization, without_user

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

    def send(self, data: MetricsData) -> Outcome:
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
                return Outcome.TAKEN
            error: Exception = TimeoutError()
        except HTTPError as refused:
            refused.close()
            self.problem = f"the server answered {refused.code}"
            return Outcome.LATER if refused.code in _LATER else Outcome.REFUSED
        except (OSError, HTTPException, ValueError) as failed:
            # A connection that we cut may look as if the server had.
            error = TimeoutError() if self._wire.is_cut else failed
        finally:
            watch.cancel()
            watch.join()  # a cut that is on its way is not for the next request
        is_late = isinstance(error, TimeoutError) or isinstance(error.__context__, TimeoutError)
        self.problem = f"no answer within {self._limit:g} s" if is_late else _innermost(error)
        return Outcome.LATER

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
