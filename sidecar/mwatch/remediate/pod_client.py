# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Requests to the sidecars of one or of all pods, with the job's token and a time limit.

The token is meant for that address alone: no redirect is followed and no proxy is used. The server
at the address is not trusted: its answers are bounded, and count for its own pod only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from mwatch import json_codec
from mwatch.errors import MwatchError
from mwatch.runtime.http_client import HttpRequest, HttpResponse, RequestFailed, fetch, reason

_MAX_REPLY_BYTES = 1 << 20
_AT_ONCE = 128
_END_SECONDS = 1.0


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
    is_new: bool = False
    """Its token may not be mounted yet: the kubelet takes up to a minute and a half."""


def ask_all(
    pods: Iterable[PodAddress],
    path: str,
    token: str,
    *,
    each_seconds: float,
    seconds: float,
    body: Mapping[str, Any] | None = None,
    may_go_on: Callable[[], bool] = lambda: True,
) -> dict[str, Reply | NoAnswer]:
    """Send the same request to all pods and return the replies by pod. The requests start in the
    given order, in one thread: thousands of threads would cost more than the requests. With a
    `body` it is a POST."""
    work = _ask_all(list(pods), path, token, body, (each_seconds, seconds), may_go_on)
    return asyncio.run(work)


async def _ask_all(
    pods: list[PodAddress],
    path: str,
    token: str,
    body: Mapping[str, Any] | None,
    limits: tuple[float, float],
    may_go_on: Callable[[], bool],
) -> dict[str, Reply | NoAnswer]:
    each_seconds, seconds = limits
    found: dict[str, Reply | NoAnswer] = {}
    room = asyncio.Semaphore(_AT_ONCE)

    async def ask(pod: PodAddress) -> None:
        async with room:
            if not may_go_on():
                return
            request = _request(pod, path, token, body)
            try:
                limit = max(0.1, each_seconds)
                answer = await fetch(request, seconds=limit, max_bytes=_MAX_REPLY_BYTES)
                found[pod.pod] = _reply(answer)
            except RequestFailed as error:
                found[pod.pod] = NoAnswer(str(error))

    tasks = [asyncio.create_task(ask(each)) for each in pods]
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=max(0.1, seconds))
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=_END_SECONDS)
    late_text = f"no answer within {seconds:.0f} s"
    return {each.pod: found.get(each.pod, NoAnswer(late_text)) for each in pods}


def get(address: PodAddress, path: str, token: str, seconds: float) -> Reply:
    return _reply(_ask(address, path, token, seconds))


def download(
    address: PodAddress, path: str, token: str, target: Path, *, seconds: float, max_bytes: int
) -> Reply | None:
    """Write the whole file or nothing. Return None if done, else the reply that is not a file."""
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
    max_bytes: int = _MAX_REPLY_BYTES,
    sink: Callable[[bytearray], object] | None = None,
) -> HttpResponse:
    request = _request(address, path, token)
    work = fetch(request, seconds=max(0.1, seconds), max_bytes=max_bytes, sink=sink)
    try:
        return asyncio.run(work)
    except RequestFailed as error:
        raise NoAnswer(str(error)) from None


def _request(
    address: PodAddress, path: str, token: str, body: Mapping[str, Any] | None = None
) -> HttpRequest:
    headers = {"Authorization": f"Bearer {token}"}
    request = HttpRequest(address.host, address.port, path, headers=headers)
    if body is None:
        return request
    headers["Content-Type"] = "application/json"
    return request._replace(method="POST", body=json.dumps(body).encode())


def _reply(response: HttpResponse) -> Reply:
    try:
        body = json_codec.decode(response.body)
    except ValueError:
        body = {}
    return Reply(response.status, body if isinstance(body, dict) else {})
