# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The first process of the cluster's own PID namespace: starts what it is told, reaps, and takes
everything with it.

Orders come as JSON lines on standard input. When that ends, whoever gave the orders is done or
dead: all processes are killed, and with this process the kernel takes the namespaces, their mounts
and interfaces. Deaths are written to `ends.jsonl`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from support.signals import give_children_default_signals

_END_SECONDS = 20.0
_OWN_FOLDERS = ("run", "var/lib", "var/log")


def main(folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started us
    give_children_default_signals()  # else every process of every pod would ignore them
    _hide_machine(folder)
    parts = Parts(folder)
    threading.Thread(target=parts.reap, daemon=True).start()
    for line in sys.stdin:
        parts.start(json.loads(line))
    _end()


def _hide_machine(folder: Path) -> None:
    """kubelet, containerd, runc and CNI plugins write to places that cannot all be set, and each
    kubelet removes there what is of no pod of its own: logs of another cluster, too."""
    for name in _OWN_FOLDERS:
        mine = folder / "machine" / name
        mine.mkdir(parents=True)
        subprocess.run(["mount", "--bind", str(mine), f"/{name}"], check=True, timeout=60)


class Parts:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: dict[int, tuple[str, float]] = {}
        self._lock = threading.Lock()
        """One that ends at once is not reaped before its name is known."""

    def start(self, order: dict[str, Any]) -> None:
        with self._lock, (self._folder / f"{order['name']}.log").open("ab") as log:
            began = time.monotonic()
            child = subprocess.Popen(
                order["argv"],
                cwd=self._folder,
                env=order["environment"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            child.returncode = 0  # reaped by `reap`: it must not be waited for once more
            self._started[child.pid] = (order["name"], began)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.wait()
            except ChildProcessError:
                time.sleep(0.2)  # nobody yet: there is no event to wait for
                continue
            with self._lock:
                part = self._started.pop(pid, None)
            if part is not None:
                self._write_end(*part, os.waitstatus_to_exitcode(status))

    def _write_end(self, name: str, began: float, code: int) -> None:
        end = {"name": name, "code": code, "seconds": time.monotonic() - began}
        with (self._folder / "ends.jsonl").open("a") as file:
            file.write(json.dumps(end) + "\n")


def _end() -> None:
    until = time.monotonic() + _END_SECONDS
    while time.monotonic() < until:
        try:
            os.kill(-1, signal.SIGKILL)  # all but ourselves
        except ProcessLookupError:
            break
        time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
