# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A program that a step runs, and that ends with it."""

from __future__ import annotations

import subprocess

_running: list[subprocess.Popen[bytes]] = []


def run(words: list[str]) -> int:
    """Its exit code; what it says goes to the pod's log."""
    with subprocess.Popen(words) as process:
        _running.append(process)
        return process.wait()


def stop() -> None:
    for each in _running:
        each.kill()
