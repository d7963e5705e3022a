# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A receiver of OTLP over HTTP on the loopback, for tests: it decodes what it is sent with
OpenTelemetry's own protocol, and can be told to answer badly.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from mwatch.export.otlp.exporter import Otlp, SendSchedule
from mwatch.model.snapshot.snapshot import Snapshot
from support.builders.snapshot import busy_snapshot

SECONDS = 60.0


class Point(NamedTuple):
    metric: str
    kind: str
    unit: str
    attributes: dict[str, str]
    value: float
    at: float
    since: float


class Received(NamedTuple):
    path: str
    headers: dict[str, str]
    resource: dict[str, str]
    points: tuple[Point, ...]

    def values(self, metric: str) -> dict[str, float]:
        """By the attributes besides `run`."""
        found = (each for each in self.points if each.metric == metric)
        return {
            ",".join(value for key, value in each.attributes.items() if key != "run"): each.value
            for each in found
        }


Answer = tuple[int, bytes]
YES: Answer = (200, ExportMetricsServiceResponse().SerializeToString())


class Receiver:
    """`answers` are given in turn, then yes; a function may hang or write what it likes."""

    def __init__(self, answers: tuple[Answer | Callable[[Any], None], ...] = ()) -> None:
        self._answers = list(answers)
        self._came = threading.Condition()
        self.all: list[Received] = []
        """Every request, also those that were answered badly."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._server.receiver = self  # type: ignore[attr-defined]
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def wait(self, count: int) -> list[Received]:
        """Until so many requests have come."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.all) >= count, SECONDS), len(self.all)
            return list(self.all)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        headers = {key.lower(): value for key, value in handler.headers.items()}
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        with self._came:
            self.all.append(decoded(handler.path, headers, body))
            answer = self._answers.pop(0) if self._answers else YES
            self._came.notify_all()
        if callable(answer):
            answer(handler)
            return
        status, content = answer
        handler.send_response(status)
        handler.send_header("Content-Type", "application/x-protobuf")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.receiver.take(self, body)  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


def decoded(path: str, headers: dict[str, str], body: bytes) -> Received:
    (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    (scope,) = resource.scope_metrics
    points = []
    for metric in scope.metrics:
        kind = str(metric.WhichOneof("data"))
        data = getattr(metric, kind)
        if kind == "sum":
            assert data.is_monotonic
            assert data.aggregation_temporality == 2, "cumulative"
        for each in data.data_points:
            points.append(
                Point(
                    metric.name, kind, metric.unit,
                    {item.key: item.value.string_value for item in each.attributes},
                    each.as_double, each.time_unix_nano / 1e9, each.start_time_unix_nano / 1e9,
                )
            )  # fmt: skip
    about = {item.key: item.value.string_value for item in resource.resource.attributes}
    return Received(path, headers, about, tuple(points))


@contextmanager
def receiver(*answers: Answer | Callable[[Any], None]) -> Iterator[Receiver]:
    server = Receiver(answers)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def sending(
    endpoint: str, *snapshots: Snapshot, limit_seconds: float = SECONDS, **options: Any
) -> Iterator[Otlp]:
    quick = SendSchedule(period_seconds=0.05, first_pause_seconds=0.02, limit_seconds=limit_seconds)
    otlp = Otlp(endpoint, lambda: snapshots or [busy_snapshot()], pace=quick, **options)
    otlp.start()
    try:
        yield otlp
    finally:
        otlp.close(0.5)
