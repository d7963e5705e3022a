# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The statements of a shell script, as far as they can be told without running it.

Loops, functions, conditions and here-documents are read as plain statements, so what is found is
a reason to look, and what is not found is no proof.
"""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

_MAX = 200_000
_JOINTS = frozenset({";", "&&", "||", "|", "&", "|&", "\n"})
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n.*?\n\s*\2(?=\n|\Z)", re.S)
_REDIRECTION = re.compile(r"\d*[<>]&[\d-]+|&>>?")
"""Ampersands that join no commands."""
_LAUNCHER = re.compile(
    r"(?:^|[\s/\"'])(?:torchrun|torch\.distributed\.(?:run|launch)|composer|deepspeed|ft_launcher"
    r"|accelerate|llmfoundry|\S*pretrain_\w+\.py|mwatch_gpt)(?=[\s\"']|$)"
)
SHELLS = ("bash", "sh", "dash", "zsh", "ksh")


class Statement(NamedTuple):
    words: tuple[str, ...]
    joint: str
    """What stands behind it: `;`, `&&`, `||`, `|`, `&`, or nothing."""

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def launches(self) -> bool:
        """Training, or a script that may."""
        if not self.words or self.words[0] in ("echo", "export", "which", "command"):
            return False
        first = self.words[1:] if self.words[0] == "exec" else self.words
        is_script = first and base_name(first[0]) in SHELLS and _has_file(first)
        return bool(_LAUNCHER.search(self.text)) or bool(is_script)


def _has_file(words: tuple[str, ...]) -> bool:
    return any(each.endswith(".sh") for each in words[1:])


def base_name(word: str) -> str:
    """The name of a program, wherever it lies."""
    return word.rsplit("/", 1)[-1]


def statements(script: str) -> list[Statement]:
    text = _HEREDOC.sub("\n", script[:_MAX]).replace("\\\n", " ")
    text = re.sub(r"(?m)(^|\s)#[^\n]*", r"\1", text)
    text = _REDIRECTION.sub(" ", text)
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        return []
    found: list[Statement] = []
    open_words: list[str] = []
    for word in words:
        joint = _joint(word)
        if joint is None:
            open_words.append(word)
        elif open_words:
            found.append(Statement(tuple(open_words), joint))
            open_words = []
    return [*found, Statement(tuple(open_words), "")] if open_words else found


def _joint(word: str) -> str | None:
    if word in _JOINTS:
        return word
    return ";" if word and set(word) <= {";"} else None


def stops_at_errors(script: str) -> bool:
    return (
        re.search(r"(?m)^\s*set\s+(?:-\w+\s+)*-\w*e|set -o errexit|^#!.*\s-\w*e", script)
        is not None
    )


def has_pipefail(script: str) -> bool:
    return "pipefail" in script or "PIPESTATUS" in script
