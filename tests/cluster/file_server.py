# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Files over HTTP for the cluster's pods, from where the tests run. One may be kept waiting."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cluster.addresses import NODE

_SECONDS = 900.0
"""Longer than any test: a request waits for `go`."""


class FileServer:
    def __init__(self, files: dict[str, bytes], waits: str) -> None:
        """`waits`: the name of the file that is not given out before `go` is set."""
        self.files = files
        self.waits = waits
        self.go = threading.Event()
        self.asked = threading.Event()
        """Somebody waits for it."""
        self.gets: Counter[str] = Counter()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer((NODE, 0), Handler)

    @property
    def url(self) -> str:
        return f"http://{NODE}:{self._server.server_port}"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        name = handler.path.lstrip("/")
        self.gets[name] += 1
        if name == self.waits and not self.go.is_set():
            self.asked.set()
            self.go.wait(_SECONDS)
        body = self.files.get(name)
        with suppress(OSError):  # who asked may be gone
            handler.send_response(200 if body is not None else 404)
            handler.send_header("Content-Length", str(len(body or b"")))
            handler.end_headers()
            handler.wfile.write(body or b"")

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.go.set()
            self._server.shutdown()
            self._server.server_close()
