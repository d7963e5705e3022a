# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A RAS service that is slow, never ends, breaks off or talks nonsense costs time and bytes that
are bounded, and is a failure: never an empty answer.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from mwatch.model.reading import Failed, Ok
from mwatch.parse.ras import read_answer
from mwatch.sources import nccl_client
from mwatch.sources.nccl_client import RasLink, RasProtocol
from mwatch.sources.nccl_ras import NcclRas
from support.builders.volume import ManualClock
from support.fakes.fake_ras import FakeRas
from support.fakes.ras_answers import Comm, as_json

ANSWER = as_json(Comm(0xA, {0: 5, 1: 5}))
WAIT = 60.0


@pytest.fixture
def server() -> Iterator[FakeRas]:
    made = FakeRas(ANSWER)
    yield made
    made.close()


def source(server: FakeRas) -> NcclRas:
    return NcclRas(server.address, "pod-0", read_answer, settle_seconds=0.0)


def timed(call: Callable[[], object]) -> float:
    begin = time.monotonic()
    call()
    return time.monotonic() - begin


def test_an_answer_that_breaks_off_is_a_failure_and_kept_as_evidence(server: FakeRas) -> None:
    server.finish = lambda client, answer: client.sendall(answer[:200])
    reading = source(server).read_now(WAIT)
    assert isinstance(reading, Failed)
    assert source(server).raw(WAIT) == ANSWER[:200]


def test_an_answer_that_hangs_is_cut_at_the_limit(server: FakeRas) -> None:
    done = threading.Event()

    def hang(client: socket.socket, answer: bytes) -> None:
        client.sendall(answer[:200])
        done.wait(WAIT)

    server.finish = hang
    link = source(server)
    begin = time.monotonic()
    assert link.raw(3.0).endswith("[cut short]\n")
    assert time.monotonic() - begin < WAIT / 2
    done.set()


def test_an_answer_without_end_is_cut_at_its_bytes(
    server: FakeRas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_client, "MAX_BYTES", 1 << 20)
    sent = 0

    def pour(client: socket.socket, answer: bytes) -> None:
        nonlocal sent
        while True:
            sent += client.send(b"x" * 65536)

    server.finish = pour
    clock = ManualClock()
    asked = NcclRas(server.address, "pod-0", read_answer, settle_seconds=0.0, clock=clock)
    reading = asked.read_now(WAIT)
    assert isinstance(reading, Failed)
    assert "cut off" in reading.error
    assert sent < 64 << 20
    asked.read_now(WAIT)
    questions = server.asked
    clock.now += 500.0
    asked.read()
    assert server.asked == questions, "asked more rarely from then on"


def test_a_drop_now_and_then_does_not_stretch_the_limit(server: FakeRas) -> None:
    stop = threading.Event()

    def drip(client: socket.socket, answer: bytes) -> None:
        for byte in answer:
            if stop.wait(0.5):
                return
            client.sendall(bytes([byte]))

    server.finish = drip
    link = source(server)
    assert 0.5 * len(ANSWER) > WAIT
    assert timed(lambda: link.raw(3.0)) < WAIT / 2
    stop.set()


@pytest.mark.parametrize(
    "answer", [b"", b"\xff\xfe\x00" * 100, b"{}", b"[]", b'{"communicators": 3}', b"ERROR: no\n"]
)
def test_garbage_is_a_failure(server: FakeRas, answer: bytes) -> None:
    server.finish = lambda client, _: client.sendall(answer)
    assert isinstance(source(server).read_now(WAIT), Failed)


def test_a_greeting_without_end_is_refused(server: FakeRas) -> None:
    server.greeting = b"S" * 100_000
    reading = source(server).read_now(WAIT)
    assert isinstance(reading, Failed)
    assert "line too long" in reading.error


def test_nobody_who_greets_is_a_failure_in_time(server: FakeRas) -> None:
    server.silent_connections = 99
    with pytest.raises(TimeoutError):
        RasLink(server.address, 0.5)


def test_a_server_that_closes_before_it_speaks_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        stop = threading.Event()

        def close_all() -> None:
            listening.settimeout(0.1)
            while not stop.is_set():
                try:
                    listening.accept()[0].close()
                except TimeoutError:
                    continue

        thread = threading.Thread(target=close_all, daemon=True)
        thread.start()
        reading = NcclRas(listening.getsockname()[:2], "pod-0", read_answer).read_now(WAIT)
        stop.set()
        thread.join(WAIT)
    assert isinstance(reading, Failed)


def test_reads_go_on_at_once_while_an_answer_is_awaited(server: FakeRas) -> None:
    may_go = threading.Event()

    def wait(client: socket.socket, answer: bytes) -> None:
        may_go.wait(WAIT)
        client.sendall(answer)

    server.finish = wait
    slow = source(server)
    assert timed(slow.read) < WAIT / 2
    assert timed(slow.read) < WAIT / 2
    may_go.set()
    assert isinstance(slow.read_now(WAIT), Ok)


def test_evidence_of_nothing_is_refused_with_the_reason(server: FakeRas) -> None:
    server.finish = lambda client, _: None
    with pytest.raises(TimeoutError, match="no answer"):
        source(server).raw(WAIT)
    server.greeting = b"+PONG\r\n"
    with pytest.raises(OSError, match="RAS protocol"):
        source(server).raw(WAIT)


def test_when_the_time_is_over_nothing_more_is_asked(server: FakeRas) -> None:
    clock = ManualClock()
    with RasLink(server.address, WAIT, clock) as link:
        clock.now += WAIT
        with pytest.raises(TimeoutError):
            link.level()


def test_a_level_is_found_without_a_question(server: FakeRas) -> None:
    with RasLink(server.address, WAIT) as link:
        assert link.level() is RasProtocol.MONITOR
    assert server.asked == 0
