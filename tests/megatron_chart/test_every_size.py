# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every size on every platform, and every option: it renders, and our own checks find nothing."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.checks.every import look
from mwatch.manifests.whole import workloads
from mwatch.model.checks import CheckLevel
from support.repository.chart_renders import (
    MEGATRON,
    objects_in,
    only,
    pods,
    rendered,
    rendered_text,
    trainer,
    values_file,
)
from support.runs.megatron_runs import LEAST_GPUS, NAMESPACES, OPTIONS, PLATFORMS, words_for

pytestmark = pytest.mark.timeout(180)
EFA = {"eks": 4, "hyperpod": 32}


def wrong_in(text: str) -> list[str]:
    """What `mwatch diagnose -f` would say of it."""
    found = [one for job in workloads(text, "chart") for one in look(job)]
    return [f"{one.check}: {one.what}" for one in found if one.level is not CheckLevel.INFO]


@pytest.mark.parametrize("size", LEAST_GPUS)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_size_renders_on_every_platform(platform: str, size: str) -> None:
    text = rendered_text(MEGATRON, *words_for(platform, size))
    assert wrong_in(text) == []
    job = only(objects_in(text), "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    nodes = sum(each["replicas"] for each in replicas.values())
    assert replicas["Master"]["replicas"] == 1
    assert nodes * 8 >= LEAST_GPUS[size]
    assert devices(platform, trainer(job)) == {}


def devices(platform: str, container: dict[str, Any]) -> dict[str, Any]:
    """What is asked for, and should not be; or the other way round."""
    wanted = {"nvidia.com/gpu": 8}
    wanted |= {"rdma/ib": 8} if platform == "aks" else {}
    wanted |= {"vpc.amazonaws.com/efa": EFA[platform]} if platform in EFA else {}
    asked = container["resources"]
    return {} if asked == {"requests": wanted, "limits": wanted} else dict(asked)


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_renders(option: str) -> None:
    namespace = NAMESPACES.get(option, "training")
    text = rendered_text(MEGATRON, *OPTIONS[option], namespace=namespace)
    assert wrong_in(text) == []


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_defaults_are_a_whole_run(platform: str) -> None:
    objects = rendered(MEGATRON, *values_file(platform))
    kinds = sorted(each["kind"] for each in objects)
    has_workers = "Worker" in only(objects, "PyTorchJob")["spec"]["pytorchReplicaSpecs"]
    services = ["Service"] * (1 + has_workers)  # of TensorBoard, and where the pods meet
    assert kinds == ["ConfigMap", "Deployment", "PyTorchJob", *services]
    assert all(each["metadata"]["namespace"] == "training" for each in objects)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_torchrun_meets_by_c10d_and_never_restarts_unnoticed(platform: str) -> None:
    job = only(rendered(MEGATRON, *values_file(platform)), "PyTorchJob")
    command = trainer(job)["command"]
    launcher = command[command.index("torchrun") :]
    pairs = dict(zip(launcher[1::2], launcher[2::2], strict=True))
    assert pairs["--rdzv-backend"] == "c10d"
    assert pairs["--max-restarts"] == "0"
    assert pairs["--rdzv-id"] == "gpt"  # not drawn anew at each render
    assert pairs["--rdzv-endpoint"] == "$(MASTER_ADDR):$(MASTER_PORT)"  # the operator's
    assert "elasticPolicy" not in job["spec"]


def test_two_renders_are_equal() -> None:
    words = words_for("aks", "13b")
    anew = rendered_text.__wrapped__  # without the cache
    assert anew(MEGATRON, *words) == anew(MEGATRON, *words)


def test_no_container_of_the_job_is_privileged_or_has_a_probe() -> None:
    job = only(rendered(MEGATRON, *words_for("aks", "13b")), "PyTorchJob")
    for pod in pods(job):
        for each in [*pod["spec"]["containers"], *pod["spec"]["initContainers"]]:
            assert each["securityContext"]["allowPrivilegeEscalation"] is False
            assert not {"readinessProbe", "livenessProbe", "startupProbe"} & set(each)
        assert "hostNetwork" not in pod["spec"]
