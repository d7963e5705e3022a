# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A copy that is kept by lists alone, for who may list and not watch."""

from __future__ import annotations

import threading

import urllib3

from kube.fake_api import Said, fake_api
from mwatch.kube.access import Access, CallLimits
from mwatch.kube.connect import Connection
from mwatch.kube.mirror import Mirror
from mwatch.kube.resources import WORKLOADS


def listed(*names: str) -> Said:
    items = [{"metadata": {"name": each, "uid": each}} for each in names]
    return Said(200, {"metadata": {"resourceVersion": "1"}, "items": items})


def test_lists_follow_each_other_and_a_refusal_in_between_changes_nothing() -> None:
    with fake_api(listed("a"), listed("a", "b")) as api:
        pool = urllib3.PoolManager()
        access = Access(
            Connection(api.address, pool, lambda: None, "ns"), limits=CallLimits(tries=1)
        )
        mirror = Mirror(access, WORKLOADS, "ns", lambda body: str(body["metadata"]["name"]))
        stop = threading.Event()
        thread = threading.Thread(target=mirror.follow, args=(stop, 0.05))
        thread.start()
        while len(mirror.objects()) < 2 and thread.is_alive():
            mirror.changed.wait(5)
            mirror.changed.clear()
        stop.set()
        thread.join(5)
        pool.clear()
    assert mirror.objects() == ["a", "b"]
    assert all("watch" not in path for _, path, _, _ in api.asked)


def test_a_refusal_is_told_and_the_copy_stays() -> None:
    with fake_api(listed("a"), Said(403, {"message": "forbidden"})) as api:
        pool = urllib3.PoolManager()
        access = Access(
            Connection(api.address, pool, lambda: None, "ns"), limits=CallLimits(tries=1)
        )
        mirror = Mirror(access, WORKLOADS, "ns", lambda body: str(body["metadata"]["name"]))
        stop = threading.Event()
        thread = threading.Thread(target=mirror.follow, args=(stop, 0.05))
        thread.start()
        end = threading.Event()
        while not mirror.status.problem and thread.is_alive():
            end.wait(0.01)
        stop.set()
        thread.join(5)
        pool.clear()
    assert "forbidden" in mirror.status.problem
    assert mirror.objects() == ["a"]
