# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The names that `inject` gives, and that the rest of mwatch finds things by."""

from __future__ import annotations

SIDECAR = "mwatch"
COPY = "mwatch-copy"
VOLUME = "mwatch"
VOLUME_PATH = "/mwatch"
TOKEN_VOLUME = "mwatch-token"
TOKEN_PATH = "/etc/mwatch"
TOKEN_FILE = "/etc/mwatch/token"
PORT_NAME = "mwatch"
PORT = 9401
PYZ = "/mwatch/mwatch-run.pyz"
PYZ_IN_IMAGE = "/mwatch-run.pyz"
"""Of mwatch, from where it is copied."""

WATCH_LABEL = "mwatch.dev/watch"
MODE = "mwatch.dev/mode"
INJECTED = "mwatch.dev/injected"
"""What was changed, as JSON: enough to change it back."""


def token_secret(job: str) -> str:
    return f"mwatch-{job}"
