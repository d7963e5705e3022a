# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One process that is the sidecar of every pod: who is asked is told by the address that is called.

`python -m benchmarks.cluster.fleet SEEDS`. It listens on port 9401 of all addresses, and for the
benchmark's own orders on 127.0.0.1, port 9400. As a sidecar it answers one request on each
connection. It gives its evidence to anybody who brings a token, and never restarts in place.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import os
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

PORT = 9401
ORDERS = 9400
_BACKLOG = 4096
_MAX_REQUEST = 1 << 22


class Sidecars:
    """All pods, by address."""

    def __init__(self, seeds: Seeds) -> None:
        self._seeds = seeds
        self._training = Training(time.time())
        self._pages: dict[str, PodPage] = {}
        self.counts: Counter[str] = Counter()

    def answer(self, address: str, method: str, target: str) -> bytes:
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
        if path == "/v1/restart" and method == "POST":
            return response(502, {"outcome": "refused", "error": "it does not answer"})
        return response(404, {"error": "no such page"})

    def order(self, method: str, target: str, body: bytes) -> bytes:
        given = json_codec.decode(body) if body else {}
        match target:
            case "/pods":
                self._settle(given)
            case "/stop":
                now = time.time()
                self._training.stops(given["pod"], now)
                return response(200, {"at": now})
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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._address, self._port = transport.get_extra_info("sockname")[:2]

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if len(self._data) > _MAX_REQUEST:
            self._transport.abort()
        if not end or len(body) < _length(head):
            return
        method, target, _ = head.partition(b"\r\n")[0].decode("latin-1").split(" ", 2)
        if self._port == ORDERS:
            self._transport.write(self._sidecars.order(method, target, body))
        else:
            self._transport.write(self._sidecars.answer(self._address, method, target))
        self._transport.close()


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
