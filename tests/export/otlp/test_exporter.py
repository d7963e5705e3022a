# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics over OTLP, received by a server of the tests that decodes the real protocol.

What goes wrong with a server must cost samples at most: never the loop, never much memory.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import urllib3

from mwatch.export.otlp.exporter import Otlp, SendOutcome, SendSchedule
from mwatch.export.otlp.send import BoundedSession, NotTaken, Points, Sender
from mwatch.model.snapshot.snapshot import Numbers
from support.builders.snapshot import busy_snapshot
from support.fakes.otlp_receiver import receiver, sending
from support.free_ports import free_port
from support.waiting import until

SECRET = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345678"


def test_what_is_known_of_a_run_arrives() -> None:
    with receiver() as server, sending(server.endpoint):
        got = server.wait(1)[0]
    assert got.path == "/v1/metrics"
    assert got.headers["content-type"] == "application/x-protobuf"
    assert got.values("mwatch.iteration") == {"": 10}
    assert got.values("megatron.training.loss") == {"lm loss": 2.0}
    assert got.resource["service.name"] == "mwatch"
    assert got.resource["mwatch.run"] == "run"


def test_it_goes_on_and_a_value_that_is_gone_is_not_sent_again() -> None:
    given = [busy_snapshot()]
    with receiver() as server:
        otlp = Otlp(server.endpoint, lambda: given, pace=SendSchedule(period_seconds=0.02))
        otlp.start()
        server.wait(2)
        given[0] = replace(given[0], findings=(), numbers=Numbers(), at=given[0].at + 60)
        until(lambda: server.all[-1].points[0].at == given[0].at)
        otlp.close()
        last = server.all[-1]
    assert not last.values("megatron.training.loss")
    assert not last.values("mwatch.finding")
    assert last.values("mwatch.iteration")


def test_a_server_that_is_busy_is_asked_again() -> None:
    with receiver((503, b""), (429, b"")) as server, sending(server.endpoint) as otlp:
        got = server.wait(3)
        until(lambda: otlp.sent >= 1)
        assert otlp.dropped == 0
    assert got[0].points == got[1].points == got[2].points


def test_a_server_that_comes_late_gets_what_was_kept() -> None:
    first = busy_snapshot()
    port = free_port()
    with sending(f"http://127.0.0.1:{port}", first) as otlp:
        until(lambda: otlp.failures >= 2)
        assert otlp.problem == "Connection refused"
        with socket.create_server(("127.0.0.1", port)) as late:
            late.settimeout(60)
            taken, _ = late.accept()
            with taken:
                assert taken.recv(4).startswith(b"POST")


def test_only_so_much_is_kept_and_the_oldest_goes_first() -> None:
    port, numbers = free_port(), iter(range(10**6))
    kept = Otlp(
        f"http://127.0.0.1:{port}",
        lambda: [replace(busy_snapshot(), at=float(next(numbers)))],
        pace=SendSchedule(period_seconds=0.005, limit_seconds=0.5, max_queued=3),
    )
    kept.start()
    until(lambda: kept.dropped >= 5 and kept.failures)
    kept.close(0.2)
    assert kept.sent == 0
    assert kept.failures >= 1
    assert kept.dropped >= 8, "what is left at the end is lost as well"


@pytest.mark.parametrize("status", [400, 401, 404, 413, 302])
def test_what_is_refused_for_good_is_not_sent_again(status: int) -> None:
    one = iter([[busy_snapshot()]])
    with receiver((status, b"no")) as server:
        otlp = Otlp(server.endpoint, lambda: next(one, []), pace=SendSchedule(period_seconds=0.01))
        otlp.start()
        until(lambda: otlp.dropped == 1)
        otlp.close()
        assert len(server.all) == 1
    assert (otlp.failures, otlp.sent) == (1, 0)
    assert str(status) in (otlp.problem or "")


def test_a_redirect_is_not_followed_for_the_headers_would_go_along() -> None:
    with receiver() as other:

        def elsewhere(handler: Any) -> None:
            handler.send_response(307)
            handler.send_header("Location", f"{other.endpoint}/v1/metrics")
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        with receiver(elsewhere) as server, sending(server.endpoint) as otlp:
            server.wait(2)
            assert (otlp.failures, otlp.dropped) == (1, 1)
        assert other.all == []


def garbage(handler: Any) -> None:
    handler.wfile.write(b"\x00\x01this is no HTTP\r\n\r\n" * 50)
    handler.close_connection = True


def hung(release: threading.Event) -> Callable[[Any], None]:
    def answer(handler: Any) -> None:
        release.wait(60)

    return answer


