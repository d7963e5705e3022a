# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""However the tests end, nothing of their cluster is left: no process, mount, interface, cgroup
or folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cluster.addresses import BRIDGE
from cluster.keeper import CONTAINERS, pod_cgroups
from cluster.leaving import FAR, READY
from cluster.missing import KUBECONFIG

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(os.environ.get(KUBECONFIG)), reason="nothing is made here"),
]
_START_SECONDS = 600.0
_END_SECONDS = 240.0
_PLACES = ("/run", "/var/lib/cni", "/var/lib/kubelet", "/var/log")
_OTHERS = {"apt", "dbus", "journal", "shm", "systemd", "udev", "user"}
"""In these places, of programs that are no part of a node, such as a browser of another test."""
_TESTS = Path(__file__).parents[1]


def start(how_far: str, folder: Path) -> subprocess.Popen[str]:
    """The fixtures, in a process of their own; their folders lie in `folder`."""
    environment = {
        **os.environ,
        FAR: how_far,
        READY: str(folder / "ready"),
        "TMPDIR": str(folder),
        "MWATCH_CLUSTER_TESTS": "1",
    }
    words = ["-q", "--import-mode=importlib", "-p", "no:cacheprovider", "cluster/leaving.py"]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *words],
        cwd=_TESTS,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_ready(child: subprocess.Popen[str], folder: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while not (folder / "ready").exists():
        if child.poll() is not None or time.monotonic() > until:
            child.kill()
            pytest.fail(f"it did not come up: {child.communicate()[0][-2000:]}")
        time.sleep(0.1)


def machine_files() -> set[Path]:
    """Where programs of a node write, whoever tells them not to."""
    every = {each for place in _PLACES for each in Path(place).glob("*/*")}
    return {each for each in every if each.parent.name not in _OTHERS}


def left_behind(folder: Path, containers: Sequence[str] = ()) -> list[str]:
    """What still speaks of a cluster in `folder`, or of its containers."""
    own = f"{folder}/mwatch-cluster-"
    found = [f"folder {each}" for each in folder.glob("mwatch-cluster-*")]
    found += [f"mount {line}" for line in _lines("/proc/1/mountinfo") if own in line]
    for process in Path("/proc").glob("[0-9]*"):
        words = " ".join(_lines(process / "cmdline")).replace("\0", " ")
        if own in words or any(_is_of(line, containers) for line in _lines(process / "cgroup")):
            found.append(f"process {process.name} {words[:200]}")
    places = [root / name for root in pod_cgroups() for name in containers]
    found += [f"cgroup {each}" for each in places if each.exists()]
    # Of the machine: this very process may be in the network of another cluster.
    found += [f"interface {line}" for line in _lines("/proc/1/net/dev") if f"{BRIDGE}:" in line]
    return found


def _is_of(line: str, containers: Sequence[str]) -> bool:
    return any(each in line for each in containers)


def _lines(path: Path | str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []


def wait_until_clean(folder: Path, containers: Sequence[str] = ()) -> None:
    until = time.monotonic() + _END_SECONDS
    while left := left_behind(folder, containers):
        assert time.monotonic() < until, left
        time.sleep(0.2)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: containerd's socket lies below it, and its path is bounded. pytest's own folders are
    in it too."""
    made = Path(tempfile.mkdtemp(prefix="mwl-"))
    yield made
    subprocess.run(["rm", "-rf", "--one-file-system", str(made)], check=True, timeout=120)


@pytest.mark.parametrize(
    ("how_far", "number"),
    [("pod", signal.SIGINT), ("plane", signal.SIGTERM), ("plane", signal.SIGKILL)],
    ids=["ctrl-c with a pod", "SIGTERM", "SIGKILL"],
)
def test_an_interrupted_run_leaves_nothing(how_far: str, number: int, folder: Path) -> None:
    before = machine_files()
    child = start(how_far, folder)
    try:
        wait_for_ready(child, folder)
        cluster = Path((folder / "ready").read_text())
        containers = [each.name for each in (cluster / CONTAINERS).glob("*")]
        seen = " ".join(left_behind(folder, containers))
        assert "process" in seen and "folder" in seen
        assert ("cgroup" in seen) is (how_far == "pod")
        os.kill(child.pid, number)
        child.communicate(timeout=_END_SECONDS)
        wait_until_clean(folder, containers)
        assert machine_files() <= before
    finally:
        child.kill()
        child.communicate()
        wait_until_clean(folder)


def test_a_set_up_that_fails_leaves_nothing(folder: Path) -> None:
    child = start("failing", folder)
    said, _ = child.communicate(timeout=_START_SECONDS)
    assert child.returncode == 1 and "no API server after" in said, said[-2000:]
    wait_until_clean(folder)


def test_without_go_one_line_says_what_is_missing(folder: Path) -> None:
    environment = {**os.environ, "PATH": str(folder), "PYTHONPATH": str(_TESTS)}
    (folder / "unshare").symlink_to("/bin/true")
    environment.pop(KUBECONFIG, None)
    words = [sys.executable, "-m", "cluster.missing"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "Go" in done.stderr and KUBECONFIG in done.stderr
