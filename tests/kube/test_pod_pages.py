# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Logs and pages of pods behind an API server: what is asked, and what each refusal becomes."""

from __future__ import annotations

import pytest
import urllib3

from kube.fake_api import FakeApi, Reply, fake_api
from mwatch.kube.access import Access
from mwatch.kube.connect import Connection
from mwatch.kube.errors import NoPermission, Rejected, Unavailable
from mwatch.kube.pod_pages import HEAD_BYTES, pod_page, read_log, service_page

STATUS = {"kind": "Status", "message": 'pods "a" is forbidden: you may not'}


def access(api: FakeApi) -> Access:
    return Access(Connection(api.address, urllib3.PoolManager(), lambda: None, "default"))


def lines(first: int, last: int) -> bytes:
    return b"".join(
        b"2026-01-01T%02d:%02d:%02d.000000000Z line %d %s\n"
        % (n // 3600, n // 60 % 60, n % 60, n, b"x" * 80)
        for n in range(first, last)
    )


def test_a_page_of_a_pod_is_asked_for_by_its_port() -> None:
    with fake_api(Reply(200, {"version": 1})) as api:
        assert pod_page(access(api), "ns", "gpt-0", 9401, "/v1/snapshot", seconds=2.0) == {
            "version": 1
        }
        service_page(access(api), "ns", "mwatch-controller", 9402, "/v1/jobs", seconds=2.0)
    assert [path for _, path, _, _ in api.asked] == [
        "/api/v1/namespaces/ns/pods/gpt-0:9401/proxy/v1/snapshot",
        "/api/v1/namespaces/ns/services/mwatch-controller:9402/proxy/v1/jobs",
    ]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (Reply(403, STATUS), NoPermission),
        (Reply(503, {"message": "no endpoints available"}), Unavailable),
        (Reply(404, {"message": "not found"}), Rejected),
        (Reply(400, {"message": "does not have a host assigned"}), Rejected),
        (Reply(200, b"<html>"), Rejected),
        (Reply(200, b"[1]"), Rejected),
        (Reply(200, None, None, True), Unavailable),
    ],
)
def test_no_page_is_an_error_of_one_line_after_one_try(said: Reply, error: type[Exception]) -> None:
    with fake_api(said) as api:
        with pytest.raises(error) as told:
            pod_page(access(api), "ns", "gpt-0", 9401, "/v1/snapshot", seconds=2.0)
        assert "\n" not in str(told.value)
        assert len(api.asked) == 1


def test_a_short_log_is_read_with_one_question() -> None:
    with fake_api(Reply(200, lines(0, 3))) as api:
        found = read_log(access(api), "ns", "gpt-0", "pytorch", seconds=2.0)
    assert (found.head, found.is_cut) == (lines(0, 3), False)
    ((_, path, _, _),) = api.asked
    assert path.startswith("/api/v1/namespaces/ns/pods/gpt-0/log?container=pytorch&timestamps=true")


def test_a_long_log_is_its_beginning_and_its_end_without_a_line_twice() -> None:
    whole = lines(0, 4000)
    begin = whole[:HEAD_BYTES]
    known = begin.count(b"\n")
    with fake_api(Reply(200, begin), Reply(200, lines(known - 5, 4000))) as api:
        found = read_log(access(api), "ns", "gpt-0", "pytorch", seconds=2.0, is_previous=True)
    assert found.head + found.tail == whole
    assert found.is_cut
    assert all("previous=true" in path for _, path, _, _ in api.asked)
