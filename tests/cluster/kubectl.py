# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""kubectl, called: the tests' own hands, which are never those of the product."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SECONDS = 120.0
"""Of a busy machine; usually it takes a fraction of one."""


class KubectlFailed(RuntimeError):
    """With what it printed."""


class Kubectl:
    def __init__(self, program: Path | str, kubeconfig: Path) -> None:
        self.program = str(program)
        self.kubeconfig = kubeconfig

    def __call__(self, *words: str, given: str | None = None, seconds: float = _SECONDS) -> str:
        """What it prints; `given` goes to its standard input."""
        done = self._run(words, given, seconds)
        if done.returncode:
            raise KubectlFailed(f"kubectl {' '.join(words)}: {done.stderr.strip()[:2000]}")
        return done.stdout

    def answer(self, *words: str) -> str | None:
        """None where it fails."""
        try:
            done = self._run(words, None, _SECONDS)
        except subprocess.TimeoutExpired:
            return None
        return None if done.returncode else done.stdout

    def get(self, *words: str) -> Any:
        """The object, or the list of them."""
        return json.loads(self("get", *words, "-o", "json"))

    def apply(self, *objects: Mapping[str, Any], server_side: bool = False) -> str:
        given = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        return self("apply", *(["--server-side"] if server_side else []), "-f", "-", given=given)

    def _run(
        self, words: tuple[str, ...], given: str | None, seconds: float
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        return subprocess.run(
            [self.program, *words],
            input=given,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=environment,
        )
