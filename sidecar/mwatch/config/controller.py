# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Controller settings, given as flags."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from mwatch.config import loader
from mwatch.config.sidecar import Port

DEFAULT_PORT = 9402
DEFAULT_HOST = "::"
PollSeconds = Annotated[float, Meta(ge=1.0, le=60.0, description="1 to 60 seconds")]


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    namespace: str | None = None  # None: that of the kubeconfig or the pod
    kubeconfig: str | None = None
    context: str | None = None
    port: Port = DEFAULT_PORT
    host: str = DEFAULT_HOST
    policy: Path | None = None  # thresholds for jobs without their own policy
    fleet: Path | None = None
    evidence: Path | None = None
    poll_seconds: PollSeconds = 5.0
    as_json: bool = False
    no_page: bool = False  # serve neither / nor /jobs
    notify: tuple[str, ...] = field(default=(), repr=False)  # URLs that contain secrets
    external_url: str | None = None  # URL of the controller's page, for links in notifications

    def checked(self) -> ControllerSettings:
        """Return self. Raises InputError for a flag out of bounds."""
        types = loader.hints_of(ControllerSettings)
        for name, flag in (("poll_seconds", "--poll"), ("port", "--port")):
            loader.checked(getattr(self, name), types[name], flag)
        return self
