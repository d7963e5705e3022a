# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a person may read decides what `mwatch diagnose` sees, and it says what it did not."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cluster import kube_things as things
from cluster.control_plane import ControlPlane
from cluster.people import ready_node, run_pods
from mwatch.diagnose.fleet_status import look
from mwatch.diagnose.job import JobRequest, diagnose_with
from mwatch.kube.access import Access
from mwatch.kube.errors import NoPermission
from mwatch.kube.resources import SECRETS, ApiResource
from mwatch.model.cause import Cause

_RBAC = ("rbac.authorization.k8s.io", "v1")
CLUSTER_ROLES = ApiResource(*_RBAC, "clusterroles", "ClusterRole", is_namespaced=False)
CLUSTER_BINDINGS = ApiResource(
    *_RBAC, "clusterrolebindings", "ClusterRoleBinding", is_namespaced=False
)


def let(access: Access, namespace: str, user: str, rules: list[dict[str, Any]]) -> None:
    body = {"apiVersion": things.ROLES.api_version, "kind": "Role", "metadata": {"name": user},
            "rules": rules}  # fmt: skip
    assert access.create(things.ROLES, namespace, body).is_ok
    bind(access, namespace, user)
    in_force(access, namespace, user, rules)


def bind(access: Access, namespace: str | None, user: str) -> None:
    group = "rbac.authorization.k8s.io"
    kinds = (CLUSTER_BINDINGS, "ClusterRole") if namespace is None else (things.BINDINGS, "Role")
    resource, role = kinds
    body = {
        "apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": user},
        "roleRef": {"apiGroup": group, "kind": role, "name": user},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }  # fmt: skip
    assert access.call("POST", resource.path(namespace), body=body).is_ok


def in_force(access: Access, namespace: str, user: str, rules: list[dict[str, Any]]) -> None:
    """Waits until the API server grants what they say: a role as a whole, so one right will do."""
    rule = next(each for each in rules if not each.get("resourceNames"))
    resource, _, part = rule["resources"][0].partition("/")
    asks = {
        "namespace": namespace, "verb": rule["verbs"][0], "group": rule["apiGroups"][0],
        "resource": resource, "subresource": part,
    }  # fmt: skip
    things.wait_for(lambda: things.is_allowed(access, user, asks), f"the rights of {user}")


def test_who_may_read_jobs_and_pods_alone_gets_a_verdict_and_learns_what_is_missing(
    plane: ControlPlane, access: Access
) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace, pods=1)
    run_pods(access, job, 1, ready_node(access, "well-too"))
    let(access, namespace, "ann", [
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    ])  # fmt: skip
    theirs = things.client(plane, impersonate="ann")
    told = diagnose_with(theirs, JobRequest("job/train", namespace), time.time())
    assert told.report.verdict.cause is Cause.BLIND
    missing = told.facts.unavailable
    assert {"events", "quotas", "ledger", "nodes", "claims", "services"} <= set(missing)
    assert "forbidden" in missing["events"]
    unseen = {each.check: each.why for each in told.checks if each.why}
    assert "forbidden" in unseen["nodes"] and "forbidden" in unseen["last-rank"]
    theirs.close()


def test_who_may_not_read_the_job_learns_which_right_is_missing(
    plane: ControlPlane, access: Access
) -> None:
    namespace = things.fresh_namespace(access)
    things.make_job(access, namespace)
    theirs = things.client(plane, impersonate="nobody")
    with pytest.raises(NoPermission, match=r"nobody.*cannot get.*ask for that right"):
        diagnose_with(theirs, JobRequest("train", namespace), time.time())
    theirs.close()


def test_the_role_for_people_is_enough_for_everything(plane: ControlPlane, access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace, pods=1)
    run_pods(access, job, 1, ready_node(access, "well-three"))
    role, of_cluster = things.manifests("people.yaml", namespace)
    let(access, namespace, "eve", role["rules"])
    of_cluster["metadata"]["name"] = "eve"
    access.call("POST", CLUSTER_ROLES.path(None), body=of_cluster)
    bind(access, None, "eve")
    in_force(access, "", "eve", of_cluster["rules"])
    theirs = things.client(plane, impersonate="eve")
    told = diagnose_with(theirs, JobRequest("train", namespace), time.time())
    assert not [each for each in told.facts.unavailable.values() if "forbidden" in each]
    assert "forbidden" not in told.pods[0].problem
    assert look(theirs, namespace, time.time()).lines[0].name == "train"
    with pytest.raises(NoPermission):
        theirs.get(SECRETS, namespace, "any")
    theirs.close()
