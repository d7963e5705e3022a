# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the controller serves: its jobs, its metrics, and the answer to a wrapper's question."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from mwatch.controller.server import ControllerPages, ControllerStats, FleetMetrics, job_json
from mwatch.export.http.server import Server
from mwatch.export.metrics import catalog
from mwatch.kube.mirror import MirrorStatus
from mwatch.model.kube.restart_state import RestartState
from mwatch.remediate.manager import Remediation
from mwatch.remediate.status import RemediationStatus
from support.runs.job_monitor_runs import Fleet

HELD = RemediationStatus(RestartState.HELD, held_by="quota")
TOLD = ControllerStats(
    True, 10, {"late": 2}, 33, {"pods": MirrorStatus(1.5, "", True)}, 4, 0, 0.01,
    remediation=(
        HELD, HELD, RemediationStatus(RestartState.PLANNED),
        RemediationStatus(RestartState.HELD, held_by="what a word"),
    ),
    ledger_errors=5,
    notified={"sent": 3, "failed": 1},
)  # fmt: skip
SECRET = "hf_" + "abcdEFGH1234" * 3


class RecordingRemediation(Remediation):
    """Answers one job's wrappers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, str, int, str]] = []

    def answer(
        self, namespace: str, job: str, token: str, pod: str = "", after: int = 0, word: str = ""
    ) -> Mapping[str, Any] | None:
        self.asked.append((namespace, job, token, pod, after, word))
        return {"attempt": 2, "resume_from": 40} if job == "train" else None


@contextmanager
def served(fleet: Fleet) -> Iterator[tuple[int, RecordingRemediation]]:
    remediation, metrics = RecordingRemediation(), FleetMetrics(fleet.now)
    pages = ControllerPages("ns", metrics, remediation, lambda: True)
    metrics.update([fleet.watch], TOLD, fleet.now)
    pages.update([job_json(fleet.watch, RemediationStatus(), fleet.now)])
    server = Server(pages.pages(), port=0)
    try:
        yield server.port, remediation
    finally:
        server.close()


def get(port: int, path: str, **headers: str) -> bytes:
    request = Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urlopen(request, timeout=60) as answer:
        body: bytes = answer.read()
        return body


def test_the_jobs_are_reported_with_verdict_decision_and_pods() -> None:
    with served(Fleet(2).run(30)) as (port, _):
        document = json.loads(get(port, "/v1/jobs"))
        assert json.loads(get(port, "/v1/jobs/ns/train"))["name"] == "train"
        assert json.loads(get(port, "/v1/jobs/ns/train?kind=PyTorchJob"))["name"] == "train"
        for path in ("/v1/jobs/ns/other", "/v1/jobs/other/train", "/v1/jobs/ns/train?kind=Job"):
            with pytest.raises(HTTPError, match="404"):
                get(port, path)
    assert {key: document[key] for key in ("version", "namespace", "leader")} == {
        "version": 1, "namespace": "ns", "leader": True,
    }  # fmt: skip
    (job,) = document["jobs"]
    assert job["verdict"] == {
        "cause": "healthy", "summary": job["verdict"]["summary"], "culprit": None,
        "since": {"iteration": None, "time": None}, "confidence": 1.0,
    }  # fmt: skip
    assert job["decision"]["action"] == "none"
    assert job["pods"] == {"wanted": 2, "running": 2, "answering": 2, "silent": []}
    assert job["remediation"]["doing"] == "nothing"
    assert job["hands"] == job["remediation"], "the old key stays for one release"
    assert job["sight_age_seconds"] == job["view_age_seconds"], "the old key stays for one release"
    assert (job["phase"], job["attempt"], job["mode"]) == ("training", 1, "act")


def test_secrets_do_not_leave() -> None:
    fleet = Fleet(2)
    fleet.pods[1].answers = False
    fleet.watch.policy_problem = f"ConfigMap mine: token = {SECRET}"
    fleet.run(30)
    with served(fleet) as (port, _):
        for path in ("/v1/jobs", "/v1/jobs/ns/train", "/metrics"):
            assert SECRET.encode() not in get(port, path)
        assert json.loads(get(port, "/v1/jobs"))["jobs"]


def test_a_wrapper_is_answered_by_the_remediation() -> None:
    with served(Fleet(2).run(5)) as (port, remediation):
        path = "/v1/jobs/ns/train/attempt"
        asked = {"Authorization": "Bearer secret", "Mwatch-Pod": "train-1", "Mwatch-After": "1",
                 "Mwatch-Word": "1 " + "f" * 32}  # fmt: skip
        assert json.loads(get(port, path, **asked)) == {"attempt": 2, "resume_from": 40}
        assert json.loads(get(port, path))["attempt"] == 2
        with pytest.raises(HTTPError, match="404"):
            get(port, "/v1/jobs/ns/other/attempt")
    assert remediation.asked[0] == ("ns", "train", "secret", "train-1", 1, "1 " + "f" * 32)
    assert remediation.asked[1] == ("ns", "train", "", "", 0, "")


def test_metrics_are_of_the_job_as_a_whole_and_of_the_controller() -> None:
    with served(Fleet(2).run(30)) as (port, _):
        lines = get(port, "/metrics").decode().splitlines()
    values = dict(line.rpartition(" ")[::2] for line in lines if not line.startswith("#"))
    run = 'run="train",run_namespace="ns"'
    assert float(values[f"mwatch_iteration{{{run}}}"]) > 20
    assert values[f'mwatch_phase{{phase="training",{run}}}'] == "1.0"
    assert values[f"mwatch_acting{{{run}}}"] == "1.0"
    assert not any("rank=" in name for name in values)
    assert values["mwatch_controller_leader"] == "1.0"
    assert values['mwatch_controller_pods{state="answering"}'] == "2.0"
    assert values['mwatch_controller_poll_failures_total{reason="late"}'] == "2.0"
    assert values['mwatch_controller_view_age_seconds{resource="pods"}'] == "1.5"
    assert values['mwatch_controller_sight_age_seconds{resource="pods"}'] == "1.5"
    actions = {name: value for name, value in values.items() if "controller_actions" in name}
    assert actions == {
        f'mwatch_controller_actions{{reason="{reason}",state="{state}"}}': value
        for state, reason, value in (
            ("held", "quota", "2.0"), ("held", "other", "1.0"), ("restarting", "none", "1.0"),
            ("nothing", "none", "0.0"), ("evidence", "none", "0.0"), ("stopping", "none", "0.0"),
            ("recovering", "none", "0.0"),
        )
    }  # fmt: skip
    assert values["mwatch_controller_ledger_errors_total"] == "5.0"
    assert values['mwatch_controller_notifications_total{result="failed"}'] == "1.0"
    told = {name.partition("{")[0] for name in values}
    assert {each.name for each in catalog.CONTROLLER} <= told


def test_an_incident_that_is_over_counts_once() -> None:
    fleet = Fleet(2).run(60)
    for pod in fleet.pods:
        pod.stalls_at = fleet.now
    fleet.run(30)
    assert fleet.cause == "hang"
    for pod in fleet.pods:
        pod.started_at += fleet.now - (pod.stalls_at or 0)
        pod.stalls_at = None
    fleet.run(90)
    metrics = FleetMetrics(fleet.now)
    for _ in range(3):
        metrics.update([fleet.watch], TOLD, fleet.now)
    (snapshot,) = metrics.snapshots()
    assert sum(count for (cause, _), count in snapshot.incidents.items() if cause == "hang") == 1
