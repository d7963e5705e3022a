# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP requests to the API server and to sidecars: one try, no redirect, bounded time and size."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import urllib3

FAILURES = (urllib3.exceptions.HTTPError, OSError)
_CHUNK_BYTES = 1 << 16
_MAX_REASON = 200


def send(
    pool: Any,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    timeout: urllib3.Timeout,
    body: bytes | None = None,
) -> urllib3.BaseHTTPResponse:
    """Send through a pool of urllib3 and return once the headers are there."""
    response: urllib3.BaseHTTPResponse = pool.request(
        method, url, headers=headers, body=body, timeout=timeout,
        preload_content=False, retries=False, redirect=False,
    )  # fmt: skip
    return response


def chunks(
    response: urllib3.BaseHTTPResponse, *, until: float, max_bytes: int, name: str = "its answer"
) -> Iterator[bytes]:
    """Read the body as it arrives; OSError if it is cut off, too large, or not over at `until`."""
    size = 0
    while chunk := _read_available(response, name):
        size += len(chunk)
        if size > max_bytes:
            raise OSError(f"{name} is larger than {max_bytes} bytes")
        if time.monotonic() > until:
            raise OSError(f"{name} does not end in time")
        yield chunk


def _read_available(response: urllib3.BaseHTTPResponse, name: str) -> bytes:
    # `read1` returns what has arrived: `read` and `stream` would wait for a server that drips.
    try:
        return response.read1(_CHUNK_BYTES, decode_content=False)
    except urllib3.exceptions.ProtocolError:
        raise OSError(f"{name} was cut off") from None


def reason(error: BaseException) -> str:
    """Why a request failed, in a few words: those of the operating system if it gave any."""
    inside = (each for each in error.args if isinstance(each, BaseException))
    cause = error.__cause__ or next(inside, error)
    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return " ".join(str(text).split())[:_MAX_REASON]
