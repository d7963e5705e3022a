# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A hub of datasets on this machine: lists, redirects to a store, stumbles as it is told.

It stands for the real one, which tests must not need. Two ports make two hosts, so what is sent
on to another host can be seen.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

COMMIT = "c0ffee"
PAGE = 2
"""Files on one page of a listing: the real hub has a thousand."""


class Seen(NamedTuple):
    path: str
    authorization: str | None
    range: str | None


class FakeHub:
    """Files by path; `stumbles` holds what the store does first: 503, 429, "cut", "damage"."""

    def __init__(self, files: dict[str, bytes], token: str = "") -> None:
        self.files = files
        self.token = token
        self.knows_ranges = True
        self.stumbles: dict[str, list[int | str]] = {}
        self.seen: list[Seen] = []
        self.stored: list[Seen] = []
        self.gets: Counter[str] = Counter()
        self._hub = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self._answer_hub))
        self._store = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self._answer_store))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._hub.server_port}"

    @property
    def store(self) -> str:
        return f"http://127.0.0.1:{self._store.server_port}"

    def start(self) -> None:
        for each in (self._hub, self._store):
            threading.Thread(target=each.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        for each in (self._hub, self._store):
            each.shutdown()
            each.server_close()

    def _answer_hub(self, handler: BaseHTTPRequestHandler) -> None:
        seen = _seen(handler)
        self.seen.append(seen)
        if self.token and seen.authorization != f"Bearer {self.token}":
            return _send(handler, 401 if seen.authorization is None else 403, b"")
        path, _, query = seen.path.partition("?")
        words = path.strip("/").split("/")
        if words[:2] == ["api", "datasets"] and words[4] == "revision":
            return _send(handler, 200, json.dumps({"sha": COMMIT}).encode())
        if words[:2] == ["api", "datasets"] and words[4] == "tree":
            return self._tree(handler, "/".join(words[6:]), query)
        if words[0] == "datasets" and words[3:5] == ["resolve", COMMIT]:
            target = f"{self.store}/{'/'.join(words[5:])}?signature=secret"
            return _send(handler, 302, b"", {"Location": target})
        return _send(handler, 404, b"")

    def _tree(self, handler: BaseHTTPRequestHandler, folder: str, query: str) -> None:
        # By name, as the hub does it: 10 before 2.
        inside = sorted(each for each in self.files if each.startswith(folder))
        start = int(query.rpartition("cursor=")[2] or 0) if "cursor=" in query else 0
        listed: list[dict[str, Any]] = [{"type": "directory", "path": folder, "size": 0}]
        for path in inside[start : start + PAGE]:
            body = self.files[path]
            large = {"oid": hashlib.sha256(body).hexdigest(), "size": len(body)}
            listed.append({"type": "file", "path": path, "size": len(body), "lfs": large})
        more = {}
        if start + PAGE < len(inside):
            address = f"{handler.path.partition('?')[0]}?recursive=true&cursor={start + PAGE}"
            more = {"Link": f'<{self.url}{address}>; rel="next"'}
        _send(handler, 200, json.dumps(listed).encode(), more)

    def _answer_store(self, handler: BaseHTTPRequestHandler) -> None:
        seen = _seen(handler)
        self.stored.append(seen)
        path = seen.path.partition("?")[0].lstrip("/")
        body = self.files.get(path)
        if body is None:
            return _send(handler, 404, b"")
        self.gets[path] += 1
        stumbles = self.stumbles.get(path)
        stumble = stumbles.pop(0) if stumbles else None
        if isinstance(stumble, int):
            return _send(handler, stumble, b"", {"Retry-After": "0"})
        if stumble == "damage":
            body = body[:-1] + bytes([body[-1] ^ 1])
        return self._send_file(handler, body, seen.range, is_cut=stumble == "cut")

    def _send_file(
        self, handler: BaseHTTPRequestHandler, body: bytes, wanted: str | None, *, is_cut: bool
    ) -> None:
        start, code, more = 0, 200, {}
        if wanted and self.knows_ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            code, more = 206, {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"}
            if start >= len(body):
                return _send(handler, 416, b"")
        rest = body[start:]
        handler.send_response(code)
        for name, value in {"Content-Length": str(len(rest)), **more}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(rest[: len(rest) // 2] if is_cut else rest)
        if is_cut:
            handler.close_connection = True
        return None


def _seen(handler: BaseHTTPRequestHandler) -> Seen:
    return Seen(handler.path, handler.headers.get("Authorization"), handler.headers.get("Range"))


def _send(
    handler: BaseHTTPRequestHandler, code: int, body: bytes, more: dict[str, str] | None = None
) -> None:
    handler.send_response(code)
    for name, value in {"Content-Length": str(len(body)), **(more or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def _handler(answer: Any) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, format: str, *args: Any) -> None:
            return

    return Handler


@contextmanager
def fake_hub(files: dict[str, bytes], token: str = "") -> Iterator[FakeHub]:
    made = FakeHub(files, token)
    made.start()
    try:
        yield made
    finally:
        made.close()
