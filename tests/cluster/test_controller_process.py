# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch controller` as a process, with real `mwatch sidecar` processes as its pods."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from cluster import kube_things as things
from cluster.control_plane import ControlPlane
from cluster.controller_runs import make_pod
from mwatch.kube.access import Access
from mwatch.kube.resources import JOBS, LEASES
from support import waiting
from support.builders.events import megatron_line
from support.hostile_requests import sweep
from support.runs.live_volume import LiveVolume
from support.runs.sidecar_runs import environment, sidecar

pytestmark = pytest.mark.timeout(900)  # three Pythons that start, and seconds of training
PATIENCE = 120.0
"""Seconds; a machine that is busy may need them."""


def until(condition: Callable[[], Any]) -> Any:
    """A page that does not answer yet counts as "not yet"."""
    return waiting.until(condition, PATIENCE, ignoring=(OSError,))


@contextmanager
def controller(plane: ControlPlane, *options: str) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "mwatch", "controller", "--kubeconfig",
             str(plane.kubeconfig("admin")), *options]  # fmt: skip
    process = subprocess.Popen(
        words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


class Training(threading.Thread):
    """Volumes on which a job trains, an iteration a second."""

    def __init__(self, *volumes: LiveVolume) -> None:
        super().__init__(daemon=True)
        self.volumes = volumes
        self.stopped: tuple[int, ...] = ()
        self.iteration = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.5):
            self.iteration += 0 if self.stopped else 1
            for rank, volume in enumerate(self.volumes):
                if rank not in self.stopped:
                    volume.beat(self.iteration, rank, len(self.volumes))
            if not self.stopped:
                loss = f" lm loss: {8 - 0.01 * self.iteration:.6E} |"
                self.volumes[-1].print(megatron_line(self.iteration, losses=loss))


def jobs(port: int) -> list[dict[str, Any]]:
    with urlopen(f"http://127.0.0.1:{port}/v1/jobs", timeout=60) as answer:
        found: list[dict[str, Any]] = json.loads(answer.read())["jobs"]
        return found


def cause_of(job: dict[str, Any]) -> str:
    return str((job["verdict"] or {}).get("cause", ""))


def port_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if "/metrics" in line:
            assert "http://[::]:" in line or "http://127.0.0.1:" in line
            return int(line.rpartition(":")[2].partition("/")[0])
    raise AssertionError("it did not start")


class Pods:
    """Two that train, each with its own sidecar."""

    def __init__(self, access: Access, folder: Path) -> None:
        self.namespace = things.fresh_namespace(access)
        things.make_node(access, "n1")
        job = things.make_job(access, self.namespace, pods=2)
        observed = {"metadata": {"annotations": {"mwatch.dev/mode": None}}}
        access.patch(JOBS, self.namespace, "train", observed)
        self.volumes = [LiveVolume(folder / f"v{rank}", ranks=1) for rank in range(2)]
        self.training = Training(*self.volumes)
        self._addresses = [f"127.8.0.{rank + 1}" for rank in range(2)]
        for volume in self.volumes:
            volume.start(1)
        self._uids = [
            make_pod(access, job, f"train-{rank}", each, 9401)
            for rank, each in enumerate(self._addresses)
        ]

    @contextmanager
    def run(self) -> Iterator[Training]:
        self.training.start()
        with ExitStack() as stack:
            stack.callback(self.training.done.set)
            for rank, volume in enumerate(self.volumes):
                options = (
                    "--pod", f"train-{rank}", "--pod-uid", self._uids[rank],
                    "--namespace", self.namespace, "--host", self._addresses[rank],
                    "--port", "9401",
                )  # fmt: skip
                stack.enter_context(sidecar(volume.path, *options, run="train"))
            yield self.training


def test_two_pods_are_joined_into_one_job_and_a_stopped_rank_is_found(
    plane: ControlPlane, access: Access, tmp_path: Path
) -> None:
    pods = Pods(access, tmp_path)
    options = ("-n", pods.namespace, "--port", "0", "--poll", "1")
    with pods.run() as training, controller(plane, *options) as process:
        port = port_of(process)
        everywhere = {"wanted": 2, "running": 2, "answering": 2, "silent": []}
        until(
            lambda: [
                each
                for each in jobs(port)
                if (each["iteration"] or 0) > 12
                and each["pods"] == everywhere
                and cause_of(each) == "healthy"
            ]
        )
        training.stopped = (0,)

        def named() -> dict[str, Any] | None:
            """The culprit of the hang, once it is known which rank."""
            (told,) = jobs(port)
            culprit: dict[str, Any] = (told["verdict"] or {}).get("culprit") or {}
            return culprit if cause_of(told) == "hang" and culprit.get("rank") == 0 else None

        culprit = until(named)
        assert (culprit["pod"], culprit["node"]) == ("train-0", "n1")

        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    lease = access.get(LEASES, pods.namespace, "mwatch-controller").body["spec"]
    assert not lease.get("holderIdentity")


def test_no_request_to_any_page_makes_it_fail_or_show_what_it_should_not(
    plane: ControlPlane, access: Access
) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace, pods=1)
    things.make_pod(access, job, "train-0")
    with controller(plane, "-n", namespace, "--port", "0") as process:
        port = port_of(process)
        until(lambda: jobs(port))
        assert sweep(port) == []
        assert process.poll() is None


def test_once_shows_all_jobs_and_leaves_by_what_it_saw(plane: ControlPlane, access: Access) -> None:
    namespace = things.fresh_namespace(access)
    with controller(plane, "-n", namespace, "--once", "--json") as process:
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        assert json.loads(said)["jobs"] == []
    job = things.make_job(access, namespace, pods=1)
    things.make_pod(access, job, "train-0")
    with controller(plane, "-n", namespace, "--once") as process:
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 3
        assert said.startswith("Job/train  act  scheduling")
    assert not access.get(LEASES, namespace, "mwatch-controller").is_ok


def test_a_cluster_that_is_not_there_is_one_line_and_the_fix(
    plane: ControlPlane, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "mwatch", "controller", "--kubeconfig", str(tmp_path / "none")]
    done = subprocess.run(
        words, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 3
    assert done.stderr.startswith("mwatch: no cluster:") and done.stderr.count("\n") == 1
