# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of this machine, for `mwatch run`: GPUs, /proc, permissions, disk and page port."""

from __future__ import annotations

import os
import platform
import shutil
import socket
from pathlib import Path

from mwatch import __version__
from mwatch.diagnose.doctor.lines import DoctorLine, ok, problem, skipped
from mwatch.runtime.fanout import TimedOut, gather
from mwatch_trainer.gpu.nvml import NvmlAbsent, NvmlBroken, open_nvml

_LEAST_FREE = 1 << 30
_GIB = float(1 << 30)
_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_READ = ("stat", "status", "cmdline", "io", "wchan", "task", "fd")
"""Files below /proc/PID that the watcher reads."""
_NVML_SECONDS = 10.0


def check_machine(runs: Path, port: int) -> list[DoctorLine]:
    about = f"mwatch {__version__}, Python {platform.python_version()}, {os.cpu_count()} cores"
    return [
        ok("machine", about), _gpus(), _proc(), _tracing(), _disk(runs), _port(port),
    ]  # fmt: skip


def _gpus() -> DoctorLine:
    name = "GPUs"

    def count() -> int | Exception:
        try:
            return len(open_nvml().devices())  # in a thread that is abandoned if the driver hangs
        except (NvmlAbsent, NvmlBroken) as error:
            return error

    found = gather({"nvml": count}, seconds=_NVML_SECONDS)["nvml"]
    if isinstance(found, NvmlAbsent):
        return skipped(name, f"no NVIDIA driver ({found})")
    if isinstance(found, NvmlBroken | TimedOut):
        why = found.why if isinstance(found, TimedOut) else found
        return problem(
            name, f"NVML does not answer: {why}", "run nvidia-smi; reload the driver or reboot"
        )
    return ok(name, f"NVML reports {found}")


def _proc() -> DoctorLine:
    name, folder = "/proc", Path(f"/proc/{os.getpid()}")
    missing = []
    for each in _READ:
        try:
            if each in ("task", "fd"):
                os.listdir(folder / each)
            else:
                (folder / each).read_bytes()
        except OSError:
            missing.append(each)
    if not missing:
        return ok(name, "the state of a process can be read")
    what = f"cannot read {', '.join(missing)} of a process of this user"
    return problem(name, what, "mount /proc without hidepid, or run outside this sandbox")


def _tracing() -> DoctorLine:
    """Check that py-spy can attach. mwatch itself does not trace, but a user may need py-spy."""
    name = "py-spy"
    try:
        scope = int(Path(_SCOPE).read_text())
    except (OSError, ValueError):
        scope = 0
    if os.geteuid() == 0 or scope == 0:
        return ok(name, "may attach; mwatch needs no such right")
    return skipped(name, f"needs root here (ptrace_scope {scope}); mwatch needs no such right")


def _disk(runs: Path) -> DoctorLine:
    name, folder = "run folder", runs.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if not os.access(folder, os.W_OK | os.X_OK):
        return problem(
            name, f"{folder} is not writable", "give another folder: mwatch run --runs DIR"
        )
    what = f"{free / _GIB:.1f} GiB free in {folder}"
    if free < _LEAST_FREE:
        return problem(name, f"{what}, a run takes up to 1 GiB", "free space, or give --runs DIR")
    return ok(name, what)


def _port(port: int) -> DoctorLine:
    name = "page port"
    with socket.socket() as test:
        test.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            test.bind(("127.0.0.1", port))
        except OSError as error:
            why = f"port {port}: {error.strerror}; mwatch run takes the next free one"
            return skipped(name, why)
    return ok(name, f"port {port} is free")
