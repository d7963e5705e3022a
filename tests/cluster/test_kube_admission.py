# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the admission rules leave to the controller, on the real API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster import kube_things as things
from cluster.control_plane import ControlPlane
from cluster.test_kube_rights import Right, allowed, installed, make_workload, user
from mwatch.gang.suspend import start, stop
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError, NoPermission
from mwatch.kube.jobs import find_job
from mwatch.kube.resources import CONFIG_MAPS, NODES, OF_KIND, SECRETS, WORKLOADS, ApiResource
from mwatch.model.kube.job import JobKind
from mwatch.model.kube.node import KubeNode, node_of
from mwatch.remediate.node_avoidance import (
    AvoidanceRefused,
    avoid_patch,
    cordon,
    expired,
    keep_off,
    uncordon,
)

GROUP = "admissionregistration.k8s.io"
POLICIES = ApiResource(
    GROUP, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", is_namespaced=False
)
POLICY_BINDINGS = ApiResource(
    GROUP, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", False
)
CLUSTER_ROLES = ApiResource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False)
CLUSTER_BINDINGS = ApiResource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False
)
NETWORK_POLICIES = ApiResource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
BY_KIND = {each.kind: each for each in (POLICIES, POLICY_BINDINGS, CLUSTER_ROLES, CLUSTER_BINDINGS)}
OTHER_PATCHES: dict[str, dict[str, Any]] = {
    "a label": {"metadata": {"labels": {"team": "x"}}},
    "somebody's annotation": {"metadata": {"annotations": {"owner": "x"}}},
    "a finalizer": {"metadata": {"finalizers": ["x.dev/keep"]}},
}


def of_master(**changes: Any) -> dict[str, Any]:
    return {"spec": {"pytorchReplicaSpecs": {"Master": changes}}}


def of_pods(**changes: Any) -> dict[str, Any]:
    return of_master(template={"spec": changes})


OF_PYTORCH_JOB: dict[str, dict[str, Any]] = {
    "replicas": of_master(replicas=0),
    "restart policy": of_master(restartPolicy="Never"),
    "another group": {
        "spec": {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": {"containers": []}}}}}
    },
    "image": of_pods(containers=[{"name": "pytorch", "image": "evil"}]),
    "host network": of_pods(hostNetwork=True),
    "labels of pods": of_master(template={"metadata": {"labels": {"a": "b"}}}),
    "backoffLimit": {"spec": {"runPolicy": {"backoffLimit": 3}}},
    "nproc": {"spec": {"nprocPerNode": "4"}},
}


@pytest.fixture(scope="module")
def namespace(admin: Access) -> str:
    name, _ = installed(admin)
    for file in ("admission.yaml", "nodes-read.yaml", "nodes-cordon.yaml"):
        for body in things.manifests(file, name):
            answer = admin.call("POST", BY_KIND[body["kind"]].path(None), body=body)
            assert answer.is_ok or "already exists" in answer.text, answer
    return name


@pytest.fixture(scope="module")
def ours(plane: ControlPlane, admin: Access, namespace: str) -> Iterator[Access]:
    made = things.impatient(plane, impersonate=user(namespace))
    things.make_of(admin, namespace, JobKind.PYTORCH_JOB)
    path = OF_KIND[JobKind.PYTORCH_JOB].path(namespace, "train-pytorchjob")
    probe = {"metadata": {"labels": {"probe": "x"}}}
    things.wait_for(lambda: is_refused(made, path, probe), "the policy of jobs is in force")
    things.wait_for(lambda: makes_nothing_else(made, namespace), "that of new objects is, too")
    things.wait_for(lambda: _sees_nodes(made), "the rights to nodes are in force")
    yield made
    made.close()


def is_refused(access: Access, path: str, body: dict[str, Any]) -> bool:
    try:
        access.call(
            "PATCH", path, body=body, kind="application/merge-patch+json", query={"dryRun": "All"}
        )
    except KubeError as error:
        return "mwatch" in str(error)
    return False


def makes_nothing_else(access: Access, namespace: str) -> bool:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "probe"}}
    try:
        access.call("POST", CONFIG_MAPS.path(namespace), body=body, query={"dryRun": "All"})
    except KubeError as error:
        return "nothing else" in str(error)
    return False


def _sees_nodes(access: Access) -> bool:
    try:
        return access.list(NODES, None).is_known
    except NoPermission:
        return False


@pytest.mark.timeout(600)
def test_what_the_controller_does_to_jobs_is_let_through(
    admin: Access, ours: Access, namespace: str
) -> None:
    for kind in JobKind:
        name = f"train-{kind.value.lower()}"
        job = find_job(admin, namespace, name, kind) or things.make_of(admin, namespace, kind)
        assert stop(ours, job, None, id="i1"), kind
        stopped = find_job(ours, namespace, name, kind)
        assert stopped is not None and stopped.is_suspended, kind
        assert start(ours, stopped, None), kind
        again = find_job(ours, namespace, name, kind)
        assert again is not None and not again.is_suspended, kind


