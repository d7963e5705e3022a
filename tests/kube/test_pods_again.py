# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that are known already are read again by their metadata alone, and never trusted unseen.

With a real API server: `tests/cluster/test_kube_gang.py`.
"""

from __future__ import annotations

from typing import Any

from kube.fake_api import FakeApi, Reply, fake_api
from kube.test_access import client
from mwatch.kube.jobs import pods_of
from mwatch.model.kube.pod import KubePod
from support.builders.kube import pod, pytorch_job

KNOWN = (pod("train-0"), pod("train-1"))


def body(name: str, version: str = "1", owner: str = "job-uid", **more: Any) -> dict[str, Any]:
    owners = [{"uid": owner, "controller": True}]
    about = {"name": name, "uid": f"uid-{name}", "resourceVersion": version}
    return {"metadata": {**about, "ownerReferences": owners}, **more}


def listed(*bodies: dict[str, Any]) -> Reply:
    return Reply(200, {"items": list(bodies), "metadata": {"resourceVersion": "9"}})


def read(api: FakeApi, known: tuple[KubePod, ...] = KNOWN) -> list[tuple[str, str]]:
    found = pods_of(client(api), pytorch_job(), known)
    return [(each.name, each.phase) for each in found]


def wants_metadata(api: FakeApi) -> list[bool]:
    return ["PartialObjectMetadataList" in headers["Accept"] for _, _, headers, _ in api.asked]


def test_pods_of_the_same_version_are_the_known_ones() -> None:
    with fake_api(listed(body("train-0"), body("train-1"), body("x", owner="other"))) as api:
        assert read(api) == [("train-0", "Running"), ("train-1", "Running")]
        assert wants_metadata(api) == [True]


def test_a_pod_that_is_gone_is_not_there() -> None:
    with fake_api(listed(body("train-1"))) as api:
        assert read(api) == [("train-1", "Running")]


def test_where_one_has_changed_or_is_new_all_are_read() -> None:
    failed: dict[str, Any] = {"status": {"phase": "Failed"}}
    for changed in (body("train-1", "2"), body("train-2")):
        after = [body("train-0", **failed), {**changed, **failed}]
        with fake_api(listed(body("train-0"), changed), listed(*after)) as api:
            assert [phase for _, phase in read(api)] == ["Failed", "Failed"]
            assert wants_metadata(api) == [True, False]


def test_without_known_pods_all_are_read_at_once() -> None:
    with fake_api(listed(body("train-0", status={"phase": "Pending"}))) as api:
        assert read(api, ()) == [("train-0", "Pending")]
        assert wants_metadata(api) == [False]


def test_a_known_pod_without_a_version_proves_nothing() -> None:
    nameless = KubePod("ns", "train-0", "uid-train-0", "", "job-uid", "Running")
    with fake_api(listed(body("train-0", "")), listed(body("train-0", "3"))) as api:
        assert read(api, (nameless,)) == [("train-0", "")]
        assert wants_metadata(api) == [True, False]
