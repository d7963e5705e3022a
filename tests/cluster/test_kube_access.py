# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lists and watches of the real API server: pages, forgotten versions, stale sight."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable

import pytest

from cluster import kube_things as things
from cluster.control_plane import ControlPlane
from mwatch.kube.access import Access
from mwatch.kube.connect import connect
from mwatch.kube.errors import NoCredentials, NoPermission, Unavailable
from mwatch.kube.jobs import find_job, pods_of, watched_jobs
from mwatch.kube.mirror import Mirror
from mwatch.kube.resources import CONFIG_MAPS, EVENTS, PODS, ApiResource
from mwatch.model.kube.facts import event_of
from mwatch.model.kube.job import JobKind
from mwatch.model.kube.pod import KubePod, pod_of


def compact(plane: ControlPlane) -> None:
    """etcd forgets all that is not now."""
    environment = {**plane.environment, "ETCDCTL_API": "3"}
    words = ["etcdctl", "--endpoints", "http://127.0.0.1:2379"]

    def run(*more: str) -> str:
        return subprocess.run(
            [*words, *more], env=environment, check=True, capture_output=True, text=True, timeout=60
        ).stdout

    revision = run("endpoint", "status", "-w", "fields").split('"Revision" : ')[1].split()[0]
    run("compact", revision)


def make_maps(access: Access, namespace: str, count: int) -> None:
    for index in range(count):
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"m{index}"}}
        access.create(CONFIG_MAPS, namespace, body)


def test_a_long_list_is_read_page_by_page(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    make_maps(access, namespace, 7)
    calls = access.calls

    listing = access.list(CONFIG_MAPS, namespace, page=3)

    assert len(listing.objects) == 7
    assert access.calls - calls == 3
    assert {each["kind"] for each in listing.objects} == {"ConfigMap"}


def make_events(access: Access, namespace: str, names: range) -> None:
    """The API server keeps no copy of Events: what etcd forgets is forgotten."""
    for index in names:
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"e{index}"},
            "involvedObject": {"kind": "Pod", "name": "train-0", "namespace": namespace},
            "reason": "Test",
        }
        assert access.create(EVENTS, namespace, body).is_ok


def test_a_list_whose_moment_is_forgotten_between_two_pages_starts_over(
    plane: ControlPlane,
) -> None:
    other = things.client(plane)
    namespace = things.fresh_namespace(other)
    make_events(other, namespace, range(5))
    is_forgotten = False

    def clock() -> float:
        nonlocal is_forgotten
        if reader.calls == 1 and not is_forgotten:  # the first page is here
            is_forgotten = True
            make_events(other, namespace, range(5, 6))
            compact(plane)
        return 0.0

    reader = things.client(plane, clock=clock)
    listing = reader.list(EVENTS, namespace, page=2)

    assert len(listing.objects) == 6
    assert reader.calls == 2 + 3


def test_a_kind_that_the_cluster_does_not_know_is_no_empty_list(access: Access) -> None:
    unknown = ApiResource("nobody.dev", "v1", "things", "Thing")
    assert not access.list(unknown, "default").is_known


def mirror_of(
    access: Access, namespace: str, clock: Callable[[], float] = time.monotonic
) -> Mirror[KubePod]:
    return Mirror(access, PODS, namespace, pod_of, watch_seconds=1.0, clock=clock)


def test_a_mirror_follows_what_is_made_and_deleted(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace)
    things.make_pod(access, job, "train-0")
    mirror, stop = mirror_of(access, namespace), threading.Event()
    thread = threading.Thread(target=mirror.follow, args=(stop,))
    thread.start()
    try:
        things.wait_for(lambda: len(mirror.objects()) == 1, "the first pod")
        uid = things.make_pod(access, job, "train-1")
        things.wait_for(lambda: len(mirror.objects()) == 2, "the second pod")
        access.delete(PODS, namespace, "train-1", uid=uid)
        things.wait_for(lambda: [pod.name for pod in mirror.objects()] == ["train-0"], "its end")
        assert mirror.relists == 1
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def test_a_watch_from_a_version_that_is_forgotten_leads_to_a_new_list(
    plane: ControlPlane, access: Access
) -> None:
    namespace = things.fresh_namespace(access)
    mirror = Mirror(access, EVENTS, namespace, event_of, watch_seconds=1.0)
    mirror.turn()
    make_events(access, namespace, range(3))
    compact(plane)

    mirror.turn()  # 410
    assert mirror.objects() == []
    mirror.turn()

    assert mirror.relists == 2
    assert [event.reason for event in mirror.objects()] == ["Test"] * 3


