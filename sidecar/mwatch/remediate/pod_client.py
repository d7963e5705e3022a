# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One request to the sidecar of one pod, with the job's token and a time limit.

The token is meant for that address alone: no redirect is followed and no proxy is used. The server
at the address may lie, so its answers are bounded and only trusted about its own pod.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from mwatch import json_codec
from mwatch.errors import MwatchError
from mwatch.runtime.http_client import HttpRequest, HttpResponse, RequestFailed, fetch, reason

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
    return _reply(_ask(address, path, token, seconds, body=body))


def get(address: PodAddress, path: str, token: str, seconds: float) -> Reply:
    return _reply(_ask(address, path, token, seconds))


def download(
    address: PodAddress, path: str, token: str, target: Path, *, seconds: float, max_bytes: int
) -> Reply | None:
    """Write the whole file or nothing. None: done; a reply that is not a file is returned."""
    part = target.with_name(target.name + ".part")
    try:
        with part.open("wb") as file:
            response = _ask(address, path, token, seconds, max_bytes=max_bytes, sink=file.write)
        if response.status != HTTPStatus.OK:
            return _reply(response)
        part.replace(target)
    except OSError as error:
        raise NoAnswer(reason(error)) from None
    finally:
        part.unlink(missing_ok=True)
    return None


def _ask(
    address: PodAddress,
    path: str,
    token: str,
    seconds: float,
    *,
    body: Mapping[str, Any] | None = None,
    max_bytes: int = _MAX_REPLY_BYTES,
    sink: Callable[[bytearray], object] | None = None,
) -> HttpResponse:
    headers = {"Authorization": f"Bearer {token}"}
    request = HttpRequest(address.host, address.port, path, headers=headers)
    if body is not None:
        headers["Content-Type"] = "application/json"
        request = request._replace(method="POST", body=json.dumps(body).encode())
    work = fetch(request, seconds=max(0.1, seconds), max_bytes=max_bytes, sink=sink)
    try:
        return asyncio.run(work)
    except RequestFailed as error:
        raise NoAnswer(str(error)) from None


def _reply(response: HttpResponse) -> Reply:
    try:
        body = json_codec.decode(response.body)
    except ValueError:
        body = {}
    return Reply(response.status, body if isinstance(body, dict) else {})
