# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The examples of the README: each command line of its `console` blocks, with what it prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

README = Path(__file__).resolve().parents[3] / "README.md"
README_COLUMNS = 95
"""No block of code is wider, and no terminal of the examples."""
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(mwatch [^`]+)`")


class Example(NamedTuple):
    command: str
    """Without its comment."""
    output: tuple[str, ...]


def blocks(text: str) -> list[tuple[str, str]]:
    """Language and text of each block of code."""
    return [(found[1], found[2]) for found in _BLOCK.finditer(text)]


def examples(text: str) -> list[Example]:
    found: list[Example] = []
    for language, block in blocks(text):
        for line in block.splitlines() if language == "console" else ():
            if line.startswith("$ "):
                found.append(Example(re.sub(r"\s+# .*", "", line[2:]), ()))
            else:
                found[-1] = found[-1]._replace(output=(*found[-1].output, line))
    return found


def calls(text: str) -> list[list[str]]:
    """The words after `mwatch` of each of its commands, also of those in the prose, as far as they
    are mwatch's own."""
    prose = _INLINE.findall(_BLOCK.sub("", text))
    lines = [part for each in examples(text) for part in each.command.split(" | ")] + prose
    found = [shlex.split(line)[1:] for line in lines if line.startswith("mwatch ")]
    return [words[: words.index("--")] if "--" in words else words for words in found]
