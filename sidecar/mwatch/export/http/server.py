# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server: routes requests to pages, and serves `/metrics` and `/healthz`.

The server listens on a pod network where anyone may connect. So it limits the number of
connections, in total and per address, the size of a body, and the time of a whole request, and
handles one request per connection. If all connection slots are taken, a client that is slow to send
its request or to read its answer is disconnected: a kubelet probe must not fail because of other
clients. A page that raises closes the connection without an answer, and is counted. There is no
TLS; pages authorize their requests and scrub their content.
"""

from __future__ import annotations

import contextlib
import errno
import math
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, NamedTuple

from mwatch.export.metrics.prometheus import Exporter, Snapshots

STUCK_SECONDS = 30.0
"""Without an iteration of the main loop for this long, `/healthz` fails. The loop runs about once a
second; saving evidence may block it for 20 s."""
MAX_CONNECTIONS = 16
LIMIT_SECONDS = 10.0
MAX_BODY_BYTES = 64 << 10
PORT_TRIES = 16
_SLOW_REQUEST_SECONDS = 1.0
_SLOW_ANSWER_SECONDS = 5.0
"""After this time a client may lose its connection slot to another one."""
_POLL_SECONDS = 0.25
_DRAIN_BYTES = 1 << 20
_DRAIN_SECONDS = 1.0
_ASKED_BYTES = 4096
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_PARAMETER = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", re.ASCII)
"""It cannot start with a dot or contain a slash, so it cannot lead out of a folder."""


class Request(NamedTuple):
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    parameter: str = ""
    client: str = ""
    query: str = ""
    was_asked: Callable[[], bool] = lambda: False
    """For a stream: whether the client has sent any data since the last call."""


Send = Callable[[bytes], object]


class Page(NamedTuple):
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = {}
    stream: Callable[[Send], None] | None = None
    """Sends the body in pieces, instead of `body`."""
    seconds: float = 0.0
    """Time limit of the stream; 0: the endpoint's."""


Handler = Callable[[Request], Page]


class Endpoint(NamedTuple):
    """A path with other methods than GET, or with its own time limit."""

    get: Handler | None = None
    post: Handler | None = None
    seconds: float = 0.0
    """Time limit of the answer, after the request was read; 0: the server's."""

    @property
    def handlers(self) -> dict[str, Handler]:
        found = {"GET": self.get, "HEAD": self.get, "POST": self.post}
        return {method: handler for method, handler in found.items() if handler is not None}


Pages = Mapping[str, Handler | Endpoint]
"""Handlers by path, which may contain one parameter: `/v1/evidence/{}.tgz`. A bare function answers
GET. Handlers are called from the threads of the server."""


class Route(NamedTuple):
    endpoint: Endpoint
    parameter: str


def in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def find(pages: Pages, path: str) -> Route | None:
    """Find the page of a path; one without a parameter takes precedence."""
    if (exact := pages.get(path)) is not None and "{}" not in path:
        return Route(_endpoint(exact), "")
    for pattern, page in pages.items():
        before, braces, after = pattern.partition("{}")
        if not braces or not path.startswith(before) or not path.endswith(after):
            continue
        parameter = path[len(before) : len(path) - len(after)]
        if _PARAMETER.fullmatch(parameter):
            return Route(_endpoint(page), parameter)
    return None


def _endpoint(page: Handler | Endpoint) -> Endpoint:
    return page if isinstance(page, Endpoint) else Endpoint(get=page)


def standard_pages(
    snapshots: Snapshots, since_tick: Callable[[], float], exporter: Exporter | None = None
) -> Pages:
    """Return `/metrics` and `/healthz`. Healthy means that the main loop of mwatch still runs,
    whatever the state of the job. `since_tick`: seconds since its last iteration."""
    exporter = exporter or Exporter(snapshots)

    def metrics(request: Request) -> Page:
        scrape = exporter.scrape(request.headers.get("Accept", ""))
        return Page(scrape.body, scrape.content_type)

    def health(request: Request) -> Page:
        seconds = since_tick()
        if seconds > STUCK_SECONDS:
            text = f"the loop has not turned for {seconds:.0f} s\n"
            return Page(text.encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)
        return Page(b"ok\n")

    return {"/metrics": metrics, "/healthz": health}


