# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The images of the tests, made from the working tree and from programs of this machine."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from cluster.closure import add_packages, add_programs, add_python
from cluster.image import Layer, save
from cluster.tools import tools
from mwatch_trainer.zipapp_build import build

OPERATOR = "localhost/training-operator"
WAITER = "localhost/wait-for-master:test"
MWATCH = "localhost/mwatch:test"
TRAINER = "localhost/trainer:test"
_ROOT = Path(__file__).resolve().parents[2]
# busybox has an nslookup of its own, which its shell prefers and which fails on search domains.
_NSLOOKUP = b'#!/bin/sh\nexec getent ahostsv4 "$1"\n'
# busybox has none.
_PRINTENV = b'#!/bin/sh\neval "echo \\"\\${$1}\\""\n'
# Packages are found as in an image that has them installed, whatever PYTHONPATH a pod sets.
_PYTHON = """#!/bin/sh
export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}/opt/packages"
exec {program} "$@"
"""
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


def mwatch_image(folder: Path) -> Path:
    """The sidecar and the controller, and the wrapper to be copied into training containers."""
    layer = _layer(folder, "mwatch")
    _add_shell(layer)
    program = add_python(layer)
    add_packages(layer)
    names = ("sidecar/mwatch", "trainer/mwatch_trainer", "trainer/mwatch_gpt")
    for source in (_ROOT / each for each in names):
        layer.tree(f"opt/packages/{source.name}", source, without=("__pycache__",))
    layer.bytecode()
    wrapper = folder / "mwatch-run.pyz"
    build(str(wrapper))
    layer.file("mwatch-run.pyz", wrapper)
    layer.data("usr/local/bin/mwatch", f'#!/bin/sh\nexec {program} -m mwatch "$@"\n'.encode())
    layer.data("usr/local/bin/python3", _PYTHON.format(program=program).encode())
    config = {
        "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "PYTHONPATH=/opt/packages"],
        "Entrypoint": ["mwatch"],
    }
    return _save(folder, "mwatch", MWATCH, layer, config)


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
