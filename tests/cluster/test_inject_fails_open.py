# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever of mwatch is missing or broken, the trainer of an injected job starts on a real node.

In each namespace one thing is wrong. Each time the job trains, `mwatch status` says that it is not
watched and why, and the job ends when its trainer does. All jobs are started at once.

Two things mwatch cannot make good, and says: a pod ends only when its sidecar has started, and a
command without a shell in its image does not start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest

from cluster.control_plane import ControlPlane
from cluster.given import given_images, is_given
from cluster.images import MWATCH, TRAINER
from cluster.kube_things import OF_TESTS, wait_for
from cluster.kubectl import Kubectl
from cluster.node import PAUSE
from cluster.people import mwatch
from cluster.test_inject_runs import job, pytorchjob
from cluster.wrapper import provide
from mwatch.manifests.parts import InjectRequest
from mwatch.manifests.whole import inject_text

pytestmark = pytest.mark.timeout(2400)
NO_IMAGE = "localhost/no-such-image:1"
OURS = given_images().get("mwatch", MWATCH)
_SECONDS = 300.0
WAITS = "echo training; until [ -e /mwatch/go ]; do sleep 1; done; echo trained"


class Case(NamedTuple):
    why: str
    """In what `mwatch status` prints."""
    image: str = OURS
    trainer: str = OURS
    wrapper: bytes | None = None
    """None: the right one; empty: no ConfigMap."""


CASES = {
    "no-image": Case("its container mwatch does not start", image=NO_IMAGE),
    "no-configmap": Case("the namespace has no ConfigMap mwatch-run", wrapper=b""),
    "broken-wrapper": Case("is damaged", wrapper=b"PK not a zip file"),
    "no-python": Case("the image has no Python 3.8 or newer", trainer=TRAINER),
}
if is_given():
    del CASES["no-python"]  # no image without it is known there
GANG, CRASH, NO_SHELL = "no-image-gang", "crash", "no-shell"
_OPERATORS = "training.kubeflow.org/replica-index=0"
# As ranks do: they need the name of the first one.
MEETS = f"echo started; until getent hosts $MASTER_ADDR; do sleep 1; done; {WAITS}"


@pytest.fixture(scope="module")
def started(cluster: Kubectl) -> Iterator[Kubectl]:
    for name, case in CASES.items():
        space = {"name": name, "labels": {OF_TESTS: ""}}
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": space})
        if case.wrapper != b"":
            provide(cluster, name, case.wrapper)
        content = job("train", WAITS)
        content["spec"]["template"]["spec"]["containers"][0]["image"] = case.trainer
        text = inject_text(json.dumps(content), "job.json", InjectRequest(case.image)).text
        cluster("apply", "-n", name, "-f", "-", given=text)
    start(cluster, GANG, pytorchjob("train", MEETS), NO_IMAGE)
    start(cluster, CRASH, job("train", WAITS), OURS)
    without = job("train", "")
    without["spec"]["template"]["spec"]["containers"][0] |= {"image": PAUSE, "command": ["/pause"]}
    if not is_given():
        start(cluster, NO_SHELL, without, OURS)
    yield cluster
    for name in (*CASES, GANG, CRASH, NO_SHELL):
        cluster("delete", "namespace", name, "--wait=false")


def start(cluster: Kubectl, namespace: str, content: dict[str, Any], image: str) -> None:
    space = {"name": namespace, "labels": {OF_TESTS: ""}}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": space})
    provide(cluster, namespace)
    text = inject_text(json.dumps(content), "job.json", InjectRequest(image)).text
    cluster("apply", "-n", namespace, "-f", "-", given=text)


def has_printed(cluster: Kubectl, namespace: str, text: str) -> bool:
    return text in (cluster.answer("logs", "job/train", "-n", namespace, "-c", "pytorch") or "")


def pod_of(cluster: Kubectl, namespace: str) -> str:
    found = cluster.get("pods", "-n", namespace, "-l", "job-name=train")["items"]
    return str(found[0]["metadata"]["name"])


