# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One process that is the sidecar of every pod: who is asked is told by the address that is called.

`python -m benchmarks.cluster.fleet SEEDS`. It listens on port 9401 of all addresses, and for the
benchmark's own orders on 127.0.0.1, port 9400. As a sidecar it answers one request on each
connection, or follows it with lines. It gives its evidence to anybody who brings a token. It
restarts in place only after the order `/wrappers`, which names the controller: then each wrapper
ends its trainer after a second, and asks there for its next attempt as real ones do.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from benchmarks.cluster.fleet_page import Fleet, Place, PodPage
from benchmarks.cluster.seeds import Seeds
from benchmarks.cluster.training import Kind, Training
from mwatch import json_codec
from mwatch.runtime.http_client import HttpRequest, RequestFailed, fetch
from mwatch.sidecar.follow import WHOLE_SECONDS

PORT = 9401
ORDERS = 9400
_BACKLOG = 4096
_MAX_REQUEST = 1 << 22
_LOOK_SECONDS = 1.0
_END_SECONDS = 1.0
_ASK_SECONDS = 3.0
_ASK_AGAIN_SECONDS = 1.0
_TOKEN = re.compile(rb"\r\n[Aa]uthorization: ([^\r]*)")
_STREAM = b"HTTP/1.1 200 Answer\r\nServer: mwatch\r\nTransfer-Encoding: chunked\r\n\r\n"


class Sidecars:
    """All pods, by address."""

    def __init__(self, seeds: Seeds) -> None:
        self._seeds = seeds
        self._attempts: HttpRequest | None = None
        """Where wrappers ask for their attempt; None: they refuse to restart."""
        self._wrappers: set[asyncio.Task[None]] = set()
        self._training = Training(time.time())
        self._pages: dict[str, PodPage] = {}
        self.counts: Counter[str] = Counter()

    def answer(self, address: str, method: str, target: str, token: str = "") -> bytes:
        path, _, query = target.partition("?")
        page = self._pages.get(address)
        if page is None:
            self.counts["unknown"] += 1
            return response(404, {"error": "nobody lives here"})
        self.counts[f"{method} {path.partition('.')[0] if path.endswith('.tgz') else path}"] += 1
        if path == "/v1/snapshot" and method == "GET":
            after = parse_qs(query).get("after", [""])[0]
            return answered(200, page.answer(after, time.time()))
        if path == "/v1/evidence":
            made = {"id": "seed", "state": "there"}
            listed = {"version": 1, "bundles": [made]}
            return response(202, made) if method == "POST" else response(200, listed)
        if path == "/v1/evidence/seed.tgz":
            return answered(200, self._seeds.bundle, "application/gzip")
        if path == "/v1/restart" and method == "POST" and self._attempts is not None:
            headers = {"Mwatch-Pod": page.name, "Mwatch-After": "1", "Authorization": token}
            task = asyncio.create_task(_wrapper(self._attempts._replace(headers=headers)))
            self._wrappers.add(task)
            task.add_done_callback(self._wrappers.discard)
            return response(202, {"outcome": "accepted"})
        if path == "/v1/restart" and method == "POST":
            return response(502, {"outcome": "refused", "error": "it does not answer"})
        return response(404, {"error": "no such page"})

    def followed(self, address: str, target: str) -> PodPage | None:
        """Whoever is asked for a stream."""
        path, _, query = target.partition("?")
        if path != "/v1/snapshot" or "follow" not in parse_qs(query):
            return None
        return self._pages.get(address)

    def order(self, method: str, target: str, body: bytes) -> bytes:
        given = json_codec.decode(body) if body else {}
        match target:
            case "/pods":
                self._settle(given)
            case "/stop":
                now = time.time()
                self._training.stops(given["pod"], now)
                return response(200, {"at": now})
            case "/wrappers":
                self._attempts = HttpRequest(given["host"], given["port"], given["path"])
            case "/stats":
                return response(200, {"counts": self.counts, "cpu_seconds": time.process_time()})
        return response(200, {"pods": len(self._pages)})

    def _settle(self, given: dict[str, Any]) -> None:
        """A new gang: training begins anew."""
        places = [Place(**each) for each in given["pods"]]
        self._training = Training(time.time())
        fleet = Fleet(
            given["run"], len(places), given["attempt"], self._training, self._seeds.answers
        )
        self._pages = {place.address: PodPage(place, fleet) for place in places}
        gc.collect()
        gc.freeze()  # thousands of pages that stay: no reason to look at them again


