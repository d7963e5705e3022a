# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A fake API server: answers what it is told to, in order, and notes what it was asked.

What the real one does is in `tests/cluster`; this one is for what it rarely does.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Reply(NamedTuple):
    status: int
    body: Any = None
    headers: dict[str, str] | None = None
    is_cut: bool = False
    """The connection breaks instead of an answer."""


class FakeApi:
    def __init__(
        self, *answers: Reply, by_path: Mapping[str, Reply], behind: Mapping[str, int]
    ) -> None:
        self.answers = list(answers)
        self.by_path = by_path
        self.behind = behind
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.address = ""

    def next(self, path: str) -> Reply:
        if (known := self.by_path.get(path.partition("?")[0])) is not None:
            return known
        for prefix, port in self.behind.items():
            if path.startswith(f"{prefix}/"):
                return proxied(port, prefix, path.removeprefix(prefix))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def proxied(port: int, prefix: str, path: str) -> Reply:
    """As the API server passes a page on: its own path is put before the links of HTML."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            data = answer.read()
        except OSError as error:
            return Reply(503, {"kind": "Status", "message": f"error trying to reach it: {error}"})
    headers = {
        name: value
        for name, value in answer.headers.items()
        if name.lower() not in ("content-length", "connection", "transfer-encoding")
    }
    if headers.get("Content-Type", "").startswith("text/html"):
        data = data.replace(b'href="/', f'href="{prefix}/'.encode())
    return Reply(answer.status, data, headers)


@contextmanager
def fake_api(
    *answers: Reply,
    by_path: Mapping[str, Reply] | None = None,
    behind: Mapping[str, int] | None = None,
) -> Iterator[FakeApi]:
    """The last answer is given for ever; `by_path`: what comes before them all; `behind`: ports of
    this machine whose pages are passed on, by the beginning of the path."""
    api = FakeApi(*answers, by_path=by_path or {}, behind=behind or {})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            api.asked.append((self.command, self.path, dict(self.headers), self.rfile.read(length)))
            said = api.next(self.path)
            if said.is_cut:
                self.close_connection = True
                self.connection.close()
                return
            data = said.body if isinstance(said.body, bytes) else json.dumps(said.body).encode()
            self.send_response(said.status)
            for name, value in (said.headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    api.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
