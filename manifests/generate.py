# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Copies rules, dashboards and RBAC files into the chart.

    python -m manifests.generate

A chart can read only files of its own folder. Never edit the copies; a test fails if they are
out of date.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = Path("manifests/charts/mwatch/files")
SOURCES = {"rules": "alerts/*.rules.yaml", "dashboards": "dashboards/*.json"}
SOURCES |= {"rbac": "manifests/rbac/*.yaml"}


def wanted(root: Path = ROOT) -> dict[Path, str]:
    """Text of each copy by its path from the root."""
    return {
        FILES / folder / path.name: path.read_text("utf-8")
        for folder, pattern in SOURCES.items()
        for path in sorted(root.glob(pattern))
    }


def generate(root: Path = ROOT) -> None:
    copies = wanted(root)
    for folder in SOURCES:
        (root / FILES / folder).mkdir(parents=True, exist_ok=True)
        for path in (root / FILES / folder).iterdir():
            if path.relative_to(root) not in copies:
                path.unlink()
    for path, text in copies.items():
        (root / path).write_text(text, "utf-8")


if __name__ == "__main__":
    generate()
