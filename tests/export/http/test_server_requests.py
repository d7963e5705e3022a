# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Requests with a body or a parameter, and answers that are sent while they are made."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from mwatch.export.http.server import Endpoint, Page, Pages, Request, in_url
from support.runs.http_runs import WAIT, get, poll, post, raw, served


def hello(request: Request) -> Page:
    return Page(b"hello")


def echo(request: Request) -> Page:
    return Page(request.body + f" of {request.parameter or request.client}".encode())


def test_a_post_brings_its_body_and_a_get_is_refused_there() -> None:
    with served({"/echo": Endpoint(post=echo)}) as server:
        assert post(server.port, "/echo", b"x" * 65536) == (200, b"x" * 65536 + b" of 127.0.0.1")
        status, _, headers = get(server.port, "/echo")
        assert (status, headers["Allow"]) == (405, "POST")


def test_a_body_that_is_too_large_is_refused_and_the_answer_arrives() -> None:
    with served({"/echo": Endpoint(post=echo)}) as server:
        status, body = post(server.port, "/echo", b"x" * 500_000)
        assert (status, body) == (413, b"at most 65536 bytes\n")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"", b"411"),
        (b"Transfer-Encoding: chunked\r\n", b"411"),
        (b"Content-Length: -5\r\n", b"400"),
        (b"Content-Length: 1e3\r\n", b"400"),
        (b"Content-Length: " + b"9" * 30 + b"\r\n", b"400"),
        (b"Content-Length: 9\r\n", b"400"),
    ],
)
def test_a_body_of_unclear_length_is_refused(headers: bytes, status: bytes) -> None:
    with served({"/echo": Endpoint(post=echo)}) as server:
        data = b"POST /echo HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n12345"
        assert raw(server.port, data).startswith(b"HTTP/1.1 " + status)


def test_who_sends_its_body_slowly_is_cut_off_whatever_the_page_may_take() -> None:
    page = Endpoint(post=echo, seconds=60.0)
    with served({"/echo": page}, limit_seconds=0.3, max_connections=1) as server:
        with closing(socket.create_connection(("127.0.0.1", server.port), WAIT)) as slow:
            slow.sendall(b"POST /echo HTTP/1.1\r\nContent-Length: 9\r\n\r\n1")
            assert not slow.recv(100).startswith(b"HTTP/1.1 200")
        assert poll(lambda: post(server.port, "/echo", b"")[0] == 200)


def test_a_page_may_take_its_own_time() -> None:
    def slow(request: Request) -> Page:
        assert not threading.Event().wait(4.0)
        return Page(b"done")

    pages: Pages = {"/slow": Endpoint(get=slow, seconds=WAIT), "/cut": slow}
    with served(pages, limit_seconds=3.0) as server:  # a request is read in that time, too
        assert get(server.port, "/slow")[:2] == (200, b"done")
        with pytest.raises((OSError, http.client.HTTPException)):
            get(server.port, "/cut")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/x/abc-1.2.tgz", 200),
        ("/v1/x/.tgz", 404),
        ("/v1/x/..tgz", 404),
        ("/v1/x/../x.tgz", 404),
        ("/v1/x/a/b.tgz", 404),
        ("/v1/x/%2e%2e%2fx.tgz", 404),
        ("/v1/x/a%00.tgz", 404),
        ("/v1/x/{}.tgz", 404),
        ("/v1/x/" + "a" * 200 + ".tgz", 404),
        ("/v1/x/list", 200),
    ],
)
def test_a_parameter_is_a_plain_name(path: str, status: int) -> None:
    with served({"/v1/x/{}.tgz": echo, "/v1/x/list": hello}) as server:
        found, body, _ = get(server.port, path)
    assert found == status
    if path.startswith("/v1/x/abc"):
        assert body == b" of abc-1.2"


def test_a_stream_is_sent_in_pieces_as_it_is_made() -> None:
    seen = threading.Event()

    def stream(send: Callable[[bytes], object]) -> None:
        send(b"first ")
        send(b"")
        assert seen.wait(WAIT)
        send(b"x" * 300_000)

    with served({"/s": lambda request: Page(b"", stream=stream)}) as server:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT)) as client:
            client.request("GET", "/s")
            answer = client.getresponse()
            assert answer.headers["Transfer-Encoding"] == "chunked"
            assert answer.read(6) == b"first "
            seen.set()
            assert answer.read() == b"x" * 300_000
        assert raw(server.port, b"GET /s HTTP/1.0\r\n\r\n").endswith(
            b"\r\n\r\nfirst " + b"x" * 300_000
        )
        assert get(server.port, "/s", "HEAD")[1] == b""


def test_a_stream_that_breaks_off_is_seen_by_its_reader() -> None:
    def stream(send: Callable[[bytes], object]) -> None:
        send(b"first")
        raise OSError("gone")

    pages = {"/s": lambda request: Page(b"", stream=stream)}
    with served(pages) as server, pytest.raises(http.client.IncompleteRead):
        get(server.port, "/s")


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("a.example", "a.example"),
        ("::", "[::]"),
        ("fd00::7", "[fd00::7]"),
    ],
)
def test_an_address_of_ipv6_stands_in_brackets(host: str, shown: str) -> None:
    assert in_url(host) == shown
