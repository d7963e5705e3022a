# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The labels that metrics may have."""

from __future__ import annotations

LABELS = frozenset(
    {
        "run", "rank", "gpu", "UUID", "device", "loss", "phase", "finding", "severity", "cause",
        "action", "stage", "culprit_pod", "culprit_node", "reason", "kind", "source", "state",
        "resource",
    }
)  # fmt: skip
"""All labels there are; a controller adds `run_namespace` and `run_pod`."""
