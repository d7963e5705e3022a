# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Storage, dataset, LLM-Foundry and mwatch's own chart, before a real API server.

It takes every object and keeps every field. AKS's own group of monitors is made here out of the
Prometheus operator's: the specification is the same, the group is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.binaries import OPERATOR, module_folder
from cluster.control_plane import ControlPlane
from cluster.dry_run import stored
from cluster.helm import Helm
from cluster.test_inject_dry_run import KEEPS_NATIVE, VERSIONS, apply, install_operator, lost
from support.repository.chart_renders import CHARTS, rendered, sets, values_file

pytestmark = pytest.mark.timeout(900)
STORAGE, DATASET = CHARTS / "shared-storage", CHARTS / "dataset"
FOUNDRY, MWATCH = CHARTS / "llm-foundry-training", CHARTS / "mwatch"
NAMESPACE = "training"
_PROMETHEUS = "github.com/prometheus-operator/prometheus-operator"
_CRDS = "example/prometheus-operator-crd"
_FSX = sets("fsxLustre.subnetId=subnet-1", 'fsxLustre.securityGroupIds=["sg-1"]')
_THERE = sets("fsxLustre.existing.fileSystemId=fs-1", "fsxLustre.existing.dnsName=fs-1.example")
_THERE += sets("fsxLustre.existing.mountName=abc")
_SLIM = sets("source=slimpajama", "hub.tokenSecret.name=hf")
_FILES = sets('files=[{"path": "/data/own/*.jsonl"}, {"url": "https://example.org/a.jsonl.gz"}]')
_KNOWN = ["--api-versions", "monitoring.coreos.com/v1/PodMonitor"]
_KNOWN += ["--api-versions", "monitoring.coreos.com/v1/PrometheusRule"]
_ALL = sets("rbac.nodesRead=true", "rbac.nodesCordon=true", "rbac.people=true")
_ALL += sets("networkPolicy.enabled=true")
_ALL += sets("controller.evidence.claim=evidence", "controller.replicas=2")

RENDERS: dict[str, tuple[Path, list[str]]] = {
    "storage, AKS": (STORAGE, []),
    "storage, blob": (STORAGE, sets("storage.checkpoints.kind=azure-blob")),
    "storage, a Lustre that is there": (STORAGE, sets("azureLustre.existing.mgsAddress=10.0.0.4")),
    "storage, a container that is there": (
        STORAGE,
        sets("azureBlob.existing.storageAccount=acc", "azureBlob.existing.container=box"),
    ),
    "storage, EKS": (STORAGE, [*values_file("eks", STORAGE), *_FSX]),
    "storage, HyperPod": (STORAGE, [*values_file("hyperpod", STORAGE), *_THERE]),
    "dataset": (DATASET, []),
    "dataset, slimpajama": (DATASET, _SLIM),
    "dataset, all of slimpajama": (DATASET, [*_SLIM, *sets("amount=full", "parallelism=8")]),
    "dataset, oscar": (DATASET, sets("source=oscar", "preprocess.engine=megatron")),
    "dataset, c4": (DATASET, sets("source=c4-mds")),
    "dataset, jsonl": (DATASET, [*sets("source=jsonl"), *_FILES]),
    "dataset, one of two": (
        DATASET,
        [*sets("source=jsonl", "name=wiki", "job.ttlSecondsAfterFinished=0"), *_FILES],
    ),
    "mwatch": (MWATCH, []),
    "mwatch, operator": (MWATCH, _KNOWN),
    "mwatch, AKS managed": (MWATCH, sets("monitoring.kind=azure")),
    "mwatch, everything": (
        MWATCH,
        [*_KNOWN, *_ALL, *sets("monitoring.rules.form=configmap", "controller.fleet=workers = 2")],
    ),
}
CONFIGS = {
    "mpt-125m": 2, "mpt-350m": 2, "mpt-760m": 2, "mpt-1b": 2, "mpt-3b": 2, "mpt-7b": 2,
    "mpt-13b": 2, "mpt-30b": 16, "mpt-70b": 32,
}  # fmt: skip


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Iterator[ControlPlane]:
    folder = module_folder(_PROMETHEUS, "0.85.0") / _CRDS
    for name in ("podmonitors", "prometheusrules"):
        apply(plane, folder / f"monitoring.coreos.com_{name}.yaml")
    azure = plane.folder / "azmonitoring.coreos.com_podmonitors.yaml"
    text = (folder / "monitoring.coreos.com_podmonitors.yaml").read_text()
    azure.write_text(text.replace("monitoring.coreos.com", "azmonitoring.coreos.com"))
    apply(plane, azure)
    for name in (NAMESPACE, "team-a", "team-b"):
        if plane.kubectl.answer("get", "namespace", name) is None:
            plane.kubectl("create", "namespace", name)
    install_operator(plane, OPERATOR)
    yield plane
    install_operator(plane, OPERATOR)


