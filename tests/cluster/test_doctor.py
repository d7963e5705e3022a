# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch doctor` on the real API server: rights, kinds, clock, Lease, image pull."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cluster import kube_things as things
from cluster.control_plane import ControlPlane
from cluster.remediation_fixtures import a_namespace, an_access, kinds  # noqa: F401
from mwatch.cli.program import program
from mwatch.diagnose.doctor.cluster import DoctorRequest, check_lease, examine
from mwatch.diagnose.doctor.job import PullTimes, check_pull
from mwatch.diagnose.doctor.lines import DoctorLine, LineState
from mwatch.kube.access import Access
from mwatch.kube.lease import Lease
from mwatch.kube.resources import PODS

pytestmark = pytest.mark.timeout(900)
SIDECAR = {"spec": {"containers": [{"name": "mwatch", "image": "registry.invalid/mwatch:9"}]}}


def by_name(access: Access, namespace: str, **more: Any) -> dict[str, DoctorLine]:
    report = examine(access, DoctorRequest(namespace, **more))
    return {each.name: each for each in report.lines}


def test_the_command_says_what_is_there_and_what_is_not(
    plane: ControlPlane, access: Access, namespace: str
) -> None:
    things.make_job(access, namespace)
    words = ["doctor", "train", "-n", namespace, "--kubeconfig", str(plane.kubeconfig("admin"))]
    result = CliRunner().invoke(program(), [*words, "--json"])
    body: dict[str, Any] = json.loads(result.stdout)
    states = {each["name"]: each["state"] for each in body["checks"]}
    assert (result.exit_code, body["version"], body["is_well"]) == (1, 1, False)
    assert {states[name] for name in ("cluster", "kinds", "clock", "rights to read")} == {"ok"}
    assert (states["rights to act"], states["controller"], states["lease"]) == (
        "ok", "problem", "problem",
    )  # fmt: skip
    assert states["sidecars"] == states["image pull"] == states["PodMonitor"] == "skipped"
    fixes = {each["name"]: each["fix"] for each in body["checks"]}
    assert f"helm install mwatch charts/mwatch -n {namespace}" in fixes["controller"]
    plain = CliRunner().invoke(program(), words)
    assert "PyTorchJob, JobSet, TrainJob, Job, StatefulSet" in plain.stdout
    unknown = CliRunner().invoke(program(), ["doctor", "trian", *words[2:]])
    assert unknown.exit_code != 0 and "did you mean train" in str(unknown.exception)


def test_the_role_that_it_prints_is_what_was_missing(
    plane: ControlPlane, access: Access, namespace: str
) -> None:
    things.let_read(access, namespace, "reader", "batch", "jobs")
    theirs = things.impatient(plane, impersonate="reader")
    before = by_name(theirs, namespace)
    assert before["rights to read"].state is LineState.PROBLEM
    assert before["rights to act"].state is LineState.SKIPPED
    for line in (before["rights to read"], before["rights to act"]):
        role, binding = yaml.safe_load_all(line.manifest)
        assert access.create(things.ROLES, namespace, role).is_ok
        assert access.create(things.BINDINGS, namespace, binding).is_ok

    def has_all() -> bool:
        now = by_name(theirs, namespace)
        names = ("rights to read", "rights to act")
        return all(now[name].state is LineState.OK for name in names)

    things.wait_for(has_all, "the roles are in force")
    theirs.close()


def test_a_lease_is_judged_by_its_age(access: Access, namespace: str) -> None:
    assert check_lease(access, namespace, time.time()).state is LineState.PROBLEM
    lease = Lease(access, namespace, "one")
    assert lease.turn()
    assert check_lease(access, namespace, time.time()).text.startswith("one leads")
    late = check_lease(access, namespace, time.time() + 600)
    assert late.state is LineState.PROBLEM and "it is dead" in late.text
    lease.give_back()
    assert "no controller leads" in check_lease(access, namespace, time.time()).text


@pytest.mark.parametrize(
    ("state", "image", "found"),
    [
        ({"running": {}}, "sha256:1", LineState.OK),
        ({"waiting": {"reason": "ErrImagePull", "message": "no such host"}}, "", LineState.PROBLEM),
    ],
)
def test_an_image_is_pulled_by_a_pod_that_is_removed(
    state: Mapping[str, Any], image: str, found: LineState, access: Access, namespace: str
) -> None:
    seen: list[str] = []

    def kubelet(seconds: float) -> None:
        (pod,) = access.list(PODS, namespace).objects
        name = pod["metadata"]["name"]
        seen.append(pod["spec"]["containers"][0]["image"])
        one = {
            "name": "mwatch", "image": "x", "imageID": image, "state": state, "ready": False,
            "restartCount": 0,
        }  # fmt: skip
        status = {"status": {"containerStatuses": [one]}}
        assert access.patch(PODS, namespace, name, status, part="status").is_ok

    line = check_pull(access, namespace, SIDECAR, PullTimes(wait=kubelet))
    assert (line.state, set(seen)) == (found, {"registry.invalid/mwatch:9"}), line
    assert found is LineState.OK or "no such host" in line.text
    assert access.list(PODS, namespace).objects == ()
    assert check_pull(access, namespace, None).state is LineState.SKIPPED
