# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One request to the sidecar of one pod, with the job's token and a time limit.

The token is meant for that address alone: no redirect is followed and no proxy is used. The server
at the address may lie, so its answers are bounded and only trusted about its own pod.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import urllib3

from mwatch import json_codec
from mwatch.errors import MwatchError
from mwatch.runtime import http_client

_MAX_REPLY_BYTES = 1 << 20


class NoAnswer(MwatchError):
    """No usable answer in time; the text is the reason."""


class Reply(NamedTuple):
    status: int
    body: Mapping[str, Any]

    @property
    def error(self) -> str:
        return str(self.body.get("error") or f"status {self.status}")[:200]


class PodAddress(NamedTuple):
    pod: str
    uid: str
    host: str
    port: int


def post(
    address: PodAddress, path: str, token: str, body: Mapping[str, Any], seconds: float
) -> Reply:
    until = time.monotonic() + seconds
    data = json.dumps(body).encode()
    with _opened(address, "POST", path, token, seconds, data) as response:
        return _reply(response, until)


def get(address: PodAddress, path: str, token: str, seconds: float) -> Reply:
    until = time.monotonic() + seconds
    with _opened(address, "GET", path, token, seconds) as response:
        return _reply(response, until)


def download(
    address: PodAddress, path: str, token: str, target: Path, *, seconds: float, max_bytes: int
) -> Reply | None:
    """Write the whole file or nothing. None: done; a reply that is not a file is returned."""
    until = time.monotonic() + seconds
    part = target.with_name(target.name + ".part")
    try:
        with _opened(address, "GET", path, token, seconds) as response:
            if response.status != 200:
                return _reply(response, until)
            with part.open("wb") as file:
                for chunk in http_client.chunks(
                    response, until=until, max_bytes=max_bytes, name="its bundle"
                ):
                    file.write(chunk)
            part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return None


@contextmanager
def _opened(
    address: PodAddress,
    method: str,
    path: str,
    token: str,
    seconds: float,
    body: bytes | None = None,
) -> Iterator[urllib3.BaseHTTPResponse]:
    """The response until its body is read; any failure meanwhile is NoAnswer."""
    headers = {"Authorization": f"Bearer {token}", "Connection": "close"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    timeout = urllib3.Timeout(total=max(0.1, seconds))
    try:
        with (
            urllib3.HTTPConnectionPool(address.host, address.port) as pool,
            http_client.send(
                pool, method, path, headers=headers, timeout=timeout, body=body
            ) as response,
        ):
            yield response
    except http_client.FAILURES as error:
        raise NoAnswer(http_client.reason(error)) from None


def _reply(response: urllib3.BaseHTTPResponse, until: float) -> Reply:
    data = b"".join(http_client.chunks(response, until=until, max_bytes=_MAX_REPLY_BYTES))
    try:
        body = json_codec.decode(data)
    except ValueError:
        body = {}
    return Reply(response.status, body if isinstance(body, dict) else {})
