# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Who types what a page says, command after command, gets a job whose parts are all there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.binaries import OPERATOR
from cluster.control_plane import ControlPlane
from cluster.given import GivenPlane
from cluster.test_inject_dry_run import install_operator
from cluster.test_other_charts_dry_run import api  # noqa: F401  a fixture: CRDs of the monitors
from cluster.workload_pages import type_all

pytestmark = pytest.mark.timeout(900)
PAGES = {"aks-megatron": OPERATOR, "eks-megatron": OPERATOR, "hyperpod": "1.7.0"}
PAGES |= {"llm-foundry-aks": OPERATOR}
_KINDS = "pytorchjobs,jobs,deployments,pods,services,configmaps,pvc,secrets"


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest, api: ControlPlane) -> Iterator[str]:  # noqa: F811
    """Nothing of it is left for controllers that start later."""
    if isinstance(api, GivenPlane):
        pytest.skip("the pages ask for file systems and GPUs, which a real cluster would give")
    install_operator(api, PAGES[request.param])
    yield request.param
    namespace = f"hyperpod-{request.param}"
    api.kubectl("delete", _KINDS, "--all", "-n", namespace, "--wait=false")
    for kind in ("pv", "storageclass", "clusterrole", "clusterrolebinding"):
        for each in api.kubectl.get(kind)["items"]:
            release = each["metadata"].get("annotations", {})
            if release.get("meta.helm.sh/release-namespace") == namespace:
                api.kubectl("delete", kind, each["metadata"]["name"], "--wait=false")


def test_each_command_of_a_page_works(
    page: str,
    api: ControlPlane,  # noqa: F811
    tmp_path: Path,
) -> None:
    namespace = f"hyperpod-{page}"
    said = type_all(api, page, namespace, tmp_path)
    assert "looked at: docker build" in said
    there = {
        kind: {each["metadata"]["name"] for each in api.kubectl.get(kind, "-n", namespace)["items"]}
        for kind in ("pvc", "configmaps", "services")
    }
    jobs = api.kubectl.get("pytorchjobs", "-n", namespace)["items"]
    assert jobs
    for job in jobs:
        assert missing_parts(job, there) == []
    assert "mwatch-controller" in there["services"], "where the wrappers ask"


def missing_parts(job: dict[str, Any], there: dict[str, set[str]]) -> list[str]:
    found = []
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        for volume in replica["template"]["spec"]["volumes"]:
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            script = volume.get("configMap", {}).get("name")
            if claim and claim not in there["pvc"]:
                found.append(f"{job['metadata']['name']}: claim {claim}")
            if script and script not in there["configmaps"]:
                found.append(f"{job['metadata']['name']}: ConfigMap {script}")
    return found
