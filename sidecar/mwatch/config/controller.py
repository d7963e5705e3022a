# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a person tells a controller when it is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mwatch.errors import InputError

DEFAULT_PORT = 9402
DEFAULT_HOST = "::"
LEAST_POLL, MOST_POLL = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    namespace: str | None = None
    """None: the one of the kubeconfig, or of the pod."""
    kubeconfig: str | None = None
    context: str | None = None
    port: int = DEFAULT_PORT
    host: str = DEFAULT_HOST
    policy: Path | None = None
    """Thresholds of jobs that name no policy of their own."""
    fleet: Path | None = None
    evidence: Path | None = None
    poll_seconds: float = 5.0
    is_once: bool = False
    as_json: bool = False

    def checked(self) -> ControllerSettings:
        if not LEAST_POLL <= self.poll_seconds <= MOST_POLL:
            words = f"--poll {self.poll_seconds:g}: give {LEAST_POLL:g} to {MOST_POLL:g} seconds"
            raise InputError(words)
        if not 0 <= self.port <= 65535:
            raise InputError(f"--port {self.port}: give a port, or 0 for any")
        return self
