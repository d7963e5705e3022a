# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch doctor`: its lines for a job, for monitoring, and on a machine without a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kube.fake_api import Reply, fake_api
from mwatch.diagnose.doctor import job as checks
from mwatch.diagnose.doctor.cluster import check_network, check_scrapes
from mwatch.diagnose.doctor.job import JobPods, check_job
from mwatch.diagnose.doctor.lines import DoctorLine, LineState
from mwatch.diagnose.doctor.machine import check_machine
from mwatch.diagnose.doctor.rights import rights_of
from mwatch.diagnose.pod_reports import PodReport
from mwatch.model.kube.job import KubeJob, job_of
from mwatch.model.observation import Beat
from mwatch.model.snapshot.snapshot import Storage
from support.builders import kube
from support.builders.diagnose import BEGAN, answering, words
from support.fakes.job_api import CONTROLLER, access_to, job_api, kubeconfig_of
from support.repository.json_schema import read_json
from support.runs.commands import mwatch

OK, PROBLEM, SKIPPED = LineState.OK, LineState.PROBLEM, LineState.SKIPPED
REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
BODY: dict[str, Any] = {
    "spec": {
        "containers": [{"name": "pytorch", "env": []}],
        "volumes": [{"name": "mwatch", "emptyDir": {"sizeLimit": "2Gi"}}],
    }
}


def a_job() -> KubeJob:
    groups = {"Worker": {"replicas": 1, "template": kube.template()}}
    found = job_of(kube.body("PyTorchJob", {"pytorchReplicaSpecs": groups, "runPolicy": {}}))
    assert found is not None
    return found


def report(**more: Any) -> PodReport:
    """Of ranks 0 and 1, alive a second ago."""
    beats = [(Beat(rank, 2, 7, "training", "s", 1, 1), 9.0, 9.0) for rank in (0, 1)]
    found = answering("train-0", beats=beats, at=10.0)
    assert found.snapshot is not None
    view = replace_view(found, world_size=2)
    return found._replace(snapshot=replace(found.snapshot, **{"view": view, **more}))


def replace_view(found: PodReport, **more: Any) -> Any:
    from msgspec.structs import replace as changed

    assert found.snapshot is not None
    return changed(found.snapshot.view, **more)


def pods(found: PodReport, body: dict[str, Any] | None = None) -> JobPods:
    return JobPods(a_job(), ((body or BODY, found.pod),), (found,))


def with_env(name: str, value: str) -> dict[str, Any]:
    container = {"name": "pytorch", "env": [{"name": name, "value": value}]}
    return {"spec": {**BODY["spec"], "containers": [container]}}


def test_the_probe_must_be_alive_in_every_rank() -> None:
    assert checks._probe(pods(report())).text == "alive in all 2 ranks"
    silent = checks._probe(pods(report(view=replace_view(report(), world_size=4))))
    assert silent.state is PROBLEM and "2 of 4 ranks: 2, 3" in silent.text
    assert "mwatch diagnose train -n ns" in silent.fix
    late = report(at=BEGAN + 100.0)
    assert checks._probe(pods(late)).state is PROBLEM
    none = report(view=replace_view(report(), world_size=None), ranks=())
    assert checks._probe(pods(none)).state is SKIPPED


def test_clocks_of_pods_are_compared_with_this_one() -> None:
    now = report()
    assert checks._clocks(pods(now)).state is OK
    early = checks._clocks(pods(now._replace(received_at=now.received_at + 60)))
    assert early.state is PROBLEM and "60 s behind this machine" in early.text


@pytest.mark.parametrize(
    ("name", "value", "check"),
    [
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "0", checks._recorder),
        ("NCCL_RAS_ENABLE", "0", checks._ras),
    ],
)
def test_what_a_manifest_turns_off_is_a_problem(name: str, value: str, check: checks.Check) -> None:
    line = check(pods(report(), with_env(name, value)))
    assert line.state is PROBLEM and line.fix.startswith("remove ")


def test_recorder_and_ras_by_what_the_pods_report() -> None:
    assert "2000" in checks._recorder(pods(report(), with_env("TORCH_FR_BUFFER_SIZE", "2000"))).text
    assert checks._recorder(pods(report(wrapper=None))).state is PROBLEM
    assert checks._ras(pods(report(nccl=None))).state is SKIPPED
    assert checks._ras(pods(report())).state is OK


