# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the chart megatron-training and the HyperPod templates render, before a real API server.

Every object is taken, and every field of it is kept, with the CRDs of operator 1.7, 1.8 and 1.9.
The check is strict; what the server would store is compared with what was sent as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.binaries import OPERATOR
from cluster.control_plane import ControlPlane
from cluster.dry_run import Refused, stored
from cluster.test_inject_dry_run import VERSIONS, install_operator, lost
from support.repository.chart_renders import MEGATRON, only, rendered, sets
from support.repository.hyperpod_templates import TEMPLATES, filled
from support.runs.megatron_runs import LEAST_GPUS, NAMESPACES, OPTIONS, PLATFORMS, words_for

pytestmark = pytest.mark.timeout(600)
PLAIN = sets("mwatch.sidecar=container")


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Iterator[ControlPlane]:
    for name in ("kubeflow", "training"):
        if plane.kubectl.answer("get", "namespace", name) is None:
            plane.kubectl("create", "namespace", name)
    yield plane
    install_operator(plane, OPERATOR)


@pytest.fixture(scope="module", params=VERSIONS)
def version(api: ControlPlane, request: pytest.FixtureRequest) -> str:
    install_operator(api, request.param)
    return str(request.param)


def not_kept(plane: ControlPlane, objects: list[dict[str, Any]]) -> list[str]:
    """Fields that the server would drop. Refused where it takes one not, or knows a field not."""
    pairs = zip(objects, stored(plane.kubectl, objects), strict=True)
    return [one for sent, kept in pairs for one in lost(sent, kept)]


def sidecar_for(version: str) -> list[str]:
    return PLAIN if version.startswith("1.7") else []


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_size_is_taken_whole(api: ControlPlane, version: str, platform: str) -> None:
    objects = []
    for number, size in enumerate(LEAST_GPUS):
        words = [*words_for(platform, size), *sidecar_for(version)]
        objects += rendered(MEGATRON, *words, name=f"run{number}")
    assert not_kept(api, objects) == []


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_taken_whole(api: ControlPlane, version: str, option: str) -> None:
    words = [*OPTIONS[option], *sidecar_for(version)]
    objects = rendered(MEGATRON, *words, namespace=NAMESPACES.get(option, "training"))
    assert not_kept(api, objects) == []


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_templates_are_taken_whole(api: ControlPlane, version: str, template: str) -> None:
    assert not_kept(api, filled(template)) == []


def test_a_native_sidecar_is_not_for_hyperpods_operator(api: ControlPlane) -> None:
    """Why values-hyperpod.yaml has a plain one."""
    install_operator(api, "1.7.0")
    job = only(rendered(MEGATRON, *sets("mwatch.sidecar=native")), "PyTorchJob")
    with pytest.raises(Refused, match=r"unknown field.*restartPolicy"):
        not_kept(api, [job])