class Server:
    def __init__(
        self,
        pages: Pages,
        *,
        port: int,
        host: str = "127.0.0.1",
        limit_seconds: float = LIMIT_SECONDS,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """Listen on `port` or the next free one: pods of one node may share its network.

        OSError if no port is free or the address belongs to another host.
        """
        self._server = _bind(host, port)
        self._server.pages = pages
        self._server.limit_seconds = limit_seconds
        self._server.most = max_connections
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(_POLL_SECONDS,),
            name="mwatch-http",
            daemon=True,
        )
        self._thread.start()

    @property
    def port(self) -> int:
        port: int = self._server.server_address[1]
        return port

    @property
    def failures(self) -> int:
        return self._server.failures

    def close(self) -> None:
        """Stop, and end open connections too: a stream would continue for minutes."""
        self._server.shutdown()
        self._server.server_close()
        self._server.hang_up()
        self._thread.join(_POLL_SECONDS * 8)


def _bind(host: str, port: int) -> _Listener:
    last = min(port + PORT_TRIES, 65536) if port else 1
    for each in range(port, last):
        try:
            return _Listener((host, each), _Handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or each == last - 1:
                raise
    raise OSError(errno.EADDRINUSE, f"no free port from {port} on")


@dataclass(slots=True)
class _Connection:
    address: str
    began: float
    until: float
    is_read: bool = False
    """The request is complete."""
    has_time: bool = False
    """Its page has a time limit of its own."""

    def is_slow(self, now: float) -> bool:
        if self.is_read:
            return not self.has_time and now - self.began > _SLOW_ANSWER_SECONDS
        return now - self.began > _SLOW_REQUEST_SECONDS


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    """Waiting connections cost nothing, and all wrappers of a gang connect at once."""
    pages: Pages
    limit_seconds: float
    most: int
    failures = 0

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: dict[socket.socket, _Connection] = {}
        self._lock = threading.Lock()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Skip the base class's lookup of this host's name, which may hang."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._admit(request, str(client_address[0])):
            self._refuse(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._forget(request)
            self.shutdown_request(request)

    def _admit(self, request: socket.socket, address: str) -> bool:
        """Take a free connection slot or that of a slow client."""
        now = time.monotonic()
        with self._lock:
            same = [each for each, known in self._open.items() if known.address == address]
            is_greedy = len(same) >= self.most - self.most // 4
            if is_greedy or len(self._open) >= self.most:
                held = same if is_greedy else list(self._open)
                late = (each for each in held if self._open[each].is_slow(now))
                slowest = min(late, key=lambda each: self._open[each].began, default=None)
                if slowest is None:
                    return False
                del self._open[slowest]
                _hang_up(slowest)
            self._open[request] = _Connection(address, now, now + self.limit_seconds)
        return True

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def read(self, request: socket.socket, seconds: float) -> None:
        """Mark a request as completely read. `seconds`: time limit of its page; 0: default."""
        now = time.monotonic()
        with self._lock:
            known = self._open.get(request)
            if known is not None:
                known.is_read, known.began, known.has_time = True, now, seconds > 0
                known.until = now + seconds if seconds else known.until

    def service_actions(self) -> None:
        """Called by `serve_forever` a few times a second."""
        self.hang_up(time.monotonic())

    def hang_up(self, now: float = math.inf) -> None:
        """Close connections past their time limit; without `now`, all connections."""
        with self._lock:
            late = [each for each, known in self._open.items() if now > known.until]
        for each in late:
            _hang_up(each)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Count pages that raise, but not clients that disconnect."""
        if not isinstance(sys.exception(), OSError):
            self.failures += 1

    def _forget(self, request: socket.socket) -> None:
        with self._lock:
            self._open.pop(request, None)

    def _refuse(self, request: Any) -> None:
        try:
            request.setblocking(False)
            request.send(_BUSY)
        except OSError:
            pass
        self.shutdown_request(request)


def _hang_up(connection: socket.socket) -> None:
    """Shut the connection down; its thread notices that and closes it."""
    with contextlib.suppress(OSError):  # it is already closed
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    server_version = "mwatch"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = LIMIT_SECONDS
    _is_read = True

    def do_GET(self) -> None:
        self.close_connection = True
        self._send(self._page())
        if not self._is_read:
            self._drain()

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""

    def _page(self) -> Page:
        self._is_read = self.command in ("GET", "HEAD")
        path = self.path.partition("?")[0]
        found = find(self.server.pages, path)
        if found is None:
            known = " ".join(sorted(self.server.pages))
            return _error(HTTPStatus.NOT_FOUND, f"no such page; known pages: {known}")
        handler = found.endpoint.handlers.get(self.command)
        if handler is None:
            allowed = ", ".join(found.endpoint.handlers)
            page = _error(HTTPStatus.METHOD_NOT_ALLOWED, f"only {allowed}")
            return page._replace(headers={"Allow": allowed})
        body = self._body() if self.command == "POST" else b""
        if isinstance(body, Page):
            return body
        return handler(self._request(path, found, body))

    def _request(self, path: str, found: Route, body: bytes) -> Request:
        self.server.read(self.connection, found.endpoint.seconds)
        if found.endpoint.seconds:
            self.connection.settimeout(found.endpoint.seconds)
        headers = dict(self.headers.items())
        query = self.path.partition("?")[2]
        client = str(self.client_address[0])
        return Request(path, headers, body, found.parameter, client, query, self._was_asked)

    def _was_asked(self) -> bool:
        """Whether the client has sent any data; called from the thread of this connection."""
        waiting = select.poll()
        waiting.register(self.connection, select.POLLIN)
        return bool(waiting.poll(0)) and bool(self.connection.recv(_ASKED_BYTES))

    def _body(self) -> bytes | Page:
        length = self.headers.get("Content-Length", "")
        if not length or self.headers.get("Transfer-Encoding"):
            return _error(HTTPStatus.LENGTH_REQUIRED, "Content-Length is required")
        if not (length.isascii() and length.isdigit() and len(length) <= len(str(1 << 63))):
            return _error(HTTPStatus.BAD_REQUEST, "Content-Length is not a number")
        if int(length) > MAX_BODY_BYTES:
            too_large = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            return _error(too_large, f"at most {MAX_BODY_BYTES} bytes")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            return _error(HTTPStatus.BAD_REQUEST, "the body is shorter than Content-Length")
        self._is_read = True
        return body

    def _drain(self) -> None:
        """Keep reading: closing while the client still sends would discard the answer."""
        self.connection.shutdown(socket.SHUT_WR)
        self.connection.settimeout(_DRAIN_SECONDS)
        read = 0
        while read < _DRAIN_BYTES and (data := self.connection.recv(1 << 16)):
            read += len(data)

    def _send(self, page: Page) -> None:
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        for name, value in page.headers.items():
            self.send_header(name, value)
        if page.stream is None:
            self.send_header("Content-Length", str(len(page.body)))
        elif self._is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command == "HEAD":
            return
        if page.stream is None:
            self.wfile.write(page.body)
        else:
            if page.seconds:
                self.server.read(self.connection, page.seconds)
            page.stream(self._send_chunk if self._is_chunked else self.wfile.write)
            self.wfile.write(b"0\r\n\r\n" if self._is_chunked else b"")

    @property
    def _is_chunked(self) -> bool:
        """Use chunks where possible: a missing last chunk reveals an incomplete answer."""
        return self.request_version != "HTTP/1.0"

    def _send_chunk(self, data: bytes) -> None:
        if data:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))


def _error(status: HTTPStatus, text: str) -> Page:
    return Page(f"{text}\n".encode(), status=status)
