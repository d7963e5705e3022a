# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Programs of this machine in an image, with the libraries that they are linked with.

Everything lies in the image where it lies here, so that links and search paths stay true.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from cluster.image import Layer

_LIBRARY = re.compile(r"(/\S+) \(0x[0-9a-f]+\)")


def add_programs(layer: Layer, programs: Iterable[Path]) -> None:
    """Each under its own path; what it is linked with too."""
    found = [*programs]
    for program in found:
        layer.file(str(program).lstrip("/"), program)
    for library in _libraries(found):
        layer.file(str(library).lstrip("/"), library)


def _libraries(programs: Iterable[Path]) -> set[Path]:
    names = [str(each) for each in programs]
    if not names:
        return set()
    done = subprocess.run(["ldd", *names], capture_output=True, text=True, timeout=60)
    return {Path(found) for found in _LIBRARY.findall(done.stdout)}