@pytest.mark.parametrize("kind", [JobKind.PYTORCH_JOB, JobKind.STATEFUL_SET])
def test_an_affinity_is_let_through_and_taken_back(
    admin: Access, ours: Access, namespace: str, kind: JobKind
) -> None:
    name = f"train-{kind.value.lower()}"
    job = find_job(admin, namespace, name, kind) or things.make_of(admin, namespace, kind)
    before = job.groups[0].template
    patch = avoid_patch(job, "a-17", now=0.0, until=100.0)
    assert isinstance(patch, dict) and keep_off(ours, job, patch)
    held = find_job(ours, namespace, name, kind)
    assert held is not None and "a-17" in str(held.groups[0].template)
    assert not keep_off(ours, job, patch), "the job has changed since it was read"

    over = avoid_patch(held, None, now=200.0, until=0.0)
    assert isinstance(over, dict) and keep_off(ours, held, over)

    after = find_job(ours, namespace, name, kind)
    assert after is not None
    template = dict(after.groups[0].template["spec"])
    template.pop("affinity", None)
    assert template == before["spec"] and "mwatch.dev/avoid" not in after.annotations


@pytest.mark.parametrize("what", OTHER_PATCHES)
@pytest.mark.parametrize("kind", JobKind)
def test_other_patches_of_a_job_are_refused(
    admin: Access, ours: Access, namespace: str, kind: JobKind, what: str
) -> None:
    name = f"train-{kind.value.lower()}"
    if find_job(admin, namespace, name, kind) is None:
        things.make_of(admin, namespace, kind)
    path = OF_KIND[kind].path(namespace, name)
    assert is_refused(ours, path, OTHER_PATCHES[what])
    assert not is_refused(admin, path, OTHER_PATCHES[what]), "others may do what they may"


@pytest.mark.parametrize("what", OF_PYTORCH_JOB)
def test_nothing_else_of_a_pytorchjob_can_be_changed(
    ours: Access, namespace: str, what: str
) -> None:
    path = OF_KIND[JobKind.PYTORCH_JOB].path(namespace, "train-pytorchjob")
    assert is_refused(ours, path, OF_PYTORCH_JOB[what])


def test_of_a_workload_only_active_can_be_changed(
    admin: Access, ours: Access, namespace: str
) -> None:
    job = find_job(admin, namespace, "train-pytorchjob")
    assert job is not None
    make_workload(admin, namespace, job)
    path = WORKLOADS.path(namespace, "work")
    assert not is_refused(ours, path, {"spec": {"active": False}})
    assert is_refused(ours, path, {"spec": {"queueName": "better"}})
    assert is_refused(ours, path, {"spec": {"priority": 1000}})


@pytest.mark.parametrize(("resource", "name"), [(CONFIG_MAPS, "other"), (SECRETS, "other")])
def test_it_makes_nothing_under_a_name_that_is_not_its_own(
    ours: Access, namespace: str, resource: ApiResource, name: str
) -> None:
    body = {"apiVersion": "v1", "kind": resource.kind, "metadata": {"name": name}}
    with pytest.raises(KubeError, match="nothing else"):
        ours.create(resource, namespace, body)


def test_a_secret_that_is_a_login_cannot_be_made(ours: Access, namespace: str) -> None:
    about = {
        "name": "mwatch-x",
        "annotations": {"kubernetes.io/service-account.name": "default"},
    }
    kind = "kubernetes.io/service-account-token"
    with pytest.raises(KubeError, match="nothing else"):
        ours.create(
            SECRETS,
            namespace,
            {"apiVersion": "v1", "kind": "Secret", "metadata": about, "type": kind},
        )


def nodes(access: Access) -> tuple[KubeNode, ...]:
    return tuple(map(node_of, access.list(NODES, None).objects))


def test_a_node_is_cordoned_for_a_while_and_nothing_else_is_done_to_it(
    admin: Access, ours: Access, namespace: str
) -> None:
    for name in ("sick", "well"):
        things.make_node(admin, name)
    # Read and patch are two roles, and their rule is a policy of its own.
    patch, path = Right("", "nodes", "patch"), NODES.path(None, "well")
    things.wait_for(lambda: allowed(admin, namespace, patch), "the right to patch nodes")
    probe = {"metadata": {"labels": {"probe": "x"}}}
    things.wait_for(lambda: is_refused(ours, path, probe), "the policy of nodes is in force")
    assert cordon(ours, nodes(ours), "sick", until=100.0, why="Xid 79", most=1) is None
    (held,) = (node for node in nodes(ours) if node.name == "sick")
    assert held.is_cordoned and held.annotations["mwatch.dev/cordoned-for"] == "Xid 79"

    refused = cordon(ours, nodes(ours), "well", until=100.0, why="", most=1)
    assert isinstance(refused, AvoidanceRefused) and "limit" in refused.text
    assert expired(nodes(ours), now=99.0) == []
    assert [node.name for node in expired(nodes(ours), now=100.0)] == ["sick"]
    assert uncordon(ours, held) is None
    assert not any(node.is_cordoned for node in nodes(ours))
    (well,) = (node for node in nodes(ours) if node.name == "well")
    assert isinstance(uncordon(ours, well), AvoidanceRefused)

    taint = {"key": "x", "effect": "NoExecute"}
    for body in (
        {"spec": {"taints": [taint]}},
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"spec": {"podCIDR": "192.0.2.0/24"}},
    ):
        assert is_refused(ours, path, body), body


def test_the_network_policies_are_valid(admin: Access, namespace: str) -> None:
    for body in things.manifests("network-policy.yaml", namespace):
        assert admin.create(NETWORK_POLICIES, namespace, body).is_ok
