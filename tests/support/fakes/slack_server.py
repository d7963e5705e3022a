# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A server on the loopback that takes incoming webhooks in Slack's form, as Slack and Mattermost
do: JSON with `text` or `attachments`. It refuses anything else, or never answers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

SECRET = "pLaNtEd" + "Webhook1234567890abcd"
SECONDS = 60.0


class Posted(NamedTuple):
    path: str
    payload: dict[str, Any]

    @property
    def text(self) -> str:
        """Title and text, as a reader sees them."""
        parts = [self.payload.get("text", "")]
        for each in self.payload.get("attachments", ()):
            parts += [each.get("title", ""), each.get("text", "")]
        return "\n".join(part for part in parts if part)

    @property
    def title(self) -> str:
        return self.text.splitlines()[0]


class SlackServer:
    def __init__(self, *, answers: bool) -> None:
        self.answers = answers
        self.released = threading.Event()
        self.all: list[Posted] = []
        self._came = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._server.slack = self  # type: ignore[attr-defined]
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self.hooks = f"http://{self.address}/services"
        self.url = f"mmost://{self.address}/{SECRET}"
        self.url_without_limit = f"{self.url}?rto=600"
        """Of time: `apprise` itself would give up after a few seconds."""
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def titles(self) -> list[str]:
        return [each.title for each in self.all]

    def wait(self, count: int) -> list[Posted]:
        """Until so many messages have come."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.all) >= count, SECONDS), self.titles
            return list(self.all)

    def take(self, posted: Posted) -> None:
        with self._came:
            self.all.append(posted)
            self._came.notify_all()

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        slack: SlackServer = self.server.slack  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        is_json = self.headers["Content-Type"].startswith("application/json")
        payload = json.loads(body) if is_json else {}
        posted = Posted(self.path, payload)
        slack.take(posted)
        if not slack.answers:
            slack.released.wait(SECONDS)
            return
        status, text = (200, b"ok") if posted.text else (400, b"no_text")
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


@contextmanager
def slack_server(*, answers: bool = True) -> Iterator[SlackServer]:
    server = SlackServer(answers=answers)
    try:
        yield server
    finally:
        server.close()
