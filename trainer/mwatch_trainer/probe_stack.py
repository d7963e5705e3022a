# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where a thread is: its stack as plain places, with no frame kept.

A frame that is held keeps the local variables of its function alive, tensors among them. So the
walk takes names and numbers, and drops each frame at once. Nothing here reads a local variable.
"""

from __future__ import annotations

import sys
from binascii import crc32
from types import CodeType, FrameType
from typing import Any, Dict, List, Tuple

MAX_DEPTH = 256
"""A model of many layers under recomputation is about 150 deep."""
LINES = 32
"""So many innermost places have their line, which costs more to find than all the rest."""
_LIBRARIES = ("/torch/", "/lib/python3", "/mwatch_trainer/", "<frozen", "<string>")
_SITE = "/site-packages/"
_DULL = frozenset(("__torch_function__", "_call_impl", "_wrapped_call_impl", "<module>"))
"""Every call of a model goes through these; a module that imports another one waits for it."""

Place = Tuple[CodeType, int, Dict[str, Any]]
"""The function, its line (0: not looked up), and the variables of its module."""
Stack = List[Place]
"""The innermost first."""


def can_be_read() -> bool:
    """Without the GIL another thread's frames change while they are read."""
    is_gil_enabled = getattr(sys, "_is_gil_enabled", None)
    return is_gil_enabled is None or bool(is_gil_enabled())


def of_thread(ident: int) -> Stack:
    """Empty for a thread that has none, or no longer."""
    return walk(sys._current_frames().pop(ident, None), LINES) if can_be_read() else []


def walk(frame: FrameType | None, lines: int = MAX_DEPTH) -> Stack:
    stack: Stack = []
    while frame is not None and lines > 0:
        stack.append((frame.f_code, frame.f_lineno or 0, frame.f_globals))
        frame = frame.f_back
        lines -= 1
    depth = MAX_DEPTH - len(stack)
    while frame is not None and depth > 0:
        stack.append((frame.f_code, 0, frame.f_globals))
        frame = frame.f_back
        depth -= 1
    return stack


def digest(stack: Stack) -> str:
    """The same for the same innermost places, also in another rank of the same program."""
    if not stack:
        return ""
    text = "|".join(
        [f"{code.co_filename}:{code.co_name}:{line}" for code, line, _ in stack[:LINES]]
    )
    return f"{crc32(text.encode('utf-8', 'replace')):08x}"


def where(stack: Stack) -> str:
    """The innermost place outside of libraries, else the innermost."""
    for place in stack[:LINES]:
        file = place[0].co_filename
        is_library = any(part in file for part in _LIBRARIES) and not _is_of_a_trainer(file)
        if not is_library and place[0].co_name not in _DULL:
            return _said(place)
    return _said(stack[0]) if stack else ""


def _is_of_a_trainer(file: str) -> bool:
    """Megatron and Composer are often installed: then they lie among the libraries."""
    _, is_installed, path = file.rpartition(_SITE)
    return bool(is_installed) and not path.startswith(("torch/", "triton/", "mwatch_trainer/"))


def _said(place: Place) -> str:
    tail = "/".join(place[0].co_filename.split("/")[-3:])
    return f"{tail}:{place[1]} {place[0].co_name}"
