# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A real server on a free port, and a plain client for it."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from mwatch.export.http.server import Pages, Server

WAIT = 60.0


@contextmanager
def served(pages: Pages, **more: Any) -> Iterator[Server]:
    server = Server(pages, port=0, **more)
    try:
        yield server
    finally:
        server.close()


def get(
    port: int, path: str, method: str = "GET", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.headers)


def poll(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + WAIT
    while not (is_so := condition()) and time.monotonic() < until:
        time.sleep(0.01)
    return is_so


def post(port: int, path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)) as connection:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def raw(port: int, data: bytes) -> bytes:
    with closing(socket.create_connection(("127.0.0.1", port), WAIT)) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        got = b""
        while chunk := client.recv(1 << 16):
            got += chunk
    return got
