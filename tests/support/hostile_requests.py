# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that nobody honest sends, to every page of a server of mwatch.

The pages are those that the server itself names in its answer to an unknown path.
"""

from __future__ import annotations

import socket
import time
from contextlib import closing
from typing import NamedTuple

_WAIT = 60.0
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "g\0t")
_OUT = (
    "../../../../etc/passwd", "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd",
    "....//....//etc/passwd", "..\\..\\etc\\passwd", "/etc/passwd", "a%00.tgz", ".hidden",
    "x" * 5000, "%ff%fe", "<script>alert(1)</script>", "a;rm -rf", "$(id)", "{}", "a b",
)  # fmt: skip
_TOKENS = ("Bearer ", "Bearer x", "Bearer " + "x" * 20_000, "Basic YTpi", "bearer \xff", "")
_FORBIDDEN = (b"root:x:0", b"Traceback", b'File "/', b"<script>alert(1)")
_REFUSED = frozenset({400, 401, 403, 404, 405, 408, 411, 413, 414, 431, 501, 503, 505})
"""501 is the answer of Python's server to a method that it does not know."""


class Sent(NamedTuple):
    request: bytes
    is_valid: bool = False
    """A plain GET with odd additions; it may be answered."""


def pages(port: int) -> list[str]:
    text = _answer(port, b"GET /no/such/page HTTP/1.1\r\nHost: x\r\n\r\n").decode()
    return text.partition("known pages:")[2].split()


def sweep(port: int) -> list[str]:
    """Return what the server did wrong; it must answer `/healthz` after each page."""
    problems = []
    known = pages(port)
    for path in known:
        for sent in _requests(path):
            answer = _answer(port, sent.request)
            status = int(answer[9:12]) if answer.startswith(b"HTTP/1.") else 0
            is_refused = (
                status in _REFUSED or b"Error code: 400" in answer
            )  # also to no HTTP at all
            is_right = not answer or is_refused or (sent.is_valid and status < 400)
            shown = [each for each in _FORBIDDEN if each in answer]
            if not is_right or shown:
                problems.append(f"{sent.request[:80]!r}: {status} {shown}")
        if not _is_healthy(port):
            problems.append(f"{path}: /healthz does not answer any more")
    return problems if known else ["it names no page"]


def _is_healthy(port: int) -> bool:
    """Whether `/healthz` answers. The connections of the requests before may not be forgotten yet:
    then there is a moment without a free place (503)."""
    end = time.monotonic() + _WAIT
    while True:
        status = _answer(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")[:16]
        if b" 503 " not in status or time.monotonic() > end:
            return b" 200 " in status
        time.sleep(0.05)


def _requests(path: str) -> list[Sent]:
    place = path.replace("{}", "abc")
    head = f"GET {place} HTTP/1.1\r\nHost: x\r\n"
    made = [Sent(_bytes(f"{each} {place} HTTP/1.1\r\nHost: x\r\n\r\n"), True) for each in _METHODS]
    outs = [path.replace("{}", each) if "{}" in path else place + "/" + each for each in _OUT]
    outs += [place.rstrip("/") + "/..", place + "%00"]
    made += [
        Sent(_bytes(f"GET {each} HTTP/1.1\r\nHost: x\r\n\r\n")) for each in outs if each != path
    ]
    for token in _TOKENS:
        asked = (
            f"POST {place} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nAuthorization: {token}\r\n"
        )
        made += [
            Sent(_bytes(f"{asked}\r\n{{}}")),
            Sent(_bytes(f"{head}Authorization: {token}\r\n\r\n"), True),
        ]
    post = f"POST {place} HTTP/1.1\r\nHost: x\r\n"
    for length, body in (
        ("99999999999", ""), ("-1", "x"), ("1e3", "x"), ("5, 5", "xxxxx"),
        ("100000", "x" * 100_000), ("4", "\x00\xff\xfe\x01"), ("20000", "[" * 20_000),
    ):  # fmt: skip
        made.append(Sent(_bytes(f"{post}Content-Length: {length}\r\n\r\n{body}")))
    made += [
        Sent(_bytes(f"{post}Transfer-Encoding: chunked\r\n\r\nffffffff\r\nx")),
        Sent(_bytes(f"{post}Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n")),
        Sent(_bytes(f"GET {place}?{'a=1&' * 20_000} HTTP/1.1\r\nHost: x\r\n\r\n")),
        Sent(_bytes(head + "X: y\r\n" * 200 + "\r\n")),
        Sent(_bytes(f"{head}X: {'y' * 100_000}\r\n\r\n")),
        Sent(
            _bytes(
                f"GET {place} HTTP/1.1\nHost: x\n X: folded\r\nrange: bytes=0-99999999999\r\n\r\n"
            ),
            True,
        ),
        Sent(
            _bytes(
                f"GET {place}?after=-1&follow=99999999&after={'9' * 40} HTTP/1.1\r\nHost: x\r\n\r\n"
            ),
            True,
        ),
        Sent(_bytes(f"GET {place} HTTP/1.0\r\n\r\nGET {place} HTTP/1.0\r\n\r\n"), True),
        Sent(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)),
    ]
    return made


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")


def _answer(port: int, request: bytes) -> bytes:
    """The first part of the answer, which says all that matters; a stream would go on."""
    with closing(socket.create_connection(("127.0.0.1", port), _WAIT)) as client:
        answer = b""
        try:
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            while len(answer) < 1 << 16 and (data := client.recv(1 << 16)):
                answer += data
                if b"text/event-stream" in answer:
                    break
        except TimeoutError:
            raise
        except OSError:  # it has hung up
            pass
        return answer
