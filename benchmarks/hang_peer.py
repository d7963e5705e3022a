# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's ft_launcher (nvidia-resiliency-ext), got from PyPI and run as its makers advise.

The package goes into the user's cache, never into our environment, where megatron-core would find
it. All settings are its defaults (it looks every 5 s, a calculated
timeout is 5 times the longest that was seen); the timeouts that hold until some are calculated
are those in Megatron-LM's own example.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.hang_run import Watcher, started_at
from benchmarks.measure import ROOT, ChildFailed, python
from mwatch_trainer.processes import proc
from support.debian_tools import CommandFailed, locked, run_command, user_cache

PACKAGE = "nvidia-resiliency-ext"
VERSION = "0.4.1"
_WITH = ("defusedxml==0.7.1", "nvidia-ml-py==13.580.65", "pynvml==13.0.1", "pyyaml==6.0.3")
"""What it imports, besides torch, packaging and psutil, which the trainer brings."""
_INSTALL_SECONDS = 300.0
_LAUNCHER = "nvidia_resiliency_ext.fault_tolerance.launcher"
_LOOKS_EVERY_SECONDS = 5.0
_SAYS = b"FT timeout elapsed."
_UNTIL_CALCULATED = {
    "sections": (
        "--ft-rank-section-timeouts=setup:600,step:180,checkpointing:420",
        "--ft-rank-out-of-section-timeout=300",
    ),
    "heartbeats": (
        "--ft-initial-rank-heartbeat-timeout=3600",
        "--ft-rank-heartbeat-timeout=2700",
    ),
}
APIS = tuple(_UNTIL_CALCULATED)


def watcher(api: str, job: list[str], env: dict[str, str], variable: str) -> Watcher:
    """`job`: the script and its arguments. `variable` tells it which API is meant."""
    path = f"{env['PYTHONPATH']}{os.pathsep}{_installed()}"
    return Watcher(
        name=f"ft_launcher, {api}",
        command=partial(_command, api, job),
        env={**env, "PYTHONPATH": path, variable: api},
        says_hang=lambda line: _SAYS in line,
        looks_every_seconds=_LOOKS_EVERY_SECONDS,
        first_look=_monitor_started,
    )


def _command(api: str, job: list[str], folder: Path) -> list[str]:
    launcher = python("-m", _LAUNCHER, "--standalone", "--nproc-per-node", "2")
    return [*launcher, *_UNTIL_CALCULATED[api], *job]


def _monitor_started(launcher: int) -> float:
    """Its monitors are forked off the launcher before the ranks, and look for the first time."""
    known = proc.all_processes()
    children = [each for each in known.values() if each.ppid == launcher]
    monitors = [each for each in children if proc.rank_of(each.pid) is None]
    if not monitors:
        raise ChildFailed("ft_launcher has no monitor")
    return min(map(started_at, monitors))


def _installed() -> Path:
    """The folder that holds the package."""
    tag = f"{sys.implementation.cache_tag}-{platform.machine()}"
    home = user_cache().with_name("python")
    folder = home / f"{PACKAGE}-{VERSION}-{tag}"
    if folder.is_dir():
        return folder
    try:
        home.mkdir(parents=True, exist_ok=True)
        with locked(home / "lock"):
            if not folder.is_dir():
                _install(folder)
    except (CommandFailed, OSError) as error:
        raise ChildFailed(f"{PACKAGE} {VERSION} cannot be had: {error}") from error
    return folder


def _install(folder: Path) -> None:
    print(f"benchmarks: fetching {PACKAGE} {VERSION} from PyPI", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as aside:
        pip = python("-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        target = ["--no-deps", "--target", f"{aside}/whole"]
        run_command([*pip, *target, f"{PACKAGE}=={VERSION}", *_WITH], ROOT, _INSTALL_SECONDS)
        Path(aside, "whole").rename(folder)
