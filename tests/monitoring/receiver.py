# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a pager is to Alertmanager: a web server that takes its messages."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_POLL_SECONDS = 0.1


class Receiver:
    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self.url = ""

    def take(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._messages.append(message)

    def alerts(self, name: str, run: str) -> list[dict[str, Any]]:
        """All of this name and run that were ever sent, in the order of their coming."""
        with self._lock:
            sent = [alert for message in self._messages for alert in message["alerts"]]
        wanted = {"alertname": name, "run": run}
        return [alert for alert in sent if wanted.items() <= alert["labels"].items()]


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        timeout = 60

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.take(json.loads(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """A message is no news for the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}/"
        thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join(10)
