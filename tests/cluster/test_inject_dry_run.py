# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What `inject` writes, before a real API server: it takes every object, and keeps every field.

The check is strict, so a field that a CRD does not know fails it; what the server would keep is
compared with what was sent as well, for pruning says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.binaries import OPERATOR, OPERATOR_MODULE, module_folder
from cluster.control_plane import ControlPlane
from cluster.dry_run import Refused, stored
from cluster.kube_things import wait_for
from mwatch.kube.installed import Installed
from mwatch.manifests.parts import InjectRequest
from mwatch.manifests.whole import uninject_text
from mwatch.operate.inject import inject, installed
from support.repository.manifest_files import (
    FILES,
    FOLDER,
    NATIVE,
    PLAIN,
    injected,
    objects_in,
    text_of,
)

pytestmark = pytest.mark.timeout(600)
VERSIONS = ("1.7.0", OPERATOR, "1.9.2")
KEEPS_NATIVE = {"1.7.0": False, OPERATOR: True, "1.9.2": True}
_OPERATOR_CRD = "manifests/base/crds/kubeflow.org_pytorchjobs.yaml"
_JOBSET_CRD = "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"
_ESTABLISHED = 'jsonpath={.status.conditions[?(@.type=="Established")].status}'
_TRAINER = "github.com/kubeflow/trainer/v2"
OTHER_FILES = [name for name in FILES if name not in ("aks.yaml", "hyperpod.yaml")]


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Iterator[ControlPlane]:
    """With JobSet, trainer v2 and the namespaces of the files; the operator's CRD comes later."""
    apply(plane, module_folder("sigs.k8s.io/jobset", "0.10.1") / _JOBSET_CRD)
    for path in sorted((module_folder(_TRAINER, "2.1.0") / "manifests/base/crds").glob("t*.yaml")):
        apply(plane, path)
    for name in ("kubeflow", "team"):
        if plane.kubectl.answer("get", "namespace", name) is None:
            plane.kubectl("create", "namespace", name)
    yield plane
    install_operator(plane, OPERATOR)


def apply(plane: ControlPlane, path: Path) -> None:
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
    plane.wait_for(path.name, "get", "-f", str(path), "-o", _ESTABLISHED, says="True")


def install_operator(plane: ControlPlane, version: str) -> None:
    """Another version in the place of one takes the server a moment."""
    apply(plane, module_folder(OPERATOR_MODULE, version) / _OPERATOR_CRD)
    ask = asking(plane)
    wait_for(
        lambda: ask.keeps_native("PyTorchJob") is KEEPS_NATIVE[version], f"the CRD of {version}"
    )


def asking(plane: ControlPlane) -> Installed:
    found = installed(str(plane.kubeconfig("admin")), None, "default")
    assert found is not None
    return found


@pytest.fixture(params=VERSIONS)
def version(api: ControlPlane, request: pytest.FixtureRequest) -> str:
    install_operator(api, request.param)
    return str(request.param)


def accepted(plane: ControlPlane, text: str) -> list[Any]:
    """What the server would store. Refused where it takes one not, or knows a field not."""
    return stored(plane.kubectl, objects_in(text))


def lost(sent: Any, kept: Any, path: str = "") -> list[str]:
    """Paths that were sent and are not kept; the server may add its defaults."""
    if isinstance(sent, Mapping):
        gone = [f"{path}.{key}" for key in sent if key not in kept]
        inner = [
            lost(each, kept[key], f"{path}.{key}") for key, each in sent.items() if key in kept
        ]
        return gone + [one for each in inner for one in each]
    if isinstance(sent, list):
        if len(sent) != len(kept):
            return [path]
        pairs = enumerate(zip(sent, kept, strict=True))
        return [one for index, (a, b) in pairs for one in lost(a, b, f"{path}[{index}]")]
    return [] if str(sent) == str(kept) or _is_amount(path) else [path]


def _is_amount(path: str) -> bool:
    """`2048Mi` may come back as `2Gi`."""
    return ".resources." in path or path.endswith("sizeLimit")


@pytest.mark.parametrize("name", ["aks.yaml", "hyperpod.yaml"])
def test_a_native_sidecar_is_used_where_the_operators_crd_keeps_it(
    api: ControlPlane, version: str, name: str
) -> None:
    changed = inject(str(FOLDER / name), NATIVE, asking(api))
    has_native = KEEPS_NATIVE[version]
    assert (f'"sidecar":"{"native" if has_native else "container"}"') in changed.after
    assert any("drops native sidecars" in each for each in changed.result.notes) is not has_native
    for sent, kept in zip(objects_in(changed.after), accepted(api, changed.after), strict=True):
        assert lost(sent.get("spec", {}), kept.get("spec", {})) == []


@pytest.mark.parametrize("name", ["aks.yaml", "hyperpod.yaml"])
def test_a_native_sidecar_on_1_7_0_would_lose_its_restart_policy(
    api: ControlPlane, name: str
) -> None:
    install_operator(api, "1.7.0")
    text = injected(name, NATIVE).text
    with pytest.raises(Refused, match=r"unknown field.*restartPolicy"):
        accepted(api, text)


@pytest.mark.parametrize("name", OTHER_FILES)
@pytest.mark.parametrize(
    "wish", [NATIVE, PLAIN, NATIVE._replace(mode="act")], ids=["native", "container", "act"]
)
def test_the_other_kinds_pass_in_both_forms(
    api: ControlPlane, name: str, wish: InjectRequest
) -> None:
    text = injected(name, wish).text
    for sent, kept in zip(objects_in(text), accepted(api, text), strict=True):
        assert lost(sent["spec"], kept["spec"]) == []


@pytest.mark.parametrize("kind", ["JobSet", "TrainJob", "Job", "StatefulSet"])
def test_the_other_kinds_keep_a_native_sidecar(api: ControlPlane, kind: str) -> None:
    assert asking(api).keeps_native(kind) is True


def test_a_kind_that_the_cluster_does_not_have_is_unknown(api: ControlPlane) -> None:
    assert asking(api).keeps_native("Unknown") is None


def test_nothing_was_made_by_asking(api: ControlPlane) -> None:
    asking(api).keeps_native("Job")
    assert api.kubectl.get("jobs")["items"] == []


@pytest.mark.parametrize("name", FILES)
def test_the_files_themselves_pass_and_so_does_what_uninject_gives_back(
    api: ControlPlane, name: str
) -> None:
    install_operator(api, OPERATOR)
    back = uninject_text(injected(name).text, name).text
    assert back == text_of(name)
    accepted(api, back)
