# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Sidecars are asked over real connections: who answers, who does not, and who is refused."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mwatch.fleet import poller
from mwatch.fleet.poller import PodPoll, PollLimits, PollTarget
from mwatch.fleet.visibility import Polled
from mwatch.model.observation import Beat, ProcessExit
from support.fakes.pod_servers import PodServer

QUICK = PollLimits(seconds=0.5)
LONG = PollLimits(seconds=60.0)
"""For a pod that does answer, on a machine that may be busy."""
PATIENCE = 60.0


@pytest.fixture
def pod() -> Iterator[PodServer]:
    made = PodServer()
    made.look(5)
    yield made
    made.close()


def target(pod: PodServer, **change: object) -> PollTarget:
    usual = PollTarget("uid-0", "ns", pod.name, pod.address, pod.port)
    return usual._replace(**change)  # type: ignore[arg-type]


@contextmanager
def polling(
    *targets: PollTarget, limits: PollLimits = LONG, period: float = 0.1
) -> Iterator[PodPoll]:
    poll = PodPoll(time.time, period=period, limits=limits)
    poll.start()
    poll.want(targets)
    try:
        yield poll
    finally:
        poll.close()


def until(poll: PodPoll, is_it: Callable[[Polled], bool]) -> Polled:
    """The first answer that is so."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for each in poll.take():
            if is_it(each):
                return each
        time.sleep(0.01)
    raise AssertionError("it did not come")


def failed(each: Polled) -> bool:
    return each.snapshot is None


def test_a_pod_that_answers_is_read(pod: PodServer) -> None:
    with polling(target(pod)) as poll:
        found = until(poll, lambda each: each.snapshot is not None)
    assert found.uid == "uid-0" and found.problem == "" and found.port == pod.port
    assert found.snapshot is not None and found.snapshot.wrapper is not None
    assert found.at == pytest.approx(time.time(), abs=60)


def test_each_event_is_asked_for_once(pod: PodServer) -> None:
    with polling(target(pod)) as poll:
        first = until(poll, lambda each: each.snapshot is not None)
        pod.tell(ProcessExit(1, None, None))
        second = until(poll, lambda each: bool(each.snapshot and each.snapshot.events))
    assert first.snapshot is not None and second.snapshot is not None
    assert [type(each.what).__name__ for each in first.snapshot.events] == ["AttemptStart"]
    assert [type(each.what).__name__ for each in second.snapshot.events] == ["ProcessExit"]
    assert second.snapshot.wrapper is None  # as it is known
    assert pod.requests == ["follow=0.1"], "all of it on one connection"


def test_a_sidecar_says_only_that_nothing_happened_until_something_does(pod: PodServer) -> None:
    with polling(target(pod)) as poll:
        first = until(poll, lambda each: each.snapshot is not None)
        pod.look(6)
        steady = until(poll, lambda each: each.is_steady and _iteration(each) == 6)
        pod.tell(ProcessExit(1, None, None))
        changed = until(poll, lambda each: bool(each.snapshot and each.snapshot.events))
    assert not first.is_steady and not changed.is_steady
    assert first.snapshot is not None and steady.snapshot is not None
    assert steady.snapshot.wrapper == first.snapshot.wrapper is not None
    assert steady.snapshot.sources == first.snapshot.sources
    assert steady.snapshot.at > first.snapshot.at and not steady.snapshot.events
    assert len(pod.requests) == 1


@pytest.mark.timeout(2 * PATIENCE)
def test_a_pod_that_is_asked_reports_before_its_time(
    pod: PodServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mwatch.fleet.poller.zlib.crc32", lambda _: 0)  # the first of its period
    with polling(target(pod), period=4 * PATIENCE) as poll:
        poll.ask(["uid-0", "uid-9"])  # not listened to yet, and unknown
        until(poll, lambda each: each.snapshot is not None)
        while not (lines := poll.take()):
            poll.ask(["uid-0"])  # as the controller does once a second
            pod.look(6)
            time.sleep(0.05)
    assert _iteration(lines[0]) == 6 and lines[0].is_steady
    assert len(pod.requests) == 1


def _iteration(polled: Polled) -> int | None:
    if polled.snapshot is None or not polled.snapshot.beats:
        return None
    beat = polled.snapshot.beats[0].what
    return beat.iteration if isinstance(beat, Beat) else None


def test_an_older_sidecar_is_polled(pod: PodServer) -> None:
    """It answers once, whatever else is asked for."""
    pod.follows = False
    with polling(target(pod)) as poll:
        until(poll, lambda each: each.snapshot is not None)
        pod.tell(ProcessExit(1, None, None))
        changed = until(poll, lambda each: bool(each.snapshot and each.snapshot.events))
        until(poll, lambda each: each.snapshot is not None)
    assert changed.snapshot is not None
    assert [type(each.what).__name__ for each in changed.snapshot.events] == ["ProcessExit"]
    assert pod.requests[1].startswith("follow=0.1&after=life0.") and len(pod.requests) >= 3


@pytest.mark.parametrize(
    "change", [{"uid": "another"}, {"namespace": "other"}, {"name": "train-9"}]
)
def test_a_snapshot_of_another_pod_is_refused(pod: PodServer, change: dict[str, str]) -> None:
    with polling(target(pod, **change)) as poll:
        found = until(poll, failed)
    assert found.problem.startswith("refused: the server there is pod ns/train-0")
    assert poll.failures["foreign"] >= 1


def test_a_pod_without_a_listener_is_unreachable(pod: PodServer) -> None:
    pod.hang_up()
    with polling(target(pod)) as poll:
        found = until(poll, failed)
    assert "onnect" in found.problem
    assert poll.failures["unreachable"] >= 1


@contextmanager
def listener(answer: bytes | None) -> Iterator[tuple[str, int]]:
    """Takes connections, and sends that on each; None: never anything."""
    server = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                one, _ = server.accept()
            except OSError:
                return
            held.append(one)
            if answer is not None:
                one.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(60)
        for each in held:
            each.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (None, "late", "no answer within 0.5 s"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "bad", "it answers with"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://x\r\n\r\n", "bad", "it answers with"),
        (HEAD % 2 + b"[]", "bad", "cannot be read"),
        (HEAD % 15 + b'{"version":  1}', "bad", "has not looked yet"),
        (HEAD % 30 + b'{"version": 99, "who": "nobody"}'[:30], "bad", "cannot be read"),
        (b"x" * 20000, "bad", "is not a sidecar"),
        (HEAD % 10**8 + b"x" * 70000, "large", "larger than 60000 bytes"),
    ],
)
def test_what_is_no_answer_is_a_problem_of_that_pod(
    answer: bytes | None, kind: str, words: str
) -> None:
    limits = (QUICK if answer is None else LONG)._replace(max_bytes=60000)
    with listener(answer) as (host, port):
        there = PollTarget("uid-0", "ns", "train-0", host, port)
        with polling(there, limits=limits) as poll:
            found = until(poll, failed)
    assert words in found.problem
    assert poll.failures[kind] >= 1


def test_a_followed_pod_whose_network_is_cut_is_noticed_though_its_connection_stays_open(
    pod: PodServer,
) -> None:
    line = pod.page.body() + b"\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with listener(head + b"%x\r\n%b\r\n" % (len(line), line)) as (host, port):
        there = PollTarget("uid-0", "ns", pod.name, host, port)
        with polling(there, period=0.5, limits=PollLimits(seconds=1.5)) as poll:
            first = until(poll, lambda each: each.snapshot is not None)
            lost = until(poll, failed)
    assert lost.problem == "no further line within 2 s" and lost.at - first.at > 1.9
    assert poll.failures["late"] >= 1


def test_a_sidecar_that_ends_every_stream_at_once_is_asked_with_the_period(pod: PodServer) -> None:
    line = pod.page.body() + b"\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with listener(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(line), line)) as (host, port):
        there = PollTarget("uid-0", "ns", pod.name, host, port)
        began = time.time()
        with polling(there, period=0.5) as poll:
            found = [until(poll, lambda each: each.snapshot is not None) for _ in range(3)]
    # Not since the first answer: that one may have been read late.
    assert found[2].at - began > 0.9


def test_what_fails_here_is_a_problem_of_that_answer_and_the_pod_is_asked_again(
    pod: PodServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        monkeypatch.undo()
        raise KeyError("ours")

    monkeypatch.setattr(poller, "HttpRequest", broken)
    with polling(target(pod)) as poll:
        assert until(poll, failed).problem == "KeyError: 'ours'"
        until(poll, lambda each: each.snapshot is not None)


def test_one_that_hangs_does_not_hold_the_others(pod: PodServer) -> None:
    with listener(None) as (host, port):
        stuck = [PollTarget(f"stuck-{n}", "ns", "x", host, port) for n in range(8)]
        limits = PollLimits(seconds=10 * PATIENCE, at_once=16)
        with polling(target(pod), *stuck, limits=limits) as poll:
            for _ in range(5):
                until(poll, lambda each: each.uid == "uid-0" and each.snapshot is not None)


def test_a_sidecar_whose_port_was_taken_is_found_on_the_next_one_of_its_node(
    pod: PodServer,
) -> None:
    """Two pods share the network of a node: the second has moved on."""
    second = PodServer("train-1", uid="uid-1", port=pod.port + 1, rank=1)
    second.look(5)
    away = second.port - pod.port
    there = PollTarget("uid-1", "ns", "train-1", pod.address, pod.port, has_host_network=True)
    try:
        with polling(there) as poll:
            found = until(poll, lambda each: each.snapshot is not None)
    finally:
        second.close()
    assert 1 <= away <= 16 and found.port == second.port


def test_a_pod_that_is_no_longer_wanted_is_not_asked(pod: PodServer) -> None:
    with polling(target(pod)) as poll:
        until(poll, lambda each: each.snapshot is not None)
        poll.want([])
        until_forgotten(poll)
        poll.take()
        asked = len(pod.requests)
        assert not poll.take()
        time.sleep(0.3)
        assert len(pod.requests) == asked


def until_forgotten(poll: PodPoll) -> None:
    end = time.monotonic() + PATIENCE
    while poll._pods:
        assert time.monotonic() < end, "it is still asked"
        time.sleep(0.01)


def test_a_loop_that_takes_nothing_is_not_given_without_end(pod: PodServer) -> None:
    with polling(target(pod), limits=LONG._replace(untaken=3), period=0.02) as poll:
        end = time.monotonic() + PATIENCE
        while len(poll._answers) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.2)
        assert len(poll.take()) == 3


def test_it_ends_at_once_though_somebody_never_answers() -> None:
    with listener(None) as (host, port):
        poll = PodPoll(time.time, period=0.1, limits=PollLimits(seconds=10 * PATIENCE))
        poll.start()
        poll.want([PollTarget("uid-0", "ns", "x", host, port)])
        while not poll._busy:
            time.sleep(0.01)
        began = time.monotonic()
        poll.close()
        assert time.monotonic() - began < PATIENCE
