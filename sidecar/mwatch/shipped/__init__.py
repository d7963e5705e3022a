# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The files that are installed with mwatch: runbooks, alerts, dashboards, charts and RBAC.

In the repository they have their own top-level folders. `setup.py` imports the table below and
copies the files next to this module when it builds a wheel, so this module uses only the standard
library. An editable installation reads the files from the repository.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path, PurePosixPath


class Kind(StrEnum):
    ALERTS = "alerts"
    CHARTS = "charts"
    DASHBOARDS = "dashboards"
    RBAC = "rbac"
    RUNBOOKS = "runbooks"


_KINDS: dict[Kind, tuple[str, tuple[str, ...]]] = {
    Kind.ALERTS: ("alerts", ("*.yaml", "*.tmpl", "README.md")),
    Kind.CHARTS: ("manifests/charts", ("**/*",)),
    Kind.DASHBOARDS: ("dashboards", ("*.json",)),
    Kind.RBAC: ("manifests/rbac", ("*.yaml",)),
    Kind.RUNBOOKS: ("runbooks", ("*.md",)),
}
"""Folder below the root, and its files, by kind. The Python files beside them generate them."""
_WRAPPER = PurePosixPath("mwatch/files/mwatch-run.pyz")
"""The wrapper, which the chart `mwatch` puts into a ConfigMap for training pods."""
_HERE = Path(__file__).resolve().parent
_REPOSITORY = _HERE.parents[2]


def files(kind: Kind) -> dict[PurePosixPath, Path]:
    """The files of a kind, by path inside its folder; empty if mwatch was copied without them."""
    name, patterns = _KINDS[kind]
    folder = _HERE / name if (_HERE / name).is_dir() else _REPOSITORY / name
    found = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    own = sorted(path for path in found if "__pycache__" not in path.parts)
    return {PurePosixPath(path.relative_to(folder)): path for path in own}


def contents(kind: Kind) -> dict[PurePosixPath, bytes]:
    """Their contents, including files built from the installed packages. Raises OSError."""
    found = {name: path.read_bytes() for name, path in files(kind).items()}
    if found and kind is Kind.CHARTS:
        from mwatch_trainer import zipapp_build

        found[_WRAPPER] = zipapp_build.content()
    return found


def copy_into(root: Path) -> None:
    """Copy all files from the repository to where an installed mwatch looks for them."""
    for kind, (folder, _) in _KINDS.items():
        for name, path in files(kind).items():
            target = root / folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
