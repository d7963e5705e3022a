# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Converts snapshots for OpenTelemetry's SDK and sends them with its OTLP/HTTP exporter.

The exporter encodes, compresses and reads headers and certificates from the standard
OTEL_EXPORTER_OTLP_* variables. Its session is replaced by one that adds what the exporter lacks: a
time limit for the whole request, a size limit for the response, and the server's status. Redirects
are refused, because they would send the headers, and the secrets in them, to another server.

Imports the SDK (about 12 MiB): only the sending thread may import this module.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from typing import Any, NamedTuple

import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

from mwatch import __version__
from mwatch.export.metrics import catalog
from mwatch.export.metrics.measure import clean_name, counter_value, measure
from mwatch.export.otlp.exporter import SendOutcome
from mwatch.model.snapshot.snapshot import Snapshot
from mwatch.stats import MonotonicCounters


class OtlpName(NamedTuple):
    """Name and unit of a metric over OTLP.

    A quantity that Megatron itself exports (`megatron.training.*`, 2026-08) has the same name and
    unit here, with two differences: Megatron's step duration is a histogram of every step, here it
    is the newest printed value; and `megatron.training.loss` has the name of the loss as an
    attribute. All others are `mwatch.*`, without the unit in the name, so that a collector that
    converts them to Prometheus names gets the names of our own scrape.
    """

    name: str
    unit: str
    """UCUM code; empty if there is no unit."""
    factor: float = 1.0
    """Conversion factor from the unit of the catalog to this unit."""


_UPSTREAM: dict[str, OtlpName] = {
    catalog.LOSS.name: OtlpName("megatron.training.loss", "{nat}"),
    catalog.GRAD_NORM.name: OtlpName("megatron.training.grad_norm", ""),
    catalog.LEARNING_RATE.name: OtlpName("megatron.training.learning_rate", ""),
    catalog.STEP_SECONDS.name: OtlpName("megatron.training.step_duration_ms", "ms", 1000.0),
    catalog.THROUGHPUT.name: OtlpName("megatron.training.throughput_tflops", "{TFLOP}/s"),
    catalog.TOKENS.name: OtlpName("megatron.training.tokens_per_sec", "{token}/s"),
    catalog.SKIPPED.name: OtlpName("megatron.training.skipped_iters", "{iteration}"),
}

_SUFFIXES = {
    "_seconds": "s",
    "_bytes": "By",
    "_watts": "W",
    "_celsius": "Cel",
    "_hertz": "Hz",
    "_ratio": "1",
}
_COUNTED = frozenset(
    {
        "iterations", "ranks", "samples", "incidents", "restarts", "errors", "rows", "packets",
        "threads", "communicators", "operations", "lines", "items",
    }
)  # fmt: skip
_WITH_UNIT = frozenset({catalog.GPU_THROTTLED_SECONDS.name, catalog.RANK_SECONDS.name})
"""Metrics that keep the unit, because the name without it would collide with another."""
_GROUPS = ("gpu_", "nccl_", "fabric_", "rank_")


@cache
def otlp_name(metric: catalog.Metric) -> OtlpName:
    known = _UPSTREAM.get(metric.name)
    if known is not None:
        return known
    stem = metric.name.removeprefix("mwatch_").removesuffix("_total")
    unit = f"{{{metric.unit[:-1]}}}" if metric.unit in _COUNTED else ""
    for suffix, its_unit in _SUFFIXES.items():
        if stem.endswith(suffix):
            unit = its_unit
            stem = stem if metric.name in _WITH_UNIT else stem.removesuffix(suffix)
            break
    for group in _GROUPS:
        if stem.startswith(group):
            stem = f"{group[:-1]}.{stem.removeprefix(group)}"
    return OtlpName(f"mwatch.{stem}", unit)


_SCOPE = InstrumentationScope("mwatch", __version__)
_OF_ATTEMPT = frozenset(
    each.name
    for each in (
        catalog.SKIPPED, catalog.NAN, catalog.RANK_CPU, catalog.RANK_SECONDS,
    )
)  # fmt: skip
_OF_WATCHER = frozenset(
    each.name for each in (*catalog.OWN, catalog.INCIDENTS) if each.kind == "counter"
)

_Series = tuple[str, tuple[str, ...]]


class _Start(NamedTuple):
    """Start time of a counter, the known time that it is based on, and the last value."""

    at: float
    hint: float | None
    amount: float


