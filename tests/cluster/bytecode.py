# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The bytecode that belongs to a source file, as an image has it whose packages were installed.

Without it each container would compile a thousand modules at its start. Files of an image have
no times, so Python is told not to compare them.
"""

from __future__ import annotations

import importlib.util
import marshal
from pathlib import Path
from types import CodeType

_HEADER = 16
_BY_TIME = bytes(4)
_UNCHECKED = (1).to_bytes(4, "little")
_MAGIC = importlib.util.MAGIC_NUMBER


def place(name: str) -> str:
    """Where Python looks for it."""
    return importlib.util.cache_from_source(name)


def bytecode(source: Path) -> bytes | None:
    """None for a file that is no Python of this release (a template, a test of a parser)."""
    text = source.read_bytes()
    code = _kept(source, len(text)) or _compiled(source, text)
    return code and _MAGIC + _UNCHECKED + importlib.util.source_hash(text) + code


def _kept(source: Path, size: int) -> bytes | None:
    """What this machine has compiled already, if it is of this text."""
    try:
        kept = Path(place(str(source))).read_bytes()
    except OSError:
        return None
    seconds = int(source.stat().st_mtime) & 0xFFFFFFFF
    made_of = seconds.to_bytes(4, "little") + (size & 0xFFFFFFFF).to_bytes(4, "little")
    return kept[_HEADER:] if kept[:_HEADER] == _MAGIC + _BY_TIME + made_of else None


def _compiled(source: Path, text: bytes) -> bytes | None:
    try:
        code: CodeType = compile(text, str(source), "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    return marshal.dumps(code)