@pytest.mark.parametrize("name", CASES)
def test_the_job_trains_and_status_says_that_it_is_not_watched_and_why(
    started: Kubectl, plane: ControlPlane, name: str
) -> None:
    wait_for(lambda: has_printed(started, name, "training"), "a trainer", _SECONDS)
    fix = ("set", "image", "-n", name, f"pod/{pod_of(started, name)}", f"mwatch={OURS}")
    wanted = ["not watched: ", CASES[name].why]
    if CASES[name].image == NO_IMAGE:  # as status tells it
        wanted.append(" ".join(["kubectl", *fix]).replace(OURS, "IMAGE"))

    def is_told() -> bool:
        """While the pod starts, another reason may come first."""
        told = mwatch(plane, "status", "-n", name).stdout
        return all(each in told for each in wanted)

    def is_watched() -> bool:
        done = mwatch(plane, "status", "-n", name)
        return "train" in done.stdout and "not watched: " not in done.stdout

    wait_for(is_told, f"word that {name} is not watched: {wanted}", _SECONDS)
    if CASES[name].image == NO_IMAGE:
        started(*fix)
        wait_for(is_watched, "a sidecar", _SECONDS)
    started("exec", "-n", name, pod_of(started, name), "-c", "pytorch", "--", "sh", "-c",
            ": > /mwatch/go")  # fmt: skip
    words = ("wait", "-n", name, "--for=condition=Complete", "job/train", "--timeout=300s")
    started(*words, seconds=310)
    wait_for(lambda: has_printed(started, name, "trained"), "its last word", _SECONDS)


def go(cluster: Kubectl, namespace: str, pod: str) -> None:
    words = ("exec", "-n", namespace, pod, "-c", "pytorch", "--", "sh", "-c", ": > /mwatch/go")
    cluster(*words)


def test_pods_of_a_gang_meet_and_train_without_their_sidecars(
    started: Kubectl, plane: ControlPlane
) -> None:
    pods = [f"train-worker-{index}" for index in range(2)]

    def prints(pod: str, text: str) -> bool:
        return text in (started.answer("logs", pod, "-n", GANG, "-c", "pytorch") or "")

    for pod in pods:
        wait_for(partial(prints, pod, "training"), "training", _SECONDS)
    (first, *_) = started.get("services", "-n", GANG, "-l", _OPERATORS)["items"]
    assert first["spec"]["publishNotReadyAddresses"], "the operator took the one of inject"

    def is_told() -> bool:
        return "not watched: " in mwatch(plane, "status", "-n", GANG).stdout

    wait_for(is_told, "the reason", _SECONDS)
    for pod in pods:  # a pod ends only when its sidecar has started
        started("set", "image", "-n", GANG, f"pod/{pod}", f"mwatch={OURS}")
        go(started, GANG, pod)
    done = ("wait", "-n", GANG, "--for=condition=Succeeded", "pytorchjob/train", "--timeout=300s")
    started(*done, seconds=310)
    for pod in pods:
        (trainer,) = (
            each
            for each in started.get("pod", pod, "-n", GANG)["status"]["containerStatuses"]
            if each["name"] == "pytorch"
        )
        assert trainer["restartCount"] == 0, "what trained went on"


def test_a_sidecar_that_is_killed_neither_fails_the_pod_nor_stays_away(
    started: Kubectl, plane: ControlPlane
) -> None:
    """restartPolicy Never: the kubelet would not start it again, and would fail the pod."""
    wait_for(lambda: has_printed(started, CRASH, "training"), "a trainer", _SECONDS)
    pod = pod_of(started, CRASH)
    log = ("logs", pod, "-n", CRASH, "-c", "mwatch")
    wait_for(lambda: "watching /mwatch" in (started.answer(*log) or ""), "a sidecar", _SECONDS)
    kill = "kill -9 $(cat /proc/1/task/1/children)"
    started("exec", "-n", CRASH, pod, "-c", "mwatch", "--", "sh", "-c", kill)
    wait_for(lambda: (started.answer(*log) or "").count("watching /mwatch") == 2, "the next",
             _SECONDS)  # fmt: skip
    assert "the sidecar failed (signal 9): starts again in 1 s" in started(*log)
    go(started, CRASH, pod)
    words = ("wait", "-n", CRASH, "--for=condition=Complete", "job/train", "--timeout=300s")
    started(*words, seconds=310)
    status = started.get("pod", pod, "-n", CRASH)["status"]
    codes = {e["name"]: e["state"]["terminated"]["exitCode"] for e in status["containerStatuses"]}
    assert (status["phase"], codes) == ("Succeeded", {"pytorch": 0, "mwatch": 0})


def test_an_image_without_a_shell_is_named(started: Kubectl, plane: ControlPlane) -> None:
    if is_given():
        pytest.skip("no image without a shell is known there")

    def is_told() -> bool:
        return "its image has no /bin/sh" in mwatch(plane, "status", "-n", NO_SHELL).stdout

    wait_for(is_told, "the reason", _SECONDS)