def endless(handler: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    with suppress(OSError):
        while True:
            handler.wfile.write(b"x" * 65536)


def test_an_answer_that_is_no_http_is_a_failure_and_tried_again() -> None:
    with receiver(garbage, garbage) as server, sending(server.endpoint) as otlp:
        server.wait(3)
        until(lambda: otlp.sent >= 1)


@pytest.mark.parametrize("answer", [(200, b"\xff\xfe garbage"), endless])
def test_a_yes_is_a_yes_whatever_comes_with_it(answer: Any) -> None:
    with receiver(answer) as server, sending(server.endpoint) as otlp:
        until(lambda: otlp.sent >= 2)
        assert otlp.failures == 0
        assert len(server.all) >= 2


def test_points_that_the_server_refuses_are_reported() -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceResponse,
    )

    partial = ExportMetricsServiceResponse()
    partial.partial_success.rejected_data_points = 7
    partial.partial_success.error_message = f"too old, token {SECRET}"
    one = iter([[busy_snapshot()]])
    with receiver((200, partial.SerializeToString())) as server:
        otlp = Otlp(server.endpoint, lambda: next(one, []), pace=SendSchedule(period_seconds=0.01))
        otlp.start()
        until(lambda: otlp.sent == 1)
        otlp.close()
    assert (otlp.problem or "").startswith("7 points were refused: too old")
    assert SECRET not in (otlp.problem or "")


def test_a_server_that_never_answers_costs_samples_and_no_time() -> None:
    release = threading.Event()
    with receiver(*[hung(release)] * 9) as server:
        otlp = Otlp(
            server.endpoint,
            lambda: [busy_snapshot()],
            pace=SendSchedule(period_seconds=0.01, limit_seconds=600.0, max_queued=2),
        )
        otlp.start()
        server.wait(1)
        until(lambda: otlp.dropped >= 3)
        began = time.monotonic()
        otlp.close(0.2)
        assert time.monotonic() - began < 30
        release.set()


def test_a_send_has_a_time_limit() -> None:
    release = threading.Event()
    with receiver(hung(release)) as server:
        with sending(server.endpoint, limit_seconds=0.2) as otlp:
            until(lambda: otlp.failures >= 1)
            until(lambda: otlp.sent >= 1)
        release.set()


def trickle(handler: Any) -> None:
    with suppress(OSError):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nx: ")
        while True:
            handler.wfile.write(b"y")
            time.sleep(0.02)


def test_a_server_that_answers_byte_by_byte_is_cut_off() -> None:
    is_read = threading.Event()

    def then_waits(handler: Any) -> None:
        is_read.wait(60)  # else the next answer could take the problem away before it is read
        handler.send_response(200)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    answers = (trickle, then_waits)
    with receiver(*answers) as server, sending(server.endpoint, limit_seconds=1.5) as otlp:
        until(lambda: otlp.failures >= 1)
        assert otlp.problem == "no answer within 1.5 s"
        is_read.set()
        until(lambda: otlp.sent >= 1)


def test_half_an_answer_is_none_though_who_cut_it_off_is_not_back_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that cuts may be put aside right after it: the reader comes first then."""
    with receiver(trickle) as server:
        sender = Sender(server.endpoint, 0.3)
        cut = sender._session.cut

        def and_rest() -> None:
            cut()
            time.sleep(0.5)

        monkeypatch.setattr(sender._session, "cut", and_rest)
        assert sender.send(Points({}).data(busy_snapshot())) is SendOutcome.LATER
        assert sender.problem == "no answer within 0.3 s"


def test_a_cut_that_comes_before_the_connection_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = BoundedSession(60.0)
    connect = urllib3.util.connection.create_connection

    def cut_first(*args: Any, **options: Any) -> socket.socket:
        session.cut()
        return connect(*args, **options)

    with receiver(trickle) as server:
        monkeypatch.setattr(urllib3.util.connection, "create_connection", cut_first)
        with pytest.raises(NotTaken, match="no answer within"):
            session.request("POST", server.endpoint, data=b"x", timeout=5.0)


def test_the_newest_is_sent_before_the_end() -> None:
    with receiver() as server:
        otlp = Otlp(
            server.endpoint, lambda: [busy_snapshot()], pace=SendSchedule(period_seconds=3600)
        )
        otlp.start()
        otlp.close(60.0)
        assert len(server.all) == 1
    assert (otlp.sent, otlp.dropped) == (1, 0)
    otlp.close()


def test_one_that_was_never_started_can_be_closed() -> None:
    Otlp("http://127.0.0.1:1", list).close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_ours_is_reported_and_ends_nothing_else() -> None:
    otlp = Otlp("http://127.0.0.1:1", lambda: [None], pace=SendSchedule(0.01))  # type: ignore[list-item]
    otlp.start()
    until(lambda: otlp.problem)
    assert otlp.problem == "an exporter thread ended with an internal error"
    otlp.close(0.1)
