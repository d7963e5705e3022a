# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A copy that is kept by lists alone, for who may list and not watch."""

from __future__ import annotations

import threading
from collections.abc import Callable

import urllib3

from kube.fake_api import FakeApi, Reply, fake_api
from mwatch.kube.access import Access, CallLimits
from mwatch.kube.connect import Connection
from mwatch.kube.mirror import Mirror
from mwatch.kube.resources import WORKLOADS
from support.waiting import until


def listed(*names: str) -> Reply:
    items = [{"metadata": {"name": each, "uid": each}} for each in names]
    return Reply(200, {"metadata": {"resourceVersion": "1"}, "items": items})


def follow(api: FakeApi, is_done: Callable[[Mirror[str]], object]) -> Mirror[str]:
    """Follow by lists until the mirror is as expected."""
    pool = urllib3.PoolManager()
    access = Access(Connection(api.address, pool, lambda: None, "ns"), limits=CallLimits(tries=1))
    mirror = Mirror(access, WORKLOADS, "ns", lambda body: str(body["metadata"]["name"]))
    stop = threading.Event()
    thread = threading.Thread(target=mirror.follow, args=(stop, 0.05))
    thread.start()
    until(lambda: is_done(mirror))
    stop.set()
    thread.join(60)
    pool.clear()
    return mirror


def test_lists_follow_each_other_and_a_refusal_in_between_changes_nothing() -> None:
    with fake_api(listed("a"), listed("a", "b")) as api:
        mirror = follow(api, lambda mirror: len(mirror.objects()) == 2)
    assert mirror.objects() == ["a", "b"]
    assert all("watch" not in path for _, path, _, _ in api.asked)


def test_a_refusal_is_reported_and_the_copy_stays() -> None:
    with fake_api(listed("a"), Reply(403, {"message": "forbidden"})) as api:
        mirror = follow(api, lambda mirror: mirror.status.problem)
    assert "forbidden" in mirror.status.problem
    assert mirror.objects() == ["a"]