async def _wrapper(request: HttpRequest) -> None:
    """Ends its trainer, then asks until it is told to start."""
    await asyncio.sleep(_END_SECONDS)
    while True:
        try:
            _, body = await fetch(request, seconds=_ASK_SECONDS, max_bytes=1 << 16)
            answer = json_codec.decode(body)
            if not answer.get("wait"):
                return
            await asyncio.sleep(answer["again_seconds"])
        except (RequestFailed, ValueError):
            pass  # the controller is busy
        await asyncio.sleep(_ASK_AGAIN_SECONDS)


def response(status: int, body: dict[str, Any]) -> bytes:
    return answered(status, json_codec.encode(body))


def answered(status: int, body: bytes, kind: str = "application/json") -> bytes:
    return (
        b"HTTP/1.1 %d Answer\r\nServer: mwatch\r\nContent-Type: %b\r\nContent-Length: %d\r\n"
        b"Connection: close\r\nX-Content-Type-Options: nosniff\r\n\r\n"
        % (status, kind.encode(), len(body))
    ) + body


class _Connection(asyncio.Protocol):
    def __init__(self, sidecars: Sidecars) -> None:
        self._sidecars = sidecars
        self._data = b""
        self._stream: _Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._address, self._port = transport.get_extra_info("sockname")[:2]

    def data_received(self, data: bytes) -> None:
        if self._stream is not None:
            self._stream.is_asked = True
            return
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if len(self._data) > _MAX_REQUEST:
            self._transport.abort()
        if not end or len(body) < _length(head):
            return
        method, target, _ = head.partition(b"\r\n")[0].decode("latin-1").split(" ", 2)
        page = self._sidecars.followed(self._address, target)
        if self._port == ORDERS:
            self._transport.write(self._sidecars.order(method, target, body))
        elif page is not None and method == "GET":
            query = parse_qs(target.partition("?")[2])
            period, after = float(query["follow"][0]), query.get("after", [""])[0]
            self._stream = _Stream(self._transport, page, self._sidecars.counts, period)
            self._stream.start(after)
            return
        else:
            token = _TOKEN.search(head)
            words = token[1].decode("latin-1") if token else ""
            self._transport.write(self._sidecars.answer(self._address, method, target, words))
        self._transport.close()


class _Stream:
    """Lines for one who follows a pod."""

    def __init__(
        self, transport: asyncio.Transport, page: PodPage, counts: Counter[str], period: float
    ) -> None:
        self._transport, self._page, self._counts = transport, page, counts
        self._period = period
        self._cursor, self._kind = "", Kind.MOVING
        self._due = self._whole_due = 0.0
        self.is_asked = False

    def start(self, after: str) -> None:
        self._cursor = after
        self._transport.write(_STREAM)
        # Sidecars of thousands of pods are started at thousands of moments.
        self._whole_due = time.monotonic() + WHOLE_SECONDS * random.random()
        self._send(is_steady=False)
        self._look()

    def _look(self) -> None:
        """Whether it is time, or something happened."""
        if self._transport.is_closing():
            return
        now, kind = time.monotonic(), self._page.kind(time.time() - 1.0)
        is_asked, self.is_asked = self.is_asked, False
        if is_asked or kind is not self._kind or now >= self._due:
            is_old = now >= self._whole_due
            self._send(is_steady=kind is self._kind and not is_old)
            self._kind = kind
            if is_old:
                self._whole_due = now + WHOLE_SECONDS
        wait = self._due - now if now + _LOOK_SECONDS > self._due else _LOOK_SECONDS
        asyncio.get_running_loop().call_later(max(0.01, wait), self._look)

    def _send(self, *, is_steady: bool) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._period
        line, self._cursor = self._page.line(self._cursor, time.time(), is_steady=is_steady)
        self._counts["GET /v1/snapshot"] += 1
        self._transport.write(b"%x\r\n%b\r\n" % (len(line), line))


def _length(head: bytes) -> int:
    if not head.startswith(b"POST"):
        return 0
    lines = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    return next((int(value) for name, _, value in lines if name == b"content-length"), 0)


def read_seeds(path: Path) -> Seeds:
    body = json_codec.decode(path.read_bytes())
    answers = {Kind(name): answer for name, answer in body["answers"].items()}
    return Seeds(answers, base64.b64decode(body["bundle"]))


def write_seeds(path: Path, seeds: Seeds) -> None:
    bundle = base64.b64encode(seeds.bundle).decode()
    answers = {kind.value: answer for kind, answer in seeds.answers.items()}
    path.write_bytes(json_codec.encode({"answers": answers, "bundle": bundle}))


async def serve(sidecars: Sidecars) -> None:
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(lambda: _Connection(sidecars), host, port, backlog=_BACKLOG)
        for host, port in (("0.0.0.0", PORT), ("127.0.0.1", ORDERS))
    ]
    print(f"fleet of process {os.getpid()} listens", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(serve(Sidecars(read_seeds(Path(sys.argv[1])))))