def test_volumes_must_have_room() -> None:
    assert checks._volume(pods(report())).state is OK
    small = {"spec": {"volumes": [{"name": "mwatch", "emptyDir": {"sizeLimit": "100Mi"}}]}}
    assert checks._volume(pods(report(), small)).fix == "give it 1Gi or more"
    assert checks._storage(pods(report(storage=Storage(free_bytes=1 << 40)))).state is OK
    assert checks._storage(pods(report(storage=None))).state is SKIPPED


def test_a_pod_without_a_sidecar_and_a_job_without_pods() -> None:
    bare = JobPods(a_job(), ((BODY, words("train-0").pod),), ())
    with job_api([]) as api, access_to(api) as access:
        first, volume = check_job(access, bare)
        (none,) = check_job(access, JobPods(a_job(), (), ()))
        unreached = [{"pods": {"running": 2, "answering": 1,
                               "silent": [{"pod": "b", "problem": "no answer"}]}}]  # fmt: skip
        network = check_network(access, "ns", unreached)
    assert first.state is PROBLEM and "mwatch inject" in first.fix and volume.state is OK
    assert none.state is SKIPPED
    assert network.state is PROBLEM and "1 of 2 pods on port 9401 (b: no answer)" in network.text


def scrapes(body: Any, pods: int | None, status: int = 200) -> DoctorLine:
    with (
        fake_api(Reply(status, body)) as prometheus,
        job_api([]) as api,
        access_to(api) as access,
    ):
        return check_scrapes(access, "ns", prometheus.address, pods)


def test_prometheus_is_asked_whether_it_really_scrapes() -> None:
    two = {"status": "success", "data": {"result": [{"metric": {}, "value": [1.0, "2"]}]}}
    assert scrapes(two, 2).state is OK and scrapes(two, None).state is OK
    assert "scrapes 2 of 3 sidecars" in scrapes(two, 3).text
    none = {"status": "success", "data": {"result": []}}
    assert scrapes(none, 1).state is PROBLEM and scrapes(none, 0).state is SKIPPED
    assert scrapes({"status": "error", "error": "bad"}, 1).state is PROBLEM
    assert scrapes(b"<html>", 1).state is PROBLEM and scrapes({}, 1, 500).state is PROBLEM


def test_roles_are_read_from_the_shipped_files() -> None:
    assert len(rights_of("people.yaml", ["", "batch"])) > 8
    assert {each.group for each in rights_of("operate.yaml", ["batch"])} == {"batch"}


def test_the_command_prints_a_line_each_and_the_role_that_is_missing(tmp_path: Path) -> None:
    pages = {
        REVIEW: Reply(200, {"status": {"allowed": False}}),
        f"{CONTROLLER}/v1/jobs": Reply(200, {"jobs": []}),
    }
    with job_api([words("train-0")], pages=pages) as api:
        known = str(kubeconfig_of(api, tmp_path / "config"))
        done = mwatch("doctor", "train", "-n", "ns", "--kubeconfig", known)
        dead = mwatch("doctor", "nothing", "-n", "ns", "--kubeconfig", known)
    assert done.returncode == 1, done.stderr
    lines = {line[8:].split("  ")[0]: line for line in done.stdout.splitlines()}
    assert lines["controller"].startswith("ok ") and "watches 0 jobs" in lines["controller"]
    assert lines["sidecars"].startswith("problem ") and "fix: mwatch inject" in lines["sidecars"]
    assert "kubectl apply -f - <<'END'" in done.stdout and "kind: RoleBinding" in done.stdout
    assert dead.returncode == 2 and "no job is called nothing" in dead.stderr


def test_without_a_cluster_this_machine_is_checked(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = mwatch("doctor", "--json", cwd=tmp_path, environment=environment)
    body = read_json(done.stdout, "doctor")
    states = {each["name"]: each["state"] for each in body["checks"]}
    assert list(states) == [
        "machine",
        "GPUs",
        "/proc",
        "py-spy",
        "run folder",
        "page port",
        "cluster",
    ]
    assert states["cluster"] == "skipped" and "KUBECONFIG" in body["checks"][-1]["fix"]
    assert done.returncode == int("problem" in states.values())
    asked = mwatch("doctor", "-n", "x", cwd=tmp_path, environment=environment)
    assert asked.returncode == 3 and asked.stdout.startswith("problem cluster  not reachable")


def test_a_folder_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    lines = {each.name: each for each in check_machine(tmp_path / "a" / "runs", 0)}
    assert lines["run folder"].state is OK and str(tmp_path) in lines["run folder"].text
    gone = {each.name: each for each in check_machine(Path("/proc/runs"), 0)}
    assert gone["run folder"].state is PROBLEM and "--runs DIR" in gone["run folder"].fix
