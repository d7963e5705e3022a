# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Controllers on the real API server, and jobs whose pods answer at loopback addresses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from cluster import kube_things as things
from mwatch.config.controller import ControllerSettings
from mwatch.config.fleet import FleetSettings
from mwatch.controller.controller import Controller
from mwatch.fleet.cluster_view import FleetView
from mwatch.fleet.job_monitor import JobMonitor
from mwatch.kube.access import Access, CallLimits
from mwatch.kube.connect import connect
from mwatch.kube.resources import PODS
from mwatch.model.kube.job import KubeJob
from mwatch.runtime.clock import Clock
from support.fakes.pod_servers import PodServer

PATIENCE = 120.0
"""Seconds; a machine that is busy may need them."""


def make_pod(access: Access, job: KubeJob, name: str, address: str, port: int) -> str:
    """It runs at that address, as far as the API server is told; gives its UID back."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": {"batch.kubernetes.io/job-name": job.name},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": job.name, "uid": job.uid,
                 "controller": True}
            ],
        },
        "spec": {
            "schedulerName": "nobody",
            "nodeName": "n1",
            "containers": [
                {"name": "pytorch", "image": "localhost/pause:1"},
                {"name": "mwatch", "image": "localhost/mwatch:1",
                 "ports": [{"name": "mwatch", "containerPort": port}]},
            ],
        },
    }  # fmt: skip
    answer = access.create(PODS, job.namespace, body)
    assert answer.is_ok, answer
    uid = str(answer.body["metadata"]["uid"])
    set_status(access, job.namespace, name, address)
    return uid


def set_status(access: Access, namespace: str, name: str, address: str, **more: Any) -> None:
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], **more}
    answer = access.patch(PODS, namespace, name, {"status": status}, part="status")
    assert answer.is_ok, answer


def remove_pod(access: Access, namespace: str, name: str, uid: str) -> None:
    access.delete(PODS, namespace, name, uid=uid, grace_seconds=0)


class WatchedJob:
    """A Job of two pods that train: `turn` lets a second pass in them."""

    def __init__(self, access: Access, *, pods: int = 2, attempt: int = 1, host: int = 1) -> None:
        self.access = access
        self.namespace = things.fresh_namespace(access)
        things.make_ready_node(access, "n1")
        self.job = things.make_job(access, self.namespace, pods=pods)
        self.iteration = 0
        self.pods: list[PodServer] = []
        self.uids: list[str] = []
        for rank in range(pods):
            address, name = f"127.9.{host}.{rank + 1}", f"train-{rank}"
            server = PodServer(
                name, uid="", namespace=self.namespace, address=address, rank=rank,
                attempt=attempt, port=self.pods[0].port if self.pods else 0,
            )  # fmt: skip
            uid = make_pod(access, self.job, name, address, server.port)
            server.be(uid)
            self.pods.append(server)
            self.uids.append(uid)

    def turn(self) -> None:
        self.iteration += 1
        for pod in self.pods:
            pod.look(self.iteration)

    def close(self) -> None:
        for pod in self.pods:
            pod.close()


@contextmanager
def watching(
    kubeconfig: Path, namespace: str, *, can_act: bool = False, poll: float = 1.0,
    policy: Path | None = None,
) -> Iterator[Controller]:  # fmt: skip
    """A controller whose loop the test turns."""
    limits = CallLimits(call_seconds=10.0, tries=2, first_wait=0.05)
    access = Access(connect(str(kubeconfig)), limits=limits)

    settings = ControllerSettings(namespace, port=0, poll_seconds=poll, policy=policy)
    clock = Clock()
    fleet = FleetView(access, namespace, clock.now, watch_seconds=1.0)
    log: list[str] = []
    acting = FleetSettings() if can_act else None
    controller = Controller(settings, access, acting, log.append, fleet=fleet, clock=clock)
    controller.start()
    try:
        yield controller
    finally:
        controller.close()
        access.close()


def until(
    controller: Controller, is_so: Callable[[JobMonitor], Any], job: WatchedJob | None = None,
    seconds: float = PATIENCE,
) -> JobMonitor:  # fmt: skip
    """Turns the loop, and the pods, until that is so of its one job."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if job is not None:
            job.turn()
        controller.turn()
        for watch in controller.jobs:
            if is_so(watch):
                return watch
        time.sleep(0.1)
    seen = [(each.phase, each.assessment, each.pods) for each in controller.jobs]
    raise AssertionError(f"not within {seconds} s: {seen}")


def cause(watch: JobMonitor) -> str:
    return "" if watch.assessment is None else watch.assessment.decision.cause.value


def page(controller: Controller, path: str) -> bytes:
    with urlopen(f"http://127.0.0.1:{controller.port}{path}", timeout=60) as answer:
        body: bytes = answer.read()
        return body
