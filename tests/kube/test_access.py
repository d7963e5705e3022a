# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that are retried, and refusals that are one line."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import urllib3

from kube.fake_api import FakeApi, Reply, fake_api
from mwatch.kube.access import Access, CallLimits, CallOutcome
from mwatch.kube.connect import Connection
from mwatch.kube.errors import KubeError, NoCredentials, NoPermission, Rejected, Unavailable
from mwatch.kube.resources import NODES, PODS, PYTORCH_JOBS, STATEFUL_SETS
from support.free_ports import free_port

OK = Reply(200, {"kind": "Pod"})
BUSY = Reply(503, {"message": "etcd is away"})


def client(api: FakeApi, waits: list[float] | None = None, **limits: float) -> Access:
    return at(api.address, waits, **limits)


def at(address: str, waits: list[float] | None = None, **limits: float) -> Access:
    connection = Connection(address, urllib3.PoolManager(), lambda: "Bearer t0ken", "ns")
    waits = [] if waits is None else waits
    settings = CallLimits(**limits)  # type: ignore[arg-type]
    return Access(connection, limits=settings, wait=waits.append, chance=lambda: 1.0)


def status(code: int, text: str) -> Reply:
    return Reply(code, {"kind": "Status", "message": text, "code": code})


def test_paths_are_those_of_the_api() -> None:
    assert PODS.path("ns", "a/b") == "/api/v1/namespaces/ns/pods/a%2Fb"
    assert PYTORCH_JOBS.path(None) == "/apis/kubeflow.org/v1/pytorchjobs"
    assert NODES.path("ns", "n") == "/api/v1/nodes/n"
    path = "/apis/apps/v1/namespaces/ns/statefulsets/x/scale"
    assert STATEFUL_SETS.path("ns", "x", part="scale") == path


def test_a_server_that_comes_back_is_asked_again_with_longer_waits() -> None:
    waits: list[float] = []
    with fake_api(BUSY, Reply(0, is_cut=True), BUSY, OK) as api:
        assert client(api, waits).get(PODS, "ns", "x").is_ok
        assert len(api.asked) == 4
        assert api.asked[0][2]["Authorization"] == "Bearer t0ken"
    assert waits == [0.2, 0.4, 0.8]


def test_a_server_that_asks_for_time_gets_it() -> None:
    waits: list[float] = []
    told = {"Retry-After": "7"}
    with fake_api(Reply(429, {}, told), Reply(429, {}, {"Retry-After": "9999"}), OK) as api:
        assert client(api, waits).get(PODS, "ns", "x").is_ok
    assert waits == [7.0, 30.0]


def test_a_server_that_stays_away_is_given_up_with_one_line() -> None:
    with fake_api(BUSY) as api:
        access = client(api)
        with pytest.raises(Unavailable, match="etcd is away") as told:
            access.get(PODS, "ns", "x")
        assert len(api.asked) == 5 and access.calls == 5
    assert "\n" not in str(told.value)


def test_nobody_at_the_address_is_one_line() -> None:
    with pytest.raises(Unavailable, match="is the cluster up"):
        at(f"http://127.0.0.1:{free_port()}").get(PODS, "ns", "x")


def test_a_server_that_takes_the_call_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unavailable, match="does not answer"):
            at(address, call_seconds=0.1, tries=1).get(PODS, "ns", "x")


def test_an_answer_that_drips_is_given_up_in_time() -> None:
    def drip(server: socket.socket, is_over: threading.Event) -> None:
        wire, _ = server.accept()
        with wire:
            wire.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            with suppress(OSError):
                while not is_over.wait(0.02):
                    wire.sendall(b" ")

    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server, is_over))
        thread.start()
        began = time.monotonic()
        with pytest.raises(Unavailable, match="does not end in time"):
            at(f"http://127.0.0.1:{server.getsockname()[1]}", call_seconds=3.0, tries=1).get(
                PODS, "ns", "x"
            )
        assert time.monotonic() - began < 60
        is_over.set()
        thread.join(60.0)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(404, CallOutcome.MISSING), (409, CallOutcome.CONFLICT), (410, CallOutcome.EXPIRED)],
)
def test_facts_are_answers_and_are_not_retried(code: int, outcome: CallOutcome) -> None:
    with fake_api(status(code, "as it is")) as api:
        answer = client(api).get(PODS, "ns", "x")
        assert len(api.asked) == 1
    assert (answer.outcome, answer.text, answer.is_ok) == (outcome, "as it is", False)


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (401, NoCredentials, "log in again"),
        (403, NoPermission, "pods is forbidden"),
        (400, Rejected, "pods is forbidden"),
        (422, Rejected, "pods is forbidden"),
        (302, Rejected, "pods is forbidden"),
    ],
)
def test_refusals_are_errors_of_one_line(code: int, error: type[KubeError], words: str) -> None:
    with fake_api(status(code, "pods is forbidden:\n no")) as api:
        with pytest.raises(error, match=words) as told:
            client(api).get(PODS, "ns", "x")
        assert len(api.asked) == 1
    assert "\n" not in str(told.value)


def test_what_is_no_json_is_no_object() -> None:
    with fake_api(Reply(200, b"<html>a proxy</html>")) as api:
        assert client(api).get(PODS, "ns", "x").body == {}


def test_a_delete_names_the_uid_and_force_only_where_it_is_asked_for() -> None:
    with fake_api(OK) as api:
        access = client(api)
        access.delete(PODS, "ns", "x", uid="u1")
        access.delete(PODS, "ns", "x", uid="u1", grace_seconds=0)
    bodies = [asked[3] for asked in api.asked]
    assert b'"preconditions":{"uid":"u1"}' in bodies[0] and b"grace" not in bodies[0]
    assert b'"gracePeriodSeconds":0' in bodies[1]


def test_a_watch_that_breaks_is_unavailable(tmp_path: Path) -> None:
    with fake_api(Reply(0, is_cut=True)) as api, pytest.raises(Unavailable, match="broke"):
        list(client(api).stream("/api/v1/pods", {"watch": "true"}, 1.0))
