# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the cluster's namespaces and cleans up behind them: cgroups and the folder.

It stays outside of them, where none of the cluster's mounts is seen, so that what is removed is
the folder's own. It lives in a session of its own and ends with the namespaces, which end when
standard input does: also when the tests were killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_PARENT = "k8s.io"
CONTAINERS = f"containerd/state/io.containerd.runtime.v2.task/{_PARENT}"
"""containerd's folders of those that run, by their names; and so their cgroups are called."""
_BUSY_SECONDS = 20.0
_NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")


def main(folder: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the end of standard input is the sign
    try:
        subprocess.run(
            ["unshare", *_NAMESPACES, sys.executable, "-P", "-m", "cluster.init", str(folder)]
        )
    finally:
        _remove_cgroups(folder)
        shutil.rmtree(folder, ignore_errors=True)


def pod_cgroups() -> list[Path]:
    """Where the cgroups of all containers lie: one folder, or one for each controller of v1."""
    return [each for each in (_CGROUPS / _PARENT, *_CGROUPS.glob(f"*/{_PARENT}")) if each.is_dir()]


def _remove_cgroups(folder: Path) -> None:
    """Of the containers that were there at the end: the others' were removed by runc."""
    until = time.monotonic() + _BUSY_SECONDS
    containers = [each.name for each in (folder / CONTAINERS).glob("*")]
    for root in pod_cgroups():
        for name in containers:
            for path in sorted((root / name).glob("**/"), key=lambda each: -len(each.parts)):
                _remove(path, until)
        with contextlib.suppress(OSError):
            root.rmdir()  # unless it is another cluster's, too


def _remove(path: Path, until: float) -> None:
    """A cgroup is busy for a moment after its last process."""
    while time.monotonic() < until:
        try:
            os.rmdir(path)
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
