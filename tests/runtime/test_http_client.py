# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The HTTP client reads a body however it arrives, and fails in one way, within its limits."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable

import pytest

from mwatch.runtime.http_client import (
    FailureKind,
    HttpRequest,
    HttpResponse,
    RequestFailed,
    Streams,
    fetch,
    follow,
)

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
USUAL = HttpRequest("127.0.0.1", 0, "/v1/x")
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length:5\r\n\r\n"


async def exchange(
    pieces: list[bytes], sink: Callable[[bytearray], object] | None, request: HttpRequest
) -> tuple[HttpResponse, bytes]:
    """Each piece is sent on its own, then the connection is closed."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, request.host, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        got = await fetch(request._replace(port=port), seconds=60.0, max_bytes=1000, sink=sink)
    return got, asked[0]


def ask(
    *pieces: bytes,
    sink: Callable[[bytearray], object] | None = None,
    request: HttpRequest = USUAL,
) -> tuple[HttpResponse, bytes]:
    return asyncio.run(exchange(list(pieces), sink, request))


def bytewise(data: bytes) -> list[bytes]:
    return [data[n : n + 1] for n in range(len(data))]


@pytest.mark.parametrize(
    "pieces",
    [
        [PLAIN + b"hello"],
        [PLAIN + b"he", b"llo and more than was announced"],
        [CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"],
        bytewise(CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
        bytewise(PLAIN + b"hello"),
    ],
)
def test_the_body_is_the_same_however_it_arrives(pieces: list[bytes]) -> None:
    assert ask(*pieces)[0] == HttpResponse(200, bytearray(b"hello"))
    parts = bytearray()
    assert ask(*pieces, sink=parts.extend)[0] == HttpResponse(200, bytearray())
    assert parts == b"hello"


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (PLAIN + b"hell", FailureKind.UNREACHABLE, "cut off"),
        (CHUNKED + b"5\r\nhello\r\n", FailureKind.UNREACHABLE, "cut off"),
        (b"", FailureKind.UNREACHABLE, "cut off"),
        (CHUNKED + b"5\r\nhello\r\nfive\r\n", FailureKind.BAD, "not valid HTTP"),
        (CHUNKED + b"5\r\nhelloXXXXXXXXXXXXXXXXX", FailureKind.BAD, "not valid HTTP"),
        (CHUNKED + b"1f4\r\n" + b"x" * 500 + b"\r\n1f5\r\n", FailureKind.LARGE, "1000 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", FailureKind.BAD, "HTTP/1.1 200 OK"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", FailureKind.BAD, "HTTP/1.1 200 OK"),
    ],
)
def test_an_incomplete_or_invalid_response_fails(answer: bytes, kind: str, text: str) -> None:
    with pytest.raises(RequestFailed, match=text) as caught:
        ask(answer)
    assert caught.value.kind == kind


def test_an_error_response_does_not_go_to_the_sink() -> None:
    parts = bytearray()
    answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"
    assert ask(answer, sink=parts.extend)[0] == HttpResponse(404, bytearray(b"no"))
    assert parts == b""


def test_a_sink_that_cannot_write_ends_the_request() -> None:
    def full(_: bytearray) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(RequestFailed, match="No space left"):
        ask(PLAIN + b"hello", sink=full)


def test_a_path_or_a_header_cannot_add_lines_to_the_request() -> None:
    request = HttpRequest("127.0.0.1", 0, "/v1/x\r\nX: y", headers={"Authorization": "Bearer t"})
    asked = ask(PLAIN + b"hello", request=request)[1]
    assert asked.startswith(b"GET /v1/x%0D%0AX%3A%20y HTTP/1.1\r\nHost: 127.0.0.1:")
    with pytest.raises(RequestFailed, match="invalid character"):
        ask(PLAIN, request=request._replace(headers={"Authorization": "a\r\nX: y"}))


def test_an_ipv6_address_is_in_brackets_in_the_host_header() -> None:
    assert b"\r\nHost: [::1]:80\r\n" in HttpRequest("::1", 80, "/").encoded()


async def two_streams(quiet_seconds: float) -> tuple[list[bytes], str]:
    """The lines of one that goes on for five times as long, and why the other ended."""
    quiet = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        for number in range(20):
            writer.write(b"2\r\n%c\n\r\n" % (ord("a") + number))
            if b"/quiet" in asked:
                await quiet.wait()
            await asyncio.sleep(quiet_seconds / 4)
        writer.write(b"0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        streams, lines = Streams(quiet_seconds), list[bytes]()

        async def read(path: str, line: Callable[[bytes], object]) -> HttpResponse:
            request = HttpRequest("127.0.0.1", port, path)
            return await follow(request, line, seconds=60.0, streams=streams, max_bytes=1000)

        going, silent = (asyncio.create_task(each) for each in (
            read("/on", lines.append), read("/quiet", lambda line: None)))  # fmt: skip
        with pytest.raises(RequestFailed) as ended:
            await silent
        quiet.set()
        await going
    return lines, str(ended.value)


def test_a_stream_without_a_line_is_ended_and_the_others_go_on() -> None:
    lines, why = asyncio.run(two_streams(2.0))
    assert b"".join(lines) == b"abcdefghijklmnopqrst" and why == "no further line within 2 s"
