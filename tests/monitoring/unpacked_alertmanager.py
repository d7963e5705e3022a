# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Debian's Alertmanager without its installation.

It reads its templates from a fixed folder of an installed system, and no flag says otherwise. A
copy of the program is made in which that name is a relative one of the same length, and the folder
of the unpacked package is put there.
"""

from __future__ import annotations

from pathlib import Path

from support.debian_tools import debian_tool

_SHARED = "/usr/share/prometheus/alertmanager"
_HERE = "template"
_RELATIVE = "./" * ((len(_SHARED) - len(_HERE)) // 2) + _HERE


def runnable(folder: Path) -> Path:
    """The program; it is to be started in `folder`."""
    binary = debian_tool("prometheus-alertmanager", "prometheus-alertmanager")
    templates = binary.parents[2] / _SHARED.lstrip("/")
    if templates == Path(_SHARED) or not templates.is_dir():
        return binary  # installed, or of somebody else's making
    (folder / _HERE).symlink_to(templates)
    assert len(_RELATIVE) == len(_SHARED)
    copy = folder / binary.name
    copy.write_bytes(binary.read_bytes().replace(_SHARED.encode(), _RELATIVE.encode()))
    copy.chmod(0o700)
    return copy
