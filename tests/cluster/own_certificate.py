# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A certificate for a controller that wants one for its webhooks, though nobody calls them."""

from __future__ import annotations

import subprocess
from pathlib import Path


def write_certificate(folder: Path, name: str) -> None:
    """As `tls.crt` and `tls.key`."""
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
            "-subj", f"/CN={name}", "-keyout", str(folder / "tls.key"),
            "-out", str(folder / "tls.crt"),
        ],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
