# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server for pages that are made on demand: `/metrics`, `/healthz` and the like.

It serves a pod network, where anybody may connect: so few connections at a time, one request on
each, a small body at most, and a time limit for all of it, however slowly somebody sends or reads.
A page that raises is a connection closed without an answer, and is counted. It has no TLS; who may
ask for what is the pages' business, and what they show is scrubbed before it comes here.
"""

from __future__ import annotations

import errno
import socket
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from mwatch.export.http.request import Page, Pages, Request, Route, find

__all__ = ["Page", "Pages", "Request", "Server"]
MAX_CONNECTIONS = 16
LIMIT_SECONDS = 10.0
MAX_BODY_BYTES = 64 << 10
PORT_TRIES = 16
_POLL_SECONDS = 0.25
_DRAIN_BYTES = 1 << 20
_DRAIN_SECONDS = 1.0
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


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
            self._open[request] = time.monotonic() + self.limit_seconds
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

    def allow(self, request: socket.socket, seconds: float) -> None:
        """What was asked takes longer than a page does."""
        with self._lock:
            if request in self._open:
                self._open[request] = time.monotonic() + seconds

    def service_actions(self) -> None:
        """Called by the loop, a few times a second: who takes too long is cut off."""
        now = time.monotonic()
        with self._lock:
            late = [each for each, until in self._open.items() if now > until]
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
    _is_read = True

    def do_GET(self) -> None:
        self.close_connection = True
        self._send(self._page())
        if not self._is_read:
            self._drain()

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """A scrape is no news."""

    def _page(self) -> Page:
        self._is_read = self.command in ("GET", "HEAD")
        path = self.path.partition("?")[0]
        found = find(self.server.pages, path)
        if found is None:
            known = " ".join(sorted(self.server.pages))
            return _error(HTTPStatus.NOT_FOUND, f"no such page; there are: {known}")
        handler = found.resource.handler(self.command)
        if handler is None:
            allowed = ", ".join(found.resource.methods)
            page = _error(HTTPStatus.METHOD_NOT_ALLOWED, f"only {allowed}")
            return page._replace(headers={"Allow": allowed})
        body = self._body() if self.command == "POST" else b""
        if isinstance(body, Page):
            return body
        return handler(self._request(path, found, body))

    def _request(self, path: str, found: Route, body: bytes) -> Request:
        """All of it has come: from now on the time is the page's own."""
        if found.resource.seconds:
            self.server.allow(self.connection, found.resource.seconds)
            self.connection.settimeout(found.resource.seconds)
        headers = dict(self.headers.items())
        query = self.path.partition("?")[2]
        return Request(path, headers, body, found.parameter, str(self.client_address[0]), query)

    def _body(self) -> bytes | Page:
        length = self.headers.get("Content-Length", "")
        if not length or self.headers.get("Transfer-Encoding"):
            return _error(HTTPStatus.LENGTH_REQUIRED, "say Content-Length")
        if not (length.isascii() and length.isdigit() and len(length) <= len(str(1 << 63))):
            return _error(HTTPStatus.BAD_REQUEST, "Content-Length is not a number")
        if int(length) > MAX_BODY_BYTES:
            too_large = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            return _error(too_large, f"at most {MAX_BODY_BYTES} bytes")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            return _error(HTTPStatus.BAD_REQUEST, "the body is shorter than it says")
        self._is_read = True
        return body

    def _drain(self) -> None:
        """Who is still sending would else lose our answer with the connection."""
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
            page.stream(self._send_chunk if self._is_chunked else self.wfile.write)
            self.wfile.write(b"0\r\n\r\n" if self._is_chunked else b"")

    @property
    def _is_chunked(self) -> bool:
        """A reader that gets no last chunk knows that it has not got all."""
        return self.request_version != "HTTP/1.0"

    def _send_chunk(self, data: bytes) -> None:
        if data:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))


def _error(status: HTTPStatus, words: str) -> Page:
    return Page(f"{words}\n".encode(), status=status)