class Points:
    """Converts snapshots to metrics of the SDK.

    All points have the time of the snapshot. A counter also has a start time: that of the attempt
    or of mwatch if it counts from there, else the time of its first value.
    """

    def __init__(self, attributes: Mapping[str, str]) -> None:
        """`attributes` of the resource override those of OTEL_RESOURCE_ATTRIBUTES."""
        # The SDK would log a resource attribute that it cannot parse, including any secret in it.
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        own = {"service.name": "mwatch", "service.version": __version__}
        resource = Resource(own).merge(OTELResourceDetector().detect()).merge(Resource(attributes))
        self._about = {key: clean_name(str(value)) for key, value in resource.attributes.items()}
        self._held = MonotonicCounters()
        self._starts: dict[str, dict[_Series, _Start]] = {}

    def data(self, snapshot: Snapshot) -> MetricsData:
        run = clean_name(snapshot.run)
        families: dict[catalog.Metric, list[NumberDataPoint]] = {}
        before, now = self._starts.get(snapshot.run, {}), {}
        for value in measure(snapshot):
            amount, begun = counter_value(self._held, snapshot.run, value), None
            if value.metric.kind == "counter":
                series = (value.metric.name, value.labels)
                begun = now[series] = _begun(snapshot, value.metric, amount, before.get(series))
            labels = zip(value.metric.labels, map(clean_name, value.labels), strict=True)
            point = NumberDataPoint(
                attributes={"run": run, **dict(labels)},
                start_time_unix_nano=0 if begun is None else _nanoseconds(begun.at),
                time_unix_nano=_nanoseconds(snapshot.at),
                value=amount * otlp_name(value.metric).factor,
            )
            families.setdefault(value.metric, []).append(point)
        self._starts[snapshot.run] = now
        about = Resource({**self._about, "mwatch.run": run})
        found = [_metric(metric, points) for metric, points in families.items()]
        return MetricsData([ResourceMetrics(about, [ScopeMetrics(_SCOPE, found, "")], "")])

    def keep(self, runs: Iterable[str]) -> None:
        kept = set(runs)
        self._held.keep(kept)
        self._starts = {run: starts for run, starts in self._starts.items() if run in kept}


def _begun(
    snapshot: Snapshot, metric: catalog.Metric, amount: float, before: _Start | None
) -> _Start:
    hint = None
    if metric.name in _OF_ATTEMPT:
        hint = snapshot.attempt_started_at
    elif metric.name in _OF_WATCHER and snapshot.own is not None:
        hint = snapshot.own.started_at
    if before is None or before.hint != hint:
        return _Start(snapshot.at if hint is None else min(hint, snapshot.at), hint, amount)
    has_gone_back = amount < before.amount
    return _Start(snapshot.at if has_gone_back else before.at, hint, amount)


def _metric(described: catalog.Metric, points: list[NumberDataPoint]) -> Metric:
    named = otlp_name(described)
    data: Sum | Gauge = Gauge(points)
    if described.kind == "counter":
        data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return Metric(named.name, described.help, named.unit, data)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e6) * 1000


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
    def __init__(self, endpoint: str, limit_seconds: float) -> None:
        """OSError if a certificate cannot be read."""
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
        return self._session.problem

    def send(self, data: MetricsData) -> SendOutcome:
        session = self._session
        session.outcome = None
        self._exporter.export(data)
        if session.outcome is None:
            session.problem = "OpenTelemetry cannot encode a sample"
        return session.outcome or SendOutcome.REFUSED

    def close(self) -> None:
        """Abort the request in progress; may be called from any thread."""
        self._session.cut()


class NotTaken(Exception):
    """The request failed; unlike other errors, the exporter does not retry after it."""


class BoundedSession(requests.Session):
    """Uses a new connection for each request, so that another thread can close it."""

    def __init__(self, limit_seconds: float) -> None:
        super().__init__()
        self.outcome: SendOutcome | None = None
        self.problem: str | None = None
        self._limit = limit_seconds
        self._socket: Any = None
        self._is_cut = False
        self._lock = threading.Lock()
        for scheme in ("http://", "https://"):
            self.mount(scheme, _HoldingAdapter(self))

    def request(self, *args: Any, **options: Any) -> requests.Response:
        """Raises NotTaken on failure: the queue of `Otlp` alone decides when to retry."""
        with self._lock:
            self._socket, self._is_cut = None, False
        watch = threading.Timer(self._limit, self.cut)
        watch.daemon = True
        watch.start()
        try:
            response = self._answer(*args, **options)
        finally:
            watch.cancel()
            watch.join()  # so that it does not cut the next request
            self.close()
        if self.outcome is not SendOutcome.TAKEN:
            raise NotTaken(self.problem)
        return response

    def cut(self) -> None:
        """Make the current request fail, even while it is still connecting."""
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
                # Not the method of a TLS socket, which also breaks its reader.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _answer(self, *args: Any, **options: Any) -> requests.Response:
        self.outcome = SendOutcome.LATER
        options.update(stream=True, allow_redirects=False)
        try:
            with super().request(*args, **options) as response:
                problem = _rejected(response)
        except (OSError, ValueError, HTTPError) as error:
            # A connection closed by `cut` may look as if the server had closed it.
            is_late = self._is_cut or isinstance(error, requests.Timeout)
            self.problem = self._too_late() if is_late else _innermost(error)
            raise NotTaken(self.problem) from None
        status = response.status_code
        if self._is_cut:  # a partial answer may look complete
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
    """Registers each new connection, direct or through a proxy, with the session."""

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
    """Describe the points that the server rejected in a successful response."""
    try:
        body = response.raw.read1(_MAX_ANSWER_BYTES)
        partial = ExportMetricsServiceResponse.FromString(body).partial_success
    except (OSError, HTTPError, DecodeError):
        return None  # not an OTLP answer, but accepted
    if not partial.rejected_data_points:
        return None
    return f"{partial.rejected_data_points} points were refused: {partial.error_message[:200]}"


def _innermost(error: BaseException) -> str:
    """Return the root cause, such as `Connection refused`."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)[:200]
    return reason or type(error).__name__
