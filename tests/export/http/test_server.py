# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The server answers many, waits for nobody, and is not held up by anybody."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from mwatch.export.http import server as http_server
from mwatch.export.http.server import (
    MAX_CONNECTIONS,
    STUCK_SECONDS,
    Endpoint,
    Page,
    Pages,
    Request,
    Server,
    standard_pages,
)
from support.builders.snapshot import busy_snapshot
from support.runs.http_runs import WAIT, get, poll, served


def hello(request: Request) -> Page:
    return Page(f"hello {request.path} {request.headers.get('X-Who', '')}".encode())


def test_a_page_gets_its_request() -> None:
    with served({"/hello": hello}) as server:
        status, body, headers = get(server.port, "/hello?x=1", **{"X-Who": "me"})
    assert (status, body) == (200, b"hello /hello me")
    assert headers["Connection"] == "close"
    assert "Python" not in headers["Server"]


def test_head_has_no_body() -> None:
    with served({"/hello": hello}) as server:
        status, body, headers = get(server.port, "/hello", "HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", "13")


def test_an_unknown_page_names_those_there_are() -> None:
    with served({"/hello": hello}) as server:
        status, body, _ = get(server.port, "/../etc/passwd")
    assert (status, body) == (404, b"no such page; known pages: /hello\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_refused(method: str) -> None:
    with served({"/hello": hello}) as server:
        status, _, headers = get(server.port, "/hello", method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")
        assert get(server.port, "/hello")[0] == 200


def test_a_page_that_raises_is_counted_and_stops_nothing() -> None:
    def broken(request: Request) -> Page:
        raise ZeroDivisionError

    with served({"/broken": broken, "/hello": hello}) as server:
        with pytest.raises(http.client.RemoteDisconnected):
            get(server.port, "/broken")
        assert poll(lambda: server.failures == 1)
        assert get(server.port, "/hello")[0] == 200


def test_the_port_moves_when_it_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = Server({"/hello": hello}, port=port)
        try:
            assert port < server.port < port + 16
            assert get(server.port, "/hello")[0] == 200
        finally:
            server.close()


def test_an_address_that_is_not_ours_is_an_error() -> None:
    with pytest.raises(OSError, match="assign"):
        Server({}, port=0, host="192.0.2.1")


def test_many_at_once_are_answered() -> None:
    # Each has a place of its own: one that was answered may not be forgotten yet.
    with (
        served({"/hello": hello}, max_connections=128) as server,
        ThreadPoolExecutor(8) as pool,
    ):
        found = list(pool.map(lambda _: get(server.port, "/hello")[0], range(40)))
    assert found == [200] * 40


def test_more_than_there_are_places_for_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_SLOW_ANSWER_SECONDS", 10 * WAIT)  # nobody loses a place
    gate = threading.Event()
    inside = threading.Semaphore(0)

    def slow(request: Request) -> Page:
        inside.release()
        gate.wait(WAIT)
        return Page(b"done")

    pages: Pages = {"/slow": slow, "/hello": hello}
    with served(pages, max_connections=2, limit_seconds=10 * WAIT) as server:
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(get, server.port, "/slow") for _ in range(2)]
            assert inside.acquire(timeout=WAIT)
            assert inside.acquire(timeout=WAIT)
            assert get(server.port, "/hello")[0] == 503
            gate.set()
            assert [each.result()[0] for each in waiting] == [200, 200]
        assert poll(lambda: get(server.port, "/hello")[0] == 200)


def test_who_sends_a_byte_at_a_time_is_cut_off() -> None:
    with served({"/hello": hello}, limit_seconds=0.3, max_connections=1) as server:
        with closing(socket.create_connection(("127.0.0.1", server.port), WAIT)) as slow:
            began = time.monotonic()
            with pytest.raises(OSError, match=r"reset|[Bb]roken"):
                while time.monotonic() - began < WAIT:
                    slow.sendall(b"G")
                    time.sleep(0.02)
        assert poll(lambda: get(server.port, "/hello")[0] == 200)


def test_who_says_nothing_holds_no_place_for_long() -> None:
    with served({"/hello": hello}, limit_seconds=0.2, max_connections=1) as server:
        with closing(socket.create_connection(("127.0.0.1", server.port), WAIT)) as silent:
            assert silent.recv(1) == b""
        assert poll(lambda: get(server.port, "/hello")[0] == 200)


SLOW = [
    b"",
    b"GET /hello HTTP/1.1\r\nX-Header: a",
    b"POST /hello HTTP/1.1\r\nContent-Length: 9\r\n\r\n1",
]


@pytest.mark.parametrize("sent", SLOW, ids=["silent", "headers", "body"])
def test_slow_clients_cannot_keep_others_out(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would hold their places for longer than the test lasts, if nobody else asked."""
    monkeypatch.setattr(http_server._Handler, "timeout", 10 * WAIT)
    pages: Pages = {"/hello": Endpoint(get=hello, post=hello)}
    with served(pages, limit_seconds=10 * WAIT) as server, ExitStack() as held:
        place = ("127.0.0.1", server.port)
        for _ in range(MAX_CONNECTIONS + 4):
            slow = held.enter_context(closing(socket.create_connection(place, WAIT)))
            slow.sendall(sent)
        for _ in range(MAX_CONNECTIONS):  # each takes the place of a slow one
            assert poll(lambda: get(server.port, "/hello")[0] == 200)


def test_who_does_not_read_its_answer_loses_its_place() -> None:
    large = Page(b"x" * 20_000_000)
    pages: Pages = {"/large": lambda request: large, "/hello": hello}
    with served(pages, limit_seconds=60.0, max_connections=2) as server, ExitStack() as held:
        for _ in range(2):
            place = ("127.0.0.1", server.port)
            deaf = held.enter_context(closing(socket.create_connection(place, WAIT)))
            deaf.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert poll(lambda: get(server.port, "/hello")[0] == 200)


@pytest.mark.parametrize(
    "data", [b"\0\1\2\r\n\r\n", b"GET\r\n\r\n", b"GET /hello HTTP/9.9\r\n\r\n"]
)
def test_nonsense_is_refused_and_stops_nothing(data: bytes) -> None:
    with served({"/hello": hello}) as server:
        with closing(socket.create_connection(("127.0.0.1", server.port), WAIT)) as client:
            client.sendall(data)
            assert b"200" not in client.recv(100)
        assert get(server.port, "/hello")[0] == 200


def test_a_client_that_goes_away_is_no_failure() -> None:
    large = Page(b"x" * 5_000_000)
    with served({"/large": lambda request: large, "/hello": hello}) as server:
        for _ in range(3):
            with closing(socket.create_connection(("127.0.0.1", server.port), WAIT)) as client:
                client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert get(server.port, "/hello")[0] == 200
        assert server.failures == 0


def test_after_closing_nobody_listens_and_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    server = Server({"/hello": hello}, port=0)
    get(server.port, "/hello")
    server.close()
    with pytest.raises(OSError, match="refused"):
        get(server.port, "/hello")
    assert poll(lambda: set(threading.enumerate()) <= before)


def test_metrics_are_served_in_the_format_that_is_asked_for() -> None:
    pages = dict(standard_pages(lambda: [busy_snapshot()], lambda: 0.5))
    with served(pages) as server:
        status, body, headers = get(server.port, "/metrics")
        assert (status, headers["Content-Type"].partition(";")[0]) == (200, "text/plain")
        assert b'mwatch_iteration{run="run"} 10.0' in body
        accept = {"Accept": "application/openmetrics-text;version=1.0.0"}
        _, body, headers = get(server.port, "/metrics", **accept)
        assert headers["Content-Type"].startswith("application/openmetrics-text")
        assert body.endswith(b"# EOF\n")


def test_health_is_that_the_loop_turns() -> None:
    since = [0.5]
    with served(dict(standard_pages(list, lambda: since[0]))) as server:
        assert get(server.port, "/healthz")[:2] == (200, b"ok\n")
        since[0] = STUCK_SECONDS + 1
        assert get(server.port, "/healthz")[0] == 503


def test_a_scrape_is_quick() -> None:
    with served(dict(standard_pages(lambda: [busy_snapshot()], lambda: 0.0))) as server:
        get(server.port, "/metrics")

        def is_quick() -> bool:
            began = time.perf_counter()
            get(server.port, "/metrics")
            return time.perf_counter() - began < 0.05

        assert poll(is_quick), "not once, though the machine may be busy"
