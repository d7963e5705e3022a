# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The images of the tests: ours as it is released, the others from programs of this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from cluster import binaries
from cluster.closure import add_programs
from cluster.image import Layer, save
from cluster.tools import tools
from release.image import NAME, ImageTools, build_image, sources_key
from support.debian_tools import debian_tool
from support.debian_tree import debian_tree, with_libraries

OPERATOR = "localhost/training-operator"
WAITER = "localhost/wait-for-master:test"
MWATCH = NAME
TRAINER = "localhost/trainer:test"
_ARCHIVE = "mwatch.tar"
_KEPT = 3
"""Built images; each has some 130 MB."""
_EPOCH = 1_700_000_000
# busybox has an nslookup of its own, which its shell prefers and which fails on search domains.
_NSLOOKUP = b'#!/bin/sh\nexec getent ahostsv4 "$1"\n'
# busybox has none.
_PRINTENV = b'#!/bin/sh\neval "echo \\"\\${$1}\\""\n'
_BUSYBOX = (
    "seq", "sleep", "cat", "ls", "cp", "mkdir", "mkfifo", "chmod", "ps", "kill", "env", "true",
    "rm",
)  # fmt: skip
_NAMES = b"hosts: files dns\n"


def operator_image(folder: Path, program: Path, version: str) -> Path:
    layer = _layer(folder, "operator")
    layer.file("manager", program)
    return _save(folder, "operator", f"{OPERATOR}:{version}", layer)


def waiter_image(folder: Path) -> Path:
    """For the operator's init container, which waits until the master has a name."""
    layer = _layer(folder, "waiter")
    _add_shell(layer)
    return _save(folder, "waiter", WAITER, layer)


def trainer_image(folder: Path) -> Path:
    """A shell and nothing else: what a training image has is mounted from this machine."""
    layer = _layer(folder, "trainer")
    _add_shell(layer)
    return _save(folder, "trainer", TRAINER, layer)


def mwatch_image() -> Path:
    """The released image, built from the Dockerfile: once for the same sources."""

    def make(folder: Path) -> None:
        found = image_tools()
        build_image(folder / _ARCHIVE, binaries.home() / "image-parts", found, _EPOCH)

    folder = binaries.built("image", sources_key(), make, "by buildah")
    for old in sorted(binaries.home().glob("image-?*"), key=_age)[_KEPT:]:
        if old.name != "image-parts" and old != folder:
            shutil.rmtree(old, ignore_errors=True)
    return folder / _ARCHIVE


def image_tools() -> ImageTools:
    """Those of the machine, else of Debian, unpacked. ToolMissing names the fix."""
    mmdebstrap = debian_tool("mmdebstrap", "mmdebstrap")
    if buildah := shutil.which("buildah"):
        return ImageTools(Path(buildah), mmdebstrap, os.environ)
    root = debian_tree(("buildah",), size="about 30 MB")
    unpacked = with_libraries(root / "usr/bin/buildah", root)
    return ImageTools(unpacked, mmdebstrap, os.environ)


def _age(path: Path) -> float:
    return -path.stat().st_mtime


def _add_shell(layer: Layer) -> None:
    programs = [Path(each) for each in (shutil.which("dash"), shutil.which("getent")) if each]
    add_programs(layer, programs)
    layer.link("bin/sh", str(programs[0]))
    if str(programs[1]) != "/usr/bin/getent":
        layer.link("usr/bin/getent", str(programs[1]))
    layer.data("bin/nslookup", _NSLOOKUP)
    layer.data("bin/printenv", _PRINTENV)
    layer.file("bin/busybox", tools().root / "bin" / "busybox")
    for name in _BUSYBOX:
        layer.link(f"bin/{name}", "busybox")
    layer.data("etc/nsswitch.conf", _NAMES, mode=0o644)


def _layer(folder: Path, name: str) -> Layer:
    return Layer(folder / f"{name}.layer")


def _save(
    folder: Path, name: str, tag: str, layer: Layer, config: Mapping[str, object] | None = None
) -> Path:
    archive = folder / f"{name}.tar"
    given = {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]} if config is None else config
    save(archive, tag, layer, folder / f"{name}.layer", given)
    (folder / f"{name}.layer").unlink()
    return archive
