# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A reader that waits for change: lines with a period, and at once when something happens."""

from __future__ import annotations

import http.client
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from mwatch import json_codec
from mwatch.model.observation import ProcessExit
from mwatch.sidecar.follow import MAX_FOLLOWERS, follow_seconds, is_limited
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
        pod.tell(ProcessExit(1, None, None))
        pod.look(6)
        changed = line(answer)
    assert len(changed["events"]) == 1 and changed["beats"][0][2] == 6
    assert changed["cursor"] != first["cursor"]
    assert "wrapper" not in changed, "it is known"


def test_iterations_alone_are_reported_with_the_period(pod: PodServer) -> None:
    with followed(pod, 0.5) as answer:
        line(answer)
        pod.look(9)
        later = line(answer)
    assert later["steady"] is True and later["beats"][0][2] == 9


def test_one_reader_too_many_gets_one_answer(pod: PodServer) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_FOLLOWERS):
            line(stack.enter_context(followed(pod, LONG)))
        last = stack.enter_context(followed(pod, LONG))
        assert last.getheader("Content-Length") is not None
        assert json_codec.decode(last.read())["who"]["pod"] == pod.name


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