def test_a_quiet_cluster_is_fresh_and_one_that_does_not_answer_grows_old(
    plane: ControlPlane,
) -> None:
    now = [100.0]
    access = things.impatient(plane)
    namespace = things.fresh_namespace(access)
    mirror = mirror_of(access, namespace, lambda: now[0])
    assert mirror.status.age_seconds is None
    mirror.turn()
    now[0] = 150.0
    assert mirror.status.age_seconds == 50.0
    mirror.turn()  # a watch that ends without a word: nothing has happened
    assert mirror.status.age_seconds == 0.0

    away = things.impatient(plane, impersonate="nobody")
    blind = mirror_of(away, namespace, lambda: now[0])
    with pytest.raises(NoPermission):
        blind.turn()
    assert blind.status.age_seconds is None


def test_wrong_credentials_and_missing_rights_are_one_line_each(plane: ControlPlane) -> None:
    file = plane.folder / "expired.kubeconfig"
    file.write_text(
        plane.kubeconfig("admin").read_text().replace('"token": "admin"', '"token": "old"')
    )
    with pytest.raises(NoCredentials, match="log in again") as told:
        Access(connect(str(file))).get(PODS, "default", "x")
    assert "\n" not in str(told.value)
    with pytest.raises(NoPermission, match='User "nobody" cannot get resource "pods"'):
        things.client(plane, impersonate="nobody").get(PODS, "default", "x")


def test_no_api_server_is_one_line_after_a_bounded_time(plane: ControlPlane) -> None:
    file = plane.folder / "away.kubeconfig"
    file.write_text(plane.kubeconfig("admin").read_text().replace(":6443", ":6444"))
    waits: list[float] = []
    with pytest.raises(Unavailable, match="does not answer") as told:
        Access(connect(str(file)), wait=waits.append).get(PODS, "default", "x")
    assert len(waits) == 4 and "\n" not in str(told.value)


def test_watched_jobs_and_their_pods_are_found_by_label_and_owner(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace)
    uid = things.make_pod(access, job, "train-0")
    other = things.make_job(access, namespace, "other")
    things.make_pod(access, job, "stranger", owner=other)

    found = watched_jobs(access, namespace)

    assert {each.name for each in found.jobs} == {"train", "other"}
    assert {JobKind.JOB, JobKind.STATEFUL_SET} <= found.kinds
    assert find_job(access, namespace, "train") in found.jobs
    assert find_job(access, namespace, "nobody") is None
    assert [pod.uid for pod in pods_of(access, job)] == [uid]


def test_kinds_that_may_not_be_read_do_not_hide_the_others(
    plane: ControlPlane, access: Access
) -> None:
    namespace = things.fresh_namespace(access)
    things.make_job(access, namespace)
    things.let_read(access, namespace, "somebody", "batch", "jobs")
    theirs = things.client(plane, impersonate="somebody")
    things.wait_for(lambda: _may(theirs, namespace), "the right to read Jobs")

    found = watched_jobs(theirs, namespace)

    assert [job.name for job in found.jobs] == ["train"]
    assert any("statefulsets" in each for each in found.problems)
    assert find_job(theirs, namespace, "train") is not None
    with pytest.raises(NoPermission):
        find_job(theirs, namespace, "nobody")
    with pytest.raises(NoPermission):
        watched_jobs(things.client(plane, impersonate="nobody"), namespace)


def _may(access: Access, namespace: str) -> bool:
    try:
        return bool(watched_jobs(access, namespace).kinds)
    except NoPermission:
        return False
