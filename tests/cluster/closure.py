# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Programs of this machine in an image, with the libraries that they are linked with.

Everything lies in the image where it lies here, so that links and search paths stay true.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from cluster.image import Layer

_LIBRARY = re.compile(r"(/\S+) \(0x[0-9a-f]+\)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ROOT = Path(__file__).resolve().parents[2]
_EXTRAS = ("otlp", "tensorboard")
# Of the extra `data`. `tokenizers` brings a client of the hub with it, which no test asks for.
_DATA = ("regex", "zstandard")
_LEFT_OUT = ("__pycache__", "test", "tests", "idlelib", "tkinter", "ensurepip", "turtledemo")


def add_programs(layer: Layer, programs: Iterable[Path]) -> None:
    """Each under its own path; what it is linked with too."""
    found = [*programs]
    for program in found:
        layer.file(str(program).lstrip("/"), program)
    for library in _libraries(found):
        layer.file(str(library).lstrip("/"), library)


def add_python(layer: Layer) -> Path:
    """The interpreter that runs the tests, without its virtual environment; and its path in the
    image."""
    program = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    extensions = [*library.glob("lib-dynload/*.so")]
    add_programs(layer, [program, *extensions])
    for_linkers = Path(sysconfig.get_config_var("LIBPL") or "").name
    without = (*_LEFT_OUT, "site-packages", for_linkers)
    layer.tree(str(library).lstrip("/"), library, without=without)
    return program


def add_packages(layer: Layer) -> None:
    """What mwatch depends on, as it is installed here, into `/opt/packages`."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *(each for name in _EXTRAS for each in extras.get(name, ())),
        *_DATA,
    ]
    extensions = []
    for name in sorted(_with_dependencies(wanted)):
        for file in metadata.distribution(name).files or ():
            path = Path(str(file.locate()))
            if file.parts[0] != ".." and "__pycache__" not in file.parts and path.is_file():
                layer.file(f"opt/packages/{file}", path)
                extensions += [path] if path.suffix == ".so" else []
    here = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    for library in _libraries(extensions):
        if not str(library).startswith(here):  # those of the packages lie beside them
            layer.file(str(library).lstrip("/"), library)


def _with_dependencies(requirements: Iterable[str]) -> set[str]:
    """Names; what is asked for by an extra is left out, and so is what is not installed here (a
    package for another Python)."""
    found: set[str] = set()
    waiting = [*requirements]
    while waiting:
        line = waiting.pop()
        name = _NAME.match(line)
        if name is None or "extra ==" in line or name[0].lower() in found:
            continue
        try:
            waiting += metadata.requires(name[0]) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(name[0].lower())
    return found


def _libraries(programs: Iterable[Path]) -> set[Path]:
    names = [str(each) for each in programs]
    if not names:
        return set()
    done = subprocess.run(["ldd", *names], capture_output=True, text=True, timeout=60)
    return {Path(found) for found in _LIBRARY.findall(done.stdout)}
