# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The commands that the README prints for a cluster, typed as they stand there.

helm installs the exported chart with the built image, kubectl starts the injected job on a real
node, and the job hangs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.given import given_images
from cluster.images import MWATCH
from cluster.kube_things import OF_TESTS, wait_for
from cluster.kubectl import Kubectl
from cluster.test_diagnose_live import ROOT, pytorchjob, trainer
from release.build import package_chart
from support.repository.chart_renders import helm
from support.repository.readme_examples import README, examples

pytestmark = pytest.mark.timeout(1800)
NAMESPACE = "training"
IMAGE = given_images().get("mwatch", MWATCH)
EXPORT, INSTALL, INJECT, DIAGNOSE = (
    each.command
    for each in examples(README.read_text("utf-8").partition("\n## A cluster\n")[2])[:4]
)
_SECONDS = 300.0
INSTALLED = """\
mwatch 0.1.0 in training.

  kubectl -n training rollout status deployment/mwatch-controller
  mwatch status -n training
"""
DIAGNOSED = """\
job        Active, training, 2 of 2 pods run, iteration 12 of 1000; 2 sidecars and 0 logs read
           would restart from checkpoint 10 (mode observe)
next       take stacks and the flight recorder of every rank before you restart
type       mwatch restart gpt -n training --from 10 --dry-run
runbook    mwatch runbook collective-timeout
""".splitlines()


class Shell:
    """Of a person whose kubectl reaches the cluster, in a folder with `job.yaml`."""

    def __init__(self, cluster: Kubectl, folder: Path) -> None:
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        (programs / "helm").symlink_to(str(helm()))
        (programs / "kubectl").write_text(f'#!/bin/sh\nexec "{cluster.program}" "$@"\n')
        (programs / "mwatch").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mwatch "$@"\n')
        for name in ("kubectl", "mwatch"):
            (programs / name).chmod(0o755)
        self._environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(folder),
            "KUBECONFIG": str(cluster.kubeconfig),
            "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("sidecar", "trainer")),
            "REGISTRY": IMAGE.rpartition("/")[0],
        }

    def __call__(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=_SECONDS,
        )  # fmt: skip


@pytest.fixture
def shell(cluster: Kubectl, tmp_path: Path) -> Iterator[Shell]:
    if IMAGE.rpartition("/")[2] != MWATCH.rpartition("/")[2]:
        pytest.skip(f"the commands of the README install {MWATCH.rpartition('/')[2]}")
    about = {"name": NAMESPACE, "labels": {OF_TESTS: ""}}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": about})
    (tmp_path / "job.yaml").write_text(json.dumps(pytorchjob("gpt", trainer("time.sleep(600)"))))
    yield Shell(cluster, tmp_path)
    cluster("delete", "namespace", NAMESPACE, "--wait=false")


def test_the_commands_of_the_readme_install_inject_and_diagnose(
    cluster: Kubectl, shell: Shell
) -> None:
    exported = shell(EXPORT)
    assert (exported.returncode, exported.stderr) == (0, "")
    assert files_of(shell.folder / "charts" / "mwatch") == packaged(shell.folder)
    installed = shell(INSTALL)
    assert installed.returncode == 0, installed.stderr
    assert INSTALLED in installed.stdout
    injected = shell(INJECT)
    assert injected.returncode == 0, injected.stderr
    made = ("service/gpt-worker-0", "pytorchjob.kubeflow.org/gpt")
    assert injected.stdout == "".join(f"{each} created\n" for each in made)
    cluster("rollout", "status", "deployment/mwatch-controller", "-n", NAMESPACE, "--timeout=300s",
            seconds=310)  # fmt: skip
    pods = [*cluster.get("pods", "-n", NAMESPACE)["items"]]
    assert {each["image"] for pod in pods for each in pod["spec"]["containers"]} == {IMAGE}

    printed: list[str] = []

    def is_diagnosed() -> bool:
        printed[:] = shell(DIAGNOSE).stdout.splitlines()
        return bool(printed) and printed[0].startswith("HANG since iteration 13")

    try:
        wait_for(lambda: is_diagnosed() and all(each in printed for each in DIAGNOSED),
                 "the diagnosis", _SECONDS)  # fmt: skip
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *printed])) from None
    (evidence,) = (each for each in printed if each.startswith("evidence "))
    assert "gpt-worker-1:12  iteration 12 | 0.300 s per iteration | lm loss: 6 |" in evidence


def files_of(chart: Path) -> dict[str, bytes]:
    every = (each for each in chart.rglob("*") if each.is_file() and each.name != ".helmignore")
    return {str(each.relative_to(chart.parent)): each.read_bytes() for each in every}


def packaged(folder: Path) -> dict[str, bytes]:
    """The files of the chart as a release has it."""
    package_chart("mwatch", folder, epoch=0)
    (archive,) = folder.glob("mwatch-*.tgz")
    with tarfile.open(archive) as content:
        content.extractall(folder / "packaged", filter="data")
    return files_of(folder / "packaged" / "mwatch")
