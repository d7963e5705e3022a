# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One question to one sidecar: `GET /v1/snapshot?after=CURSOR`, and what came of it.

As little HTTP as that needs: our own server answers, with a length, and redirects nobody. Whatever
else answers at that address is told as a problem, never followed and never believed.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from urllib.parse import quote

import orjson

from mwatch.export.request import in_url
from mwatch.model.snapshot_wire import PodSnapshot, from_wire

_MAX_WORDS = 160
_HEAD_BYTES = 16 << 10
_WHOLE_BYTES = 1 << 20
"""A sidecar ends an answer of so many bytes, and sends the rest with the next."""


class PollLimits(NamedTuple):
    seconds: float = 2.0
    """From the first packet to the last."""
    at_once: int = 256
    max_bytes: int = 8 << 20
    untaken: int = 8192
    """Answers that nobody has taken yet: with more, nobody is asked."""


class Answered(NamedTuple):
    snapshot: PodSnapshot | None
    problem: str = ""
    kind: str = ""
    is_whole: bool = True

    def of(self, uid: str, namespace: str, name: str) -> Answered:
        """As it is, where it is of that pod; else refused."""
        if self.snapshot is None:
            return self
        who = self.snapshot.who
        if (who.uid, who.namespace, who.pod) == (uid, namespace, name):
            return self
        words = f"pod {who.namespace}/{who.pod} (UID {who.uid})"
        return Answered(None, f"refused: who answers there is {words}"[:_MAX_WORDS], "foreign")


class Ask(asyncio.Protocol):
    def __init__(self, address: str, port: int, cursor: str, limits: PollLimits) -> None:
        self._address = address
        self._port = port
        self._cursor = cursor
        self._limits = limits
        self._data = bytearray()
        self._wanted: int | None = None
        """Bytes of head and body."""
        self._transport: asyncio.BaseTransport | None = None
        self._end: asyncio.Future[Answered] | None = None

    async def answer(self, loop: asyncio.AbstractEventLoop) -> Answered:
        """Never raises for what the other side does, and never takes longer than the limit."""
        end: asyncio.Future[Answered] = loop.create_future()
        self._end = end
        timer = loop.call_later(self._limits.seconds, self._late)
        opening = loop.create_task(loop.create_connection(lambda: self, self._address, self._port))
        opening.add_done_callback(self._opened)
        try:
            return await end
        finally:
            timer.cancel()
            opening.cancel()
            if self._transport is not None:
                self._transport.close()

    def _opened(self, task: asyncio.Task[object]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._give(Answered(None, f"{_words(error)}", "unreachable"))

    def _late(self) -> None:
        text = f"no answer within {self._limits.seconds:g} s"
        self._give(Answered(None, text, "late"))

    def _give(self, answered: Answered) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(answered)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._end is None or self._end.done():
            transport.close()
            return
        host = in_url(self._address)
        after = f"?after={quote(self._cursor, safe='.')}" if self._cursor else ""
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(
            f"GET /v1/snapshot{after} HTTP/1.1\r\nHost: {host}:{self._port}\r\n"
            "Accept: application/json\r\nConnection: close\r\n\r\n".encode("ascii")
        )

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._wanted is None:
            self._read_head()
        if len(self._data) > self._limits.max_bytes:
            self._give(Answered(None, "its answer is too long", "large"))
        elif self._wanted is not None and len(self._data) >= self._wanted:
            self._give(self._read())

    def connection_lost(self, error: Exception | None) -> None:
        self._give(Answered(None, "its answer broke off", "unreachable"))

    def _read_head(self) -> None:
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            if len(self._data) > _HEAD_BYTES:
                self._give(Answered(None, "what answers there is no sidecar", "bad"))
            return
        status, *fields = bytes(self._data[:end]).split(b"\r\n")
        length = next(
            (each[15:].strip() for each in fields if each[:15].lower() == b"content-length:"), b""
        )
        if status.split(b" ")[1:2] != [b"200"] or not length.isdigit() or len(length) > 12:
            text = status.decode("ascii", "replace")[:_MAX_WORDS]
            self._give(Answered(None, f"it answers with {text!r}", "bad"))
            return
        self._wanted = end + 4 + int(length)

    def _read(self) -> Answered:
        assert self._wanted is not None
        body = memoryview(self._data)[self._data.find(b"\r\n\r\n") + 4 : self._wanted]
        try:
            found = orjson.loads(body)
            if isinstance(found, dict) and len(found) == 1:
                return Answered(None, "its sidecar has not looked yet", "bad")
            snapshot = from_wire(found)
        except (ValueError, AttributeError) as error:
            return Answered(None, f"its answer cannot be read: {_words(error)}", "bad")
        return Answered(snapshot, is_whole=len(body) < _WHOLE_BYTES)


def _words(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:_MAX_WORDS]
