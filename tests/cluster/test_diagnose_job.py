# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch diagnose JOB` against a real API server: what it says, how long it takes, what it lacks.

There is no node behind this API server: pods never run, and neither logs nor sidecars answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import pytest

from cluster import kube_things as things
from cluster.control_plane import ControlPlane
from cluster.people import environment, mwatch, ready_node, run_pods
from mwatch.kube.access import Access
from mwatch.kube.resources import PODS

pytestmark = pytest.mark.timeout(900)  # several Pythons that start
PODS_OF_A_LARGE_JOB = 64
SECONDS = 5.0
TRIES = 10


def on_processors(
    plane: ControlPlane, *words: str
) -> tuple[subprocess.CompletedProcess[str], float]:
    """And the seconds that processors worked for it, Python's own start among them: those are
    the same though others are busy here."""
    before = getrusage(RUSAGE_CHILDREN)
    done = mwatch(plane, *words)
    after = getrusage(RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_64_pods_are_reported_within_five_seconds(plane: ControlPlane, access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace, "large", pods=PODS_OF_A_LARGE_JOB)
    things.make_node(access, "large-node")
    run_pods(access, job, PODS_OF_A_LARGE_JOB, "large-node")

    for _ in range(TRIES):  # also the API server answers late while others are busy here
        done, worked = on_processors(plane, "diagnose", "large", "-n", namespace, "--json")
        told = json.loads(done.stdout)
        asked = told["took_seconds"]
        if worked + asked < SECONDS:
            break
    assert worked + asked < SECONDS, f"{worked:.1f} s of work, {asked} s from first to last answer"
    assert told["job"]["pods"]["running"] == PODS_OF_A_LARGE_JOB
    assert (told["verdict"]["cause"], done.returncode) == ("lost_pod", 1)
    assert told["verdict"]["culprit"]["node"] == "large-node"
    assert told["notes"][0].startswith("64 logs could not be read, such as large-0: ")
    assert {each["log"] for each in told["pods"]} != {None}


def test_pods_that_run_and_cannot_be_read_are_blindness(
    plane: ControlPlane, access: Access
) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace, pods=1)
    run_pods(access, job, 1, ready_node(access, "well"))
    done = mwatch(plane, "diagnose", "train", "-n", namespace)
    assert done.returncode == 3
    assert done.stdout.startswith("BLIND")
    assert "1 pods run, but neither sidecars nor logs can be read" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_job_that_waits_for_a_node_is_unschedulable_with_the_schedulers_words(
    plane: ControlPlane, access: Access
) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace, pods=1)
    things.make_pod(access, job, "train-0")
    waits = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    status = {"phase": "Pending", "conditions": [waits]}
    access.patch(PODS, namespace, "train-0", {"status": status}, part="status")
    done = mwatch(plane, "diagnose", "train", "-n", namespace)
    assert done.returncode == 1
    assert done.stdout.startswith("UNSCHEDULABLE")
    assert "Insufficient nvidia.com/gpu" in done.stdout
    assert f"kubectl describe pod -n {namespace} train-0" in done.stdout


def test_a_job_that_does_not_exist_is_one_line_with_near_names(
    plane: ControlPlane, access: Access
) -> None:
    namespace = things.fresh_namespace(access)
    things.make_job(access, namespace, "megatron-training")
    done = mwatch(plane, "diagnose", "megatron-trainig", "-n", namespace)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"mwatch: no job is called megatron-trainig in namespace {namespace}; "
        "did you mean megatron-training?\n"
    )
    nowhere = mwatch(plane, "checkpoints", "gpt", "-n", "no-such-namespace")
    assert nowhere.returncode == 2
    assert "the namespace has no jobs; give another with -n" in nowhere.stderr


def test_credentials_that_are_not_taken_and_a_server_that_is_gone_are_one_line(
    plane: ControlPlane, tmp_path: Path
) -> None:
    body = json.loads(plane.kubeconfig("admin").read_text())
    body["users"][0]["user"]["token"] = "expired"
    file = tmp_path / "config"
    file.write_text(json.dumps(body))
    done = mwatch(plane, "diagnose", "train", "--kubeconfig", str(file))
    assert (done.returncode, done.stdout) == (3, "")
    assert "log in again" in done.stderr and done.stderr.count("\n") == 1
    body["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    file.write_text(json.dumps(body))
    for command in ("status", "top"):
        done = mwatch(plane, command, "--kubeconfig", str(file))
        assert (done.returncode, done.stdout) == (3, "")
        assert "is the cluster up" in done.stderr and done.stderr.count("\n") == 1


def test_checkpoints_of_a_job_without_a_sidecar_are_not_known(
    plane: ControlPlane, access: Access
) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace, pods=1)
    run_pods(access, job, 1, ready_node(access, "well-five"))
    done = mwatch(plane, "checkpoints", "train", "-n", namespace)
    assert done.returncode == 3
    assert "no sidecar reports a save folder" in done.stdout


def test_kubectl_takes_mwatch_as_a_plugin(
    plane: ControlPlane, access: Access, tmp_path: Path
) -> None:
    namespace = things.fresh_namespace(access)
    things.make_job(access, namespace, "megatron-training", pods=1)
    plugin = tmp_path / "kubectl-mwatch"
    plugin.write_text(f'#!/bin/sh\nexec {sys.executable} -m mwatch "$@"\n')
    plugin.chmod(0o755)
    around = environment(plane)
    around["PATH"] = f"{tmp_path}:{around['PATH']}"
    done = subprocess.run(
        [str(plane.binaries / "kubectl"), "mwatch", "diagnose", "megatron-training",
         "-n", namespace, "--json"],
        capture_output=True, text=True, timeout=180, env=around, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout)["job"]["name"] == "megatron-training"
    assert done.returncode == 0, "it waits for its pods"


def test_a_bundle_holds_what_was_seen(plane: ControlPlane, access: Access, tmp_path: Path) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace, pods=1)
    run_pods(access, job, 1, ready_node(access, "well-six"))
    file = tmp_path / "out.tgz"
    done = mwatch(plane, "diagnose", "train", "-n", namespace, "--bundle", str(file))
    assert done.returncode == 3
    assert "4 files" in done.stderr
    with tarfile.open(file) as archive:
        assert f"{namespace}-train/pods.json" in archive.getnames()
    refused = mwatch(plane, "diagnose", "train", "-n", namespace, "--bundle", "/no/such/out.tgz")
    assert (refused.returncode, refused.stdout) == (2, "")
