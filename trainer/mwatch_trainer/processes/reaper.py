# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Waits for every child: the trainer, our own processes, and orphans that came to us.

As PID 1, or as the one that adopts, nobody else will: a container would fill up with zombies.
"""

from __future__ import annotations

import os
import subprocess


class Reaper:
    def __init__(self) -> None:
        self._known: dict[int, subprocess.Popen[bytes]] = {}
        self.orphans = 0
        """How many of others were reaped."""

    def watch(self, process: subprocess.Popen[bytes]) -> None:
        """From now on its `returncode` is set here; nobody may wait for it."""
        self._known[process.pid] = process

    def reap(self) -> None:
        """All that have ended by now."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._forget_lost()
                return
            except OSError:
                return
            if not pid:
                return
            process = self._known.pop(pid, None)
            if process is None:
                self.orphans += 1
            elif os.WIFSIGNALED(status):
                process.returncode = -os.WTERMSIG(status)
            else:
                process.returncode = os.WEXITSTATUS(status)

    def _forget_lost(self) -> None:
        """There are no children any more: somebody waited for them in our place (SIGCHLD ignored
        by whoever started us), and how they ended cannot be known."""
        for process in self._known.values():
            process.returncode = 1
        self._known.clear()
