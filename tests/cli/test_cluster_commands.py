# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Commands that look at a cluster, where there is none: what is a job, what is a path."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from kube.fake_api import Reply, fake_api
from mwatch.cli.shared.cluster import is_job
from mwatch.kube.access import FIRST_CALL
from support.fakes.job_api import kubeconfig_of
from support.runs import commands

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if not key.startswith("KUBE")},
    "PYTHONPATH": f"{ROOT / 'sidecar'}:{ROOT / 'trainer'}",
    "HOME": "/nonexistent",
}


def mwatch(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return commands.mwatch(*words, cwd=cwd, environment=ENVIRONMENT)


@pytest.mark.parametrize(
    "name", ["gpt", "megatron-training", "pytorchjob/gpt", "JobSet/gpt", "jobs.batch/gpt"]
)
def test_a_name_that_is_nothing_here_is_a_job(name: str) -> None:
    assert is_job(name)


@pytest.mark.parametrize("name", ["-", "/no/such/folder", "logs/a", "trainer.log", "a.txt", "."])
def test_paths_and_standard_input_are_recordings(name: str) -> None:
    assert not is_job(name)


def test_what_is_there_is_a_path_unless_a_cluster_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpt").mkdir()
    monkeypatch.chdir(tmp_path)
    assert not is_job("gpt", None, None)
    assert is_job("gpt", "training", None)


@pytest.mark.parametrize("command", ["diagnose", "checkpoints", "report", "ui"])
def test_a_name_that_is_neither_here_nor_in_a_cluster_says_both(command: str) -> None:
    done = mwatch(command, "gpt")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(
        "mwatch: gpt is not a file or folder here, so it must be a job; but"
    )
    assert "set KUBECONFIG" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["status", "top"])
def test_without_a_cluster_a_fleet_cannot_be_seen(command: str) -> None:
    done = mwatch(command)
    assert (done.returncode, done.stdout) == (3, "")
    assert "set KUBECONFIG" in done.stderr and done.stderr.count("\n") == 1


def test_a_cluster_without_a_name_asks_for_one() -> None:
    done = mwatch("diagnose", "-n", "training")
    assert done.returncode == 2
    assert "give exactly one live job" in done.stderr


def test_a_bundle_is_of_a_live_job(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("words\n")
    done = mwatch("diagnose", "a.log", "--bundle", "out.tgz", cwd=tmp_path)
    assert done.returncode == 2
    assert "only a live job has a bundle" in done.stderr


def test_help_says_which_name_is_which_and_the_exit_codes() -> None:
    told = " ".join(mwatch("diagnose", "--help").stdout.split())
    assert "An argument that is a file or a folder here is a recording" in told
    assert "with -n, --context or --kubeconfig every argument is" in told
    assert "Exit codes: 0 healthy or finished, 1 something is wrong" in told


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["top", "--once"],
        ["controller", "--once"],
        ["diagnose", "gpt"],
        ["restart", "gpt"],
    ],
)
def test_a_server_that_knows_nothing_is_not_an_empty_cluster(
    words: list[str], tmp_path: Path
) -> None:
    with fake_api(Reply(404, b"404 page not found")) as api:
        known = kubeconfig_of(api, tmp_path / "config")
        done = mwatch(*words, "-n", "training", "--kubeconfig", str(known))
    assert (done.returncode, done.stdout) == (3, "")
    assert f"mwatch: {api.address} is not a Kubernetes API server" in done.stderr
    assert "kubectl config view --minify" in done.stderr


def test_a_pause_of_a_namespace_that_does_not_exist_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    with fake_api(Reply(404, {"kind": "Status", "message": 'namespaces "x" not found'})) as api:
        known = kubeconfig_of(api, tmp_path / "config")
        done = mwatch("pause", "--all", "--reason", "y", "-n", "x", "--kubeconfig", str(known))
    assert done.returncode == 3
    assert 'cannot be created: namespaces "x" not found' in done.stderr


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_controller_that_looks_once_does_not_wait_for_a_dead_server(
    is_silent: bool, tmp_path: Path
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # without listening, it refuses
        if is_silent:
            listener.listen()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        known = kubeconfig_of(address, tmp_path / "config")
        done = mwatch("controller", "--once", "--kubeconfig", str(known))
    assert (done.returncode, done.stdout) == (3, "")
    assert f"the API server at {address} does not answer" in done.stderr
    assert FIRST_CALL.call_seconds + 2 * FIRST_CALL.first_wait < 4.5, "and half a second to start"
