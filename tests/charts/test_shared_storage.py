# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The storage chart: what it makes on each cloud, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from support.repository.chart_renders import (
    CHARTS,
    NO_HELM,
    Refused,
    helm,
    only,
    rendered,
    sets,
    values_file,
)

pytestmark = pytest.mark.skipif(helm() is None, reason=NO_HELM)
CHART = CHARTS / "shared-storage"
EKS = [*values_file("eks", CHART), *sets("fsxLustre.subnetId=subnet-1")]
EKS += sets('fsxLustre.securityGroupIds=["sg-1"]')
EXISTING = sets("fsxLustre.existing.fileSystemId=fs-1", "fsxLustre.existing.dnsName=fs-1.example")
EXISTING += sets("fsxLustre.existing.mountName=abc")
HYPERPOD = [*values_file("hyperpod", CHART), *EXISTING]


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def test_checkpoints_are_retained_and_their_claim_outlives_the_release() -> None:
    objects = rendered(CHART, name="s")
    classes, claims = of_kind(objects, "StorageClass"), of_kind(objects, "PersistentVolumeClaim")
    assert set(claims) == {"checkpoints", "data"}
    assert classes["training-s-checkpoints"]["reclaimPolicy"] == "Retain"
    assert claims["checkpoints"]["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert claims["checkpoints"]["spec"]["storageClassName"] == "training-s-checkpoints"
    assert claims["checkpoints"]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_data_may_be_deleted_with_its_claim() -> None:
    objects = rendered(CHART, *sets("storage.data.reclaimPolicy=Delete"), name="s")
    assert of_kind(objects, "StorageClass")["training-s-data"]["reclaimPolicy"] == "Delete"
    assert "annotations" not in of_kind(objects, "PersistentVolumeClaim")["data"]["metadata"]


def test_azure_lustre_has_the_parameters_of_its_driver() -> None:
    made = of_kind(rendered(CHART, name="s"), "StorageClass")["training-s-checkpoints"]
    assert made["provisioner"] == "azurelustre.csi.azure.com"
    assert made["parameters"] == {
        "sku-name": "AMLFS-Durable-Premium-125",
        "zone": "1",
        "maintenance-day-of-week": "Sunday",
        "maintenance-time-of-day-utc": "02:00",
    }
    assert made["mountOptions"] == ["noatime", "flock"]


def test_a_lustre_that_is_there_is_used_by_its_address() -> None:
    objects = rendered(CHART, *sets("azureLustre.existing.mgsAddress=10.0.0.4"), name="s")
    made = of_kind(objects, "StorageClass")["training-s-checkpoints"]
    assert made["parameters"] == {"mgs-ip-address": "10.0.0.4"}


def test_blob_caches_data_and_shows_checkpoints_at_once() -> None:
    words = sets("storage.checkpoints.kind=azure-blob")
    classes = of_kind(rendered(CHART, *words, name="s"), "StorageClass")
    data = classes["training-s-data"]["mountOptions"]
    checkpoints = classes["training-s-checkpoints"]["mountOptions"]
    assert "-o attr_timeout=120" in data and "--use-attr-cache=true" in data
    for each in ("attr", "entry", "negative"):
        assert f"-o {each}_timeout=0" in checkpoints
    assert "--use-attr-cache=false" in checkpoints
    assert (
        "--block-cache" in data and classes["training-s-data"]["parameters"]["protocol"] == "fuse2"
    )
    plain = rendered(CHART, *words, *sets("azureBlob.blockCache.enabled=false"), name="s")
    options = of_kind(plain, "StorageClass")["training-s-checkpoints"]["mountOptions"]
    assert "--file-cache-timeout-in-seconds=0" in options and "--block-cache" not in options


def test_a_container_that_is_there_becomes_a_volume_of_that_claim_alone() -> None:
    words = sets("azureBlob.existing.storageAccount=acc", "azureBlob.existing.container=box")
    volume = only(rendered(CHART, *words, name="s"), "PersistentVolume")
    assert volume["spec"]["csi"]["volumeHandle"] == "acc_box"
    assert volume["spec"]["claimRef"] == {"namespace": "training", "name": "data"}
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


def test_fsx_is_made_with_the_subnet_and_the_speed_that_were_named() -> None:
    made = of_kind(rendered(CHART, *EKS, name="s"), "StorageClass")["training-s-checkpoints"]
    assert made["provisioner"] == "fsx.csi.aws.com"
    assert made["parameters"] == {
        "subnetId": "subnet-1",
        "securityGroupIds": "sg-1",
        "deploymentType": "PERSISTENT_2",
        "perUnitStorageThroughput": "250",
    }


def test_hyperpod_uses_the_one_that_is_there_for_both() -> None:
    objects = rendered(CHART, *HYPERPOD, name="s")
    claim = only(objects, "PersistentVolumeClaim")
    volume = only(objects, "PersistentVolume")
    assert claim["metadata"]["name"] == "fsx-claim"
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert volume["spec"]["csi"]["volumeAttributes"] == {
        "dnsname": "fs-1.example",
        "mountname": "abc",
    }
    assert not of_kind(objects, "StorageClass")


def test_one_name_for_both_is_one_claim() -> None:
    words = sets("storage.data.claim=checkpoints", "storage.data.kind=azure-lustre")
    assert len(of_kind(rendered(CHART, *words), "PersistentVolumeClaim")) == 1


def test_data_may_be_somebody_elses() -> None:
    objects = rendered(CHART, *sets("storage.data.create=false"))
    assert set(of_kind(objects, "PersistentVolumeClaim")) == {"checkpoints"}


REFUSALS = [
    (sets("storage.checkpoints.size=17Ti"), "steps of 16 TiB; give 32Ti"),
    (sets("storage.checkpoints.size=500Gi"), "give 16Ti"),
    (
        sets("azureLustre.sku=AMLFS-Durable-Premium-40", "storage.checkpoints.size=16Ti"),
        "steps of 48 TiB; give 48Ti",
    ),
    (sets("storage.checkpoints.reclaimPolicy=Delete"), "'reclaimPolicy' not allowed"),
    (sets("storage.checkpoints.kind=nfs"), "must be one of 'azure-lustre'"),
    (sets("storage.checkpoints.claim=Big_Claim"), "does not match pattern"),
    (sets("azureLustre.maintenance.timeUtc=2am"), "does not match pattern"),
    (sets("azureBlob.cacheSeconds.checkpoints=120"), "maximum"),
    (sets("azureBlob.existing.container=x"), "needs both storageAccount and container"),
    (sets("storage.data.claim=checkpoints"), "their kinds cannot differ"),
    (values_file("eks", CHART), "fsxLustre.subnetId is empty"),
    (
        [*values_file("eks", CHART), *sets("fsxLustre.subnetId=subnet-1")],
        "securityGroupIds is empty",
    ),
    ([*EKS, *sets("fsxLustre.deploymentType=SCRATCH_2")], "no replication"),
    ([*EKS, *sets("fsxLustre.throughput=300")], "PERSISTENT_2 supports 125, 250, 500, 1000 MB/s"),
    ([*EKS, *sets("storage.checkpoints.size=3Ti")], "give 4800Gi"),
    ([*EKS, *sets("fsxLustre.existing.fileSystemId=fs-1")], "only fileSystemId is given"),
    ([*values_file("eks", CHART), *EXISTING], "serves only one claim"),
    (sets("storage.chekpoints.size=16Ti"), "'chekpoints' not allowed"),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSALS, ids=[each[1] for each in REFUSALS])
def test_what_cannot_work_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        rendered(CHART, *words)
    assert sentence in str(refused.value)
