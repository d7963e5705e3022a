# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""An API server that knows one job of two pods, with what their logs, sidecars and controller say.

It is a real HTTP server; the real API server is asked in `tests/cluster`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import urllib3
import yaml

from kube.fake_api import FakeApi, Reply, fake_api
from mwatch.diagnose.pod_reports import PodReport
from mwatch.kube.access import Access, CallLimits
from mwatch.kube.connect import Connection
from support.builders import kube
from support.builders.diagnose import BEGAN, stamp

CORE = "/api/v1/namespaces/ns"
JOB = "/apis/kubeflow.org/v1/namespaces/ns/pytorchjobs"
CONTROLLER = f"{CORE}/services/mwatch-controller:9402/proxy"


def sidecar_of(pod: str) -> str:
    return f"{CORE}/pods/{pod}:9401/proxy"


def pod_body(report: PodReport) -> dict[str, Any]:
    """As the API server lists it, with a sidecar if it answers."""
    name = report.pod.name
    names = ["pytorch"] + ["mwatch"] * (report.snapshot is not None)
    about = {
        "name": name, "namespace": "ns", "uid": f"uid-{name}",
        "creationTimestamp": stamp(BEGAN)[:19] + "Z",
        "ownerReferences": [{"uid": "job-uid", "controller": True}],
    }  # fmt: skip
    states = [{"name": each, "restartCount": 0, "state": {"running": {}}} for each in names]
    return {
        "metadata": about,
        "spec": {"containers": [{"name": each} for each in names]},
        "status": {"phase": "Running", "containerStatuses": states},
    }


@contextmanager
def job_api(
    pods: Sequence[PodReport],
    logs: Mapping[str, bytes] | None = None,
    *,
    pages: Mapping[str, Reply] | None = None,
    behind: Mapping[str, int] | None = None,
) -> Iterator[FakeApi]:
    """`logs`: by pod; `pages`: more answers, by path; `behind`: real servers, by path."""
    groups = {"Worker": {"replicas": len(pods), "template": kube.template()}}
    job = kube.body("PyTorchJob", {"pytorchReplicaSpecs": groups, "runPolicy": {}})
    known = {
        f"{JOB}/train": Reply(200, job),
        JOB: Reply(200, {"items": [job]}),
        "/version": Reply(200, {"gitVersion": "v1.31.0"}),
        "/apis/batch/v1/namespaces/ns/jobs": Reply(200, {"items": []}),
        "/apis/apps/v1/namespaces/ns/statefulsets": Reply(200, {"items": []}),
        f"{CORE}/pods": Reply(200, {"items": [pod_body(each) for each in pods]}),
        **{f"{CORE}/pods/{name}/log": Reply(200, data) for name, data in (logs or {}).items()},
        **{f"{sidecar_of(each.pod.name)}/v1/snapshot": Reply(200, dict(each.raw))
           for each in pods if each.snapshot is not None},
        **(pages or {}),
    }  # fmt: skip
    absent = Reply(404, {"kind": "Status", "message": "not found"})
    with fake_api(absent, by_path=known, behind=behind) as api:
        yield api


@contextmanager
def access_to(api: FakeApi) -> Iterator[Access]:
    pool = urllib3.PoolManager(maxsize=16)
    connection = Connection(api.address, pool, lambda: None, "ns")
    try:
        yield Access(connection, limits=CallLimits(call_seconds=5.0, tries=1))
    finally:
        pool.clear()


def kubeconfig_of(api: FakeApi | str, file: Path) -> Path:
    """`api`: the server, or its address."""
    address = api if isinstance(api, str) else api.address
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": {"server": address}}],
        "users": [{"name": "me", "user": {"token": "t"}}],
    }
    file.write_text(yaml.safe_dump(config))
    return file
