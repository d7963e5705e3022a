# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the Megatron that will run follows `--ckpt-step` when it loads.

Looks at its source as text, where Python would find it; imports nothing. It cannot follow a path
that the program itself adds at run time: then the answer is "not known".
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from typing import Iterator, Mapping, Sequence

from mwatch_trainer.argv import Program

_FILES = (("megatron", "training", "checkpointing.py"), ("megatron", "checkpointing.py"))
_FOLLOWS = re.compile(
    rb"getattr\(\s*args\s*,\s*['\"]ckpt_step['\"]|iteration\s*=\s*args\.ckpt_step"
)
_MAX_SOURCE = 4 << 20
_MAX_PLACES = 64


def follows_ckpt_step(
    command: Sequence[str], program: Program, environ: Mapping[str, str]
) -> bool | None:
    """None: not known."""
    if program.name.split(".")[0] == "mwatch_gpt":
        return True
    for number, place in enumerate(_places(command, program, environ)):
        if number >= _MAX_PLACES:
            break
        for parts in _FILES:
            try:
                with open(os.path.join(place, *parts), "rb") as file:
                    return _FOLLOWS.search(file.read(_MAX_SOURCE)) is not None
            except OSError:
                continue
    return None


def _places(command: Sequence[str], program: Program, environ: Mapping[str, str]) -> Iterator[str]:
    """In the order of Python's own search."""
    yield os.path.dirname(program.name) if program.name.endswith(".py") else ""
    yield from filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    yield ""
    for word in command[: program.start]:
        path = shutil.which(word, path=environ.get("PATH"))
        if path is None:
            continue
        prefix = os.path.dirname(os.path.dirname(path))
        for kind in ("site-packages", "dist-packages"):
            yield from sorted(glob.glob(os.path.join(glob.escape(prefix), "lib", "python3*", kind)))
