# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A reader that waits for change: lines with a period, and at once when something happens."""

from __future__ import annotations

import http.client
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from mwatch import json_codec
from mwatch.model.job import SignSeen
from mwatch.model.observation import ProcessExit, Sign, SignSource, SignState
from mwatch.model.snapshot.snapshot_wire import REPORTED_SECONDS, STEADY, decode, decode_steady
from mwatch.sidecar.follow import MAX_FOLLOWERS, Followers, follow_seconds, is_limited
from support.fakes.pod_servers import PodServer

LONG = 60
"""A period that no test waits for."""


@pytest.fixture
def pod() -> Iterator[PodServer]:
    server = PodServer()
    server.look(5)
    yield server
    server.close()


@contextmanager
def followed(pod: PodServer, period: float) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(pod.address, pod.port, timeout=120)
    connection.request("GET", f"/v1/snapshot?follow={period:g}")
    try:
        yield connection.getresponse()
    finally:
        connection.close()


@contextmanager
def looking(pod: PodServer, iteration: int) -> Iterator[None]:
    """Again and again, as its loop does: a line is sent after a look that found something."""
    done = threading.Event()

    def loop() -> None:
        while not done.wait(0.1):
            pod.look(iteration)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def line(answer: http.client.HTTPResponse) -> dict[str, Any]:
    found: dict[str, Any] = json_codec.decode(answer.readline())
    return found


def test_a_line_comes_with_the_period_and_is_steady_while_nothing_happens(pod: PodServer) -> None:
    with followed(pod, 0.1) as answer:
        first, second = line(answer), line(answer)
        assert "steady" not in first and first["gpus"] and first["wrapper"]
        assert second["steady"] is True and "gpus" not in second and "signs" not in second
        assert second["beats"] == first["beats"] and second["cursor"] == first["cursor"]


def test_an_event_is_reported_at_once(pod: PodServer) -> None:
    with followed(pod, LONG) as answer:
        first = line(answer)
        began = time.monotonic()
        pod.tell(ProcessExit(1, None, None))
        with looking(pod, 6):
            changed = line(answer)
        assert time.monotonic() - began < LONG / 2, "not with the period"
    assert len(changed["events"]) == 1 and changed["beats"]
    assert changed["cursor"] != first["cursor"]
    assert "wrapper" not in changed, "it is known"


class ChangingPage:
    """Stands for the page of a sidecar: one number is all that a decision depends on."""

    def __init__(self) -> None:
        self.state = 0
        self.ring = self
        self.newest = 0

    def material(self) -> int:
        return self.state

    def whole(self, cursor: str) -> tuple[bytes, str, int]:
        return b"%d" % self.state, cursor, self.newest


class Enough(Exception):
    pass


@pytest.mark.timeout(LONG / 2)
def test_what_happens_while_a_line_is_sent_is_reported_at_once() -> None:
    page, lines = ChangingPage(), []
    followers = Followers(page)  # type: ignore[arg-type]

    def send(line: bytes) -> None:
        lines.append(line)
        if len(lines) == 2:
            raise Enough
        page.state = 7
        followers.turn()  # nobody waits for it yet

    stream = followers.stream("", LONG, lambda: False).stream
    assert stream is not None
    with pytest.raises(Enough):
        stream(send)
    assert lines == [b"0\n", b"7\n"]


@pytest.mark.timeout(LONG)
def test_a_reader_that_asks_gets_a_line_after_the_next_look(pod: PodServer) -> None:
    with followed(pod, 2 * LONG) as answer, looking(pod, 9):
        line(answer)
        stream: Any = answer.fp
        stream.raw._sock.send(b"\n")
        asked = line(answer)
    assert asked["steady"] is True and asked["beats"][0][2] == 9


def test_iterations_alone_are_reported_with_the_period(pod: PodServer) -> None:
    with followed(pod, 0.5) as answer:
        line(answer)
        pod.look(9)
        later = line(answer)
        while later["beats"][0][2] != 9:  # the look came after that line
            assert later["steady"] is True
            later = line(answer)
    assert later["steady"] is True


def test_a_witness_that_no_longer_reports_is_not_called_steady(pod: PodServer) -> None:
    """Its last report would look fresh for ever, and a busy CPU of long ago excuse a hang."""
    sign = Sign(SignSource.CPU_TIME, SignState.MOVING, 0, "rank 0 used 68% of a core")
    now = time.time()
    pod.look(5, [SignSeen(now - REPORTED_SECONDS + 20, pod.name, sign, now)])
    with followed(pod, 0.1) as answer:
        first = decode(answer.readline())
        steady = decode_steady(answer.readline(), first)
        assert len(steady.signs) == 1
        pod.look(5, [SignSeen(now - REPORTED_SECONDS - 1, pod.name, sign, now)])
        later = next(each for each in iter(answer.readline, b"") if not each.startswith(STEADY))
        whole = decode(later)
        assert [round(now - each.at) for each in whole.signs] == [REPORTED_SECONDS + 1]
        assert decode_steady(answer.readline(), whole.settled()).signs == ()


def test_one_reader_too_many_gets_one_answer(pod: PodServer) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_FOLLOWERS):
            line(stack.enter_context(followed(pod, LONG)))
        last = stack.enter_context(followed(pod, LONG))
        (only,) = last.read().splitlines()
        assert json_codec.decode(only)["who"]["pod"] == pod.name


def test_a_reader_who_wants_only_the_headers_takes_the_place_of_nobody(pod: PodServer) -> None:
    for _ in range(MAX_FOLLOWERS):
        connection = http.client.HTTPConnection(pod.address, pod.port, timeout=120)
        connection.request("HEAD", f"/v1/snapshot?follow={LONG}")
        connection.getresponse().read()
        connection.close()
    with followed(pod, 0.1) as answer:
        line(answer)
        assert line(answer)["steady"] is True


def test_a_server_that_ends_closes_its_streams(pod: PodServer) -> None:
    with followed(pod, LONG) as answer:
        line(answer)
        pod.close()
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            answer.read()


def test_a_pod_whose_state_flickers_reports_with_the_period() -> None:
    urgent: deque[float] = deque([0.0, 1.0, 2.0, 3.0], maxlen=4)
    assert is_limited(urgent, 4.0)
    assert not is_limited(urgent, 40.0)
    assert not is_limited(deque([3.0], maxlen=4), 4.0)


@pytest.mark.parametrize(
    ("text", "period"),
    [("5", 5.0), ("0.5", 0.5), ("0", 0.1), ("9999", 60.0), ("", None), ("-1", None),
     ("1e9", None), ("nan", None), ("99999", None)],
)  # fmt: skip
def test_the_period_is_within_limits(text: str, period: float | None) -> None:
    assert follow_seconds(text) == period