def taken(plane: ControlPlane, objects: list[dict[str, Any]]) -> None:
    """Strict, so that an unknown field is refused; and nothing sent is lost."""
    assert objects
    kept = stored(plane.kubectl, objects, NAMESPACE)
    for sent, back in zip(objects, kept, strict=True):
        assert (sent["kind"], sent["metadata"]["name"]) == (back["kind"], back["metadata"]["name"])
        for part in ("spec", "data", "rules", "parameters", "subjects"):
            if part in sent:
                assert lost(sent[part], back[part]) == []


@pytest.mark.parametrize("name", RENDERS)
def test_every_variant_is_accepted_and_kept(api: ControlPlane, name: str) -> None:
    chart, words = RENDERS[name]
    taken(api, rendered(chart, *words, name="r"))


@pytest.mark.parametrize("version", VERSIONS)
def test_llm_foundry_is_accepted_by_every_operator(api: ControlPlane, version: str) -> None:
    install_operator(api, version)
    for sidecar in ("native", "container") if KEEPS_NATIVE[version] else ("container",):
        words = sets(f"mwatch.sidecar={sidecar}", "mwatch.mode=act", "job.backoffLimit=20")
        words += sets("job.restartPolicy=ExitCode", "scheduling.kueueQueue=q", "mwatch.policy=p")
        taken(api, rendered(FOUNDRY, *words, name="mpt"))


def test_llm_foundry_is_accepted_in_every_size(api: ControlPlane) -> None:
    install_operator(api, OPERATOR)
    for config, nodes in CONFIGS.items():
        words = sets(f"model.config={config}", f"training.nodes={nodes}")
        taken(api, rendered(FOUNDRY, *words, name="mpt"))


def test_two_namespaces_have_a_controller_each(api: ControlPlane) -> None:
    run = Helm(api.kubeconfig("admin"))
    for number, namespace in enumerate(("team-a", "team-b")):
        more = [] if number == 0 else sets("monitoring.rules.form=none")
        said = run("install", "mwatch", str(MWATCH), *_ALL, *more, namespace=namespace)
        assert "Scraped by: operator" in said
    policies = api.kubectl.get("validatingadmissionpolicies")["items"]
    names = {each["metadata"]["name"] for each in policies}
    assert {"mwatch-controller-jobs-team-a", "mwatch-controller-jobs-team-b"} <= names
    assert api.kubectl.get("prometheusrule", "mwatch", "-n", "team-a")["spec"]["groups"]
    for namespace in ("team-a", "team-b"):
        run("upgrade", "mwatch", str(MWATCH), namespace=namespace)
        run("uninstall", "mwatch", namespace=namespace)
    left = api.kubectl.get("clusterroles,validatingadmissionpolicies")["items"]
    assert not any("team-" in each["metadata"]["name"] for each in left)


def test_checkpoints_outlive_their_release_and_are_taken_up_again(api: ControlPlane) -> None:
    run = Helm(api.kubeconfig("admin"))
    run("install", "storage", str(STORAGE), namespace="team-a")
    before = api.kubectl.get("pvc", "checkpoints", "-n", "team-a")["metadata"]["uid"]
    run("uninstall", "storage", namespace="team-a")
    kept = api.kubectl.get("pvc", "checkpoints", "-n", "team-a")["metadata"]
    assert kept["uid"] == before and "deletionTimestamp" not in kept
    run("install", "storage", str(STORAGE), namespace="team-a")
    assert api.kubectl.get("pvc", "checkpoints", "-n", "team-a")["metadata"]["uid"] == before


def test_the_release_of_mwatch_fits_the_secret_that_helm_keeps_it_in(api: ControlPlane) -> None:
    run = Helm(api.kubeconfig("admin"))
    run("install", "size", str(MWATCH), *_ALL, namespace="team-b")
    (secret,) = api.kubectl.get("secrets", "-n", "team-b", "-l", "name=size")["items"]
    assert len(secret["data"]["release"]) < 600_000
    run("uninstall", "size", namespace="team-b")


def test_notes_say_how_to_go_on(api: ControlPlane) -> None:
    run = Helm(api.kubeconfig("admin"))
    said = run("install", "d", str(DATASET), "--dry-run=server", namespace=NAMESPACE)
    assert "logs -f job/d --all-containers" in said
    said = run("install", "mpt", str(FOUNDRY), "--dry-run=server", namespace=NAMESPACE)
    assert "training.kubeflow.org/job-name=mpt" in said and "mwatch diagnose mpt" in said


def test_a_claim_name_of_each_chart_is_the_same(api: ControlPlane) -> None:
    """What storage makes is what the others look for, without a value being given."""
    made = {
        each["metadata"]["name"]
        for each in rendered(STORAGE)
        if each["kind"] == "PersistentVolumeClaim"
    }
    for chart, name in ((DATASET, "d"), (FOUNDRY, "mpt")):
        text = yaml.safe_dump_all(rendered(chart, name=name))
        wanted = {line.split(":")[1].strip() for line in text.splitlines() if "claimName:" in line}
        assert wanted and wanted <= made
