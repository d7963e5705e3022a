# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One request to one pod's sidecar, with the job's token and within a time limit.

No redirect is followed and no proxy is used: the token is for that address alone. Which address
is the pod's the API server has said; what answers there may lie all the same, so its answers are
read within bounds and believed as far as a pod may be believed about itself.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

_MAX_ANSWER = 1 << 20
_CHUNK = 1 << 16


class NoAnswer(Exception):
    """With the reason, in a few words."""


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
    where: PodAddress, path: str, token: str, body: Mapping[str, Any], seconds: float
) -> Reply:
    """NoAnswer where there is none in time."""
    return _small(where, "POST", path, token, json.dumps(body).encode(), seconds)


def get(where: PodAddress, path: str, token: str, seconds: float) -> Reply:
    return _small(where, "GET", path, token, None, seconds)


def download(
    where: PodAddress, path: str, token: str, target: Path, *, seconds: float, most: int
) -> Reply | None:
    """Into `target`, whole or not at all; None: done. A reply that is no file is given back."""
    until = time.monotonic() + seconds
    part = target.with_name(target.name + ".part")
    try:
        connection, response = _asked(where, "GET", path, token, None, seconds)
        try:
            if response.status != 200:
                return Reply(response.status, _json(_read(response, until)))
            _copy(connection, response, part, until, most)
        finally:
            connection.close()
        part.replace(target)
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswer(_why(error)) from None
    finally:
        part.unlink(missing_ok=True)
    return None


def _small(
    where: PodAddress, method: str, path: str, token: str, body: bytes | None, seconds: float
) -> Reply:
    until = time.monotonic() + seconds
    try:
        connection, response = _asked(where, method, path, token, body, seconds)
        try:
            return Reply(response.status, _json(_read(response, until)))
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswer(_why(error)) from None


def _asked(
    where: PodAddress, method: str, path: str, token: str, body: bytes | None, seconds: float
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(where.host, where.port, timeout=max(0.1, seconds))
    headers = {"Authorization": f"Bearer {token}", "Connection": "close"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, path, body, headers)
        return connection, connection.getresponse()
    except BaseException:
        connection.close()
        raise


def _read(response: http.client.HTTPResponse, until: float) -> bytes:
    parts, size = list[bytes](), 0
    while chunk := response.read1(_CHUNK):
        parts.append(chunk)
        size += len(chunk)
        if size > _MAX_ANSWER or time.monotonic() > until:
            raise OSError("its answer does not end")
    return b"".join(parts)


def _copy(
    connection: http.client.HTTPConnection,
    response: http.client.HTTPResponse,
    part: Path,
    until: float,
    most: int,
) -> None:
    size = 0
    with part.open("wb") as file:
        while chunk := response.read1(_CHUNK):
            size += len(chunk)
            left = until - time.monotonic()
            if size > most:
                raise OSError(f"its bundle is larger than {most} bytes")
            if left <= 0:
                raise OSError("its bundle does not come in time")
            if connection.sock is not None:
                connection.sock.settimeout(left)
            file.write(chunk)
    expected = response.getheader("Content-Length")
    if expected is not None and expected.isdigit() and int(expected) != size:
        raise OSError("its bundle was cut off")


def _json(data: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _why(error: BaseException) -> str:
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(words).split())[:200]
