# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Starts a module of this package as a process of its own, from a folder or from the .pyz.

A fresh interpreter and not a fork: the wrapper has threads. It runs without `site`, so nothing
that the user's environment hooks into Python (and not our own probe) runs there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Sequence

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""What holds the package: a folder, or the .pyz file. Taken now: the path may be relative."""

_RUN = (
    "import sys; sys.path = [sys.argv.pop(1)] + [each for each in sys.path if each]; "
    "sys.path += filter(None, [sys.argv.pop(1)]); "
    "from importlib import import_module; "
    "import_module(sys.argv.pop(1)).main(sys.argv[1:])"
)


def start(
    module: str, arguments: Sequence[str], fds: Sequence[int] = (), *, needs: str = ""
) -> subprocess.Popen[bytes]:
    """`main(arguments)` of `module`, which inherits `fds`. Raises OSError.

    `needs` names a module that is not ours: without `site` the process finds it only if it lies
    beside us, so its folder comes last in the path.

    What it prints, and be it the end of a broken one, is no part of the trainer's output.
    """
    # -I would ignore PYTHONHOME, without which such an interpreter does not find its library.
    flags = ["-S"] if "PYTHONHOME" in os.environ else ["-S", "-I"]
    name = f"mwatch_trainer.{module}"
    return subprocess.Popen(
        [sys.executable, *flags, "-c", _RUN, ROOT, _folder_of(needs), name, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=tuple(fds),
        start_new_session=True,
    )


def _folder_of(module: str) -> str:
    """Empty where this process does not find it either."""
    try:
        spec = find_spec(module) if module else None
    except (ImportError, ValueError):
        spec = None
    return os.path.dirname(spec.origin or "") if spec is not None else ""
