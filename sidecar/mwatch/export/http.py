# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server for pages that are made on demand: `/metrics`, `/healthz` and the like.

It serves a pod network, where anybody may connect: so few connections at a time, one request on
each, and a time limit for all of it, however slowly somebody sends or reads. A page that raises
is a connection closed without an answer, and is counted. It has no TLS and asks for no password;
what it shows is scrubbed before it comes here.
"""

from __future__ import annotations

import errno
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, NamedTuple

MAX_CONNECTIONS = 16
LIMIT_SECONDS = 10.0
PORT_TRIES = 16
_POLL_SECONDS = 0.25
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Request(NamedTuple):
    path: str
    """Without the query."""
    headers: Mapping[str, str]


class Page(NamedTuple):
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


Pages = Mapping[str, Callable[[Request], Page]]
"""By path. They are made in the threads of the server, several at a time."""


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
        """Takes `port`, or the next that is free: pods of one node may share its network.

        OSError where none can be had, or the address is not ours.
        """
        self._server = _bind(host, port)
        self._server.pages = pages
        self._server.limit_seconds = limit_seconds
        self._server.free = threading.Semaphore(max_connections)
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
        """Requests that a page could not answer."""
        return self._server.failures

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
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


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CONNECTIONS
    pages: Pages
    limit_seconds: float
    free: threading.Semaphore
    failures = 0

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Without asking a name server for our own name, which may take long or hang."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.free.acquire(blocking=False):
            self._refuse(request)
            return
        with self._lock:
            self._open[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be had
            self._forget(request)
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def service_actions(self) -> None:
        """Called by the loop, a few times a second: who takes too long is cut off."""
        now = time.monotonic()
        with self._lock:
            late = [each for each, at in self._open.items() if now - at > self.limit_seconds]
        for each in late:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it has just gone by itself

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no news; a page that raises is."""
        if not isinstance(sys.exception(), OSError):
            self.failures += 1

    def _forget(self, request: socket.socket) -> None:
        with self._lock:
            was_open = self._open.pop(request, None)
        if was_open is not None:
            self.free.release()

    def _refuse(self, request: Any) -> None:
        try:
            request.setblocking(False)
            request.send(_BUSY)
        except OSError:
            pass
        self.shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    server_version = "mwatch"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = LIMIT_SECONDS

    def do_GET(self) -> None:
        self.close_connection = True
        self._send(self._page())

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """A scrape is no news."""

    def _page(self) -> Page:
        path = self.path.partition("?")[0]
        make = self.server.pages.get(path)
        if make is None:
            known = " ".join(sorted(self.server.pages))
            return Page(f"no such page; there are: {known}\n".encode(), status=HTTPStatus.NOT_FOUND)
        return make(Request(path, dict(self.headers.items())))

    def _send(self, page: Page) -> None:
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Connection", "close")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)
