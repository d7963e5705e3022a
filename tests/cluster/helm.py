# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""helm, called against the API server: what a user types."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.repository.chart_renders import helm


class Helm:
    def __init__(self, kubeconfig: Path) -> None:
        program = helm()
        assert program is not None
        self._words = [str(program), "--kubeconfig", str(kubeconfig)]

    def __call__(self, *words: str, namespace: str) -> str:
        done = subprocess.run(
            [*self._words, *words, "--namespace", namespace],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
