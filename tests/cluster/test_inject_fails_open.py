# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever of mwatch is missing or broken, the trainer of an injected job starts on a real node.

In each namespace one thing is wrong. Each time the job trains, `mwatch status` says that it is not
watched and why, and the job ends when its trainer does. All jobs are started at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from cluster.control_plane import ControlPlane
from cluster.given import given_images, is_given
from cluster.images import MWATCH, TRAINER
from cluster.kube_things import OF_TESTS, wait_for
from cluster.kubectl import Kubectl
from cluster.people import mwatch
from cluster.test_inject_runs import job
from cluster.wrapper import provide
from mwatch.manifests.parts import InjectRequest
from mwatch.manifests.whole import inject_text

pytestmark = pytest.mark.timeout(600)
NO_IMAGE = "localhost/no-such-image:1"
OURS = given_images().get("mwatch", MWATCH)
_SECONDS = 180.0
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
    yield cluster
    for name in CASES:
        cluster("delete", "namespace", name, "--wait=false")


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
    told = [""]

    def is_told() -> bool:
        told[0] = mwatch(plane, "status", "-n", name).stdout
        return "not watched: " in told[0]

    wait_for(is_told, f"word that {name} is not watched", _SECONDS)
    assert CASES[name].why in told[0]
    if CASES[name].image == NO_IMAGE:  # as status tells it
        fix = ("set", "image", "-n", name, f"pod/{pod_of(started, name)}", f"mwatch={OURS}")
        assert " ".join(["kubectl", *fix]).replace(OURS, "IMAGE") in told[0]
        started(*fix)
        wait_for(lambda: "not watched: " not in mwatch(plane, "status", "-n", name).stdout,
                 "a sidecar", _SECONDS)  # fmt: skip
    started("exec", "-n", name, pod_of(started, name), "-c", "pytorch", "--", "sh", "-c",
            ": > /mwatch/go")  # fmt: skip
    words = ("wait", "-n", name, "--for=condition=Complete", "job/train", "--timeout=180s")
    started(*words, seconds=190)
    assert has_printed(started, name, "trained")
