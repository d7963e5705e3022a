# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Shells around the trainer: exit codes that they hide, and signals that they keep.

The statements of a shell script, as far as they can be told without running it.

Loops, functions, conditions and here-documents are read as plain statements, so what is found is
a reason to look, and what is not found is no proof.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from mwatch.checks.pods import training
from mwatch.model.checks.check import Check, CheckHit, CheckLevel
from mwatch.model.checks.workload import Path, Replica, Workload

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


_DEFAULT_GRACE = 30
_HIDING = {"true", ":", "echo"}
_TRAP = re.compile(r"\btrap\b[^\n]*\b(?:SIG)?TERM\b")
_OPENING = frozenset({"if", "while", "until", "for", "case"})
_CLOSING = frozenset({"fi", "done", "esac"})
_BEFORE = frozenset({"then", "else", "do", "{", "!", "time"})
_KEYWORDS = _CLOSING | {"then", "else", "do", "}", ")"}


def _masked(workload: Workload) -> Iterator[CheckHit]:
    for each in training(workload):
        path = (*each.container_path, "command")
        for script in each.scripts:
            found = statements(script)
            depth = 0
            for index, statement in enumerate(found):
                depth = max(0, depth + _opened(statement))
                if statement.launches:
                    rest = found[index + 1 :]
                    yield from _after(path, each, script, statement, rest, is_inner=depth > 0)


def _opened(statement: Statement) -> int:
    """How many conditions, loops and functions it begins, less those that it ends."""
    words = list(statement.words)
    braces = sum(each == "{" or each.endswith("(){") for each in words) - words.count("}")
    while len(words) > 1 and words[0] in _BEFORE:
        del words[0]
    return braces + int(words[0] in _OPENING) - int(words[0] in _CLOSING)


def _after(
    path: Path,
    replica: Replica,
    script: str,
    launch: Statement,
    rest: list[Statement],
    *,
    is_inner: bool,
) -> Iterator[CheckHit]:
    """`is_inner`: in a function or a condition, so what is written next need not come next."""
    if launch.joint in ("|", "|&") and not has_pipefail(script):
        sink = rest[0].words[0] if rest else "another command"
        yield CheckHit(
            path,
            f"{replica.name}: the exit code of training is lost in '| {sink}': a crash is reported "
            "as Succeeded",
            "begin the script with: set -o pipefail",
        )
    elif launch.joint == "||" and rest and rest[0].words[0] in _HIDING:
        yield CheckHit(
            path,
            f"{replica.name}: '|| {rest[0].words[0]}' hides the exit code of training",
            "take it away",
        )
    elif is_inner or launch.joint != ";" or not rest:
        return
    elif not stops_at_errors(script) and not _keeps_code(rest):
        yield CheckHit(
            path,
            f"{replica.name}: {_last(rest)} comes after training and sets the exit code",
            "begin the script with: set -e",
        )


def _last(rest: list[Statement]) -> str:
    word = rest[-1].words[0]
    return "more" if word in _KEYWORDS else f"'{word}'"


def _keeps_code(rest: list[Statement]) -> bool:
    """The code is taken down, and given back; or training is not the end of the story."""
    text = " ".join(each.text for each in rest)
    return "$?" in text or any(each.words[0] == "exec" or each.launches for each in rest)


def _first_process(workload: Workload) -> Iterator[CheckHit]:
    for each in training(workload):
        if each.is_wrapped or not each.words or base_name(each.words[0]) not in SHELLS:
            continue
        found = statements(each.scripts[0]) if each.scripts else []
        if found and (found[-1].words[0] == "exec" or _TRAP.search(each.scripts[0])):
            continue
        gives_way = base_name(each.words[0]) == "bash" and each.words[1] == "-c" and _is_plain(each)
        if gives_way and len(found) == 1:
            continue  # bash becomes a command that is alone
        how = "may stay process 1 (bash before 5.1 does)" if gives_way else "is process 1"
        yield CheckHit(
            (*each.container_path, "command"),
            f"{each.name}: the shell {how} and drops SIGTERM: a deleted pod waits for the "
            "whole grace period, is killed, and saves nothing",
            "begin the last command with exec, or use mwatch inject",
        )


def _is_plain(replica: Replica) -> bool:
    """The last thing is one command, and no shell again: nothing is piped, redirected or tested."""
    text = replica.scripts[0] if replica.scripts else ""
    last = statements(text)[-1:]
    if not last or last[0].joint not in ("", ";") or last[0].words[0] in _KEYWORDS:
        return False
    line = text.rstrip().replace("\\\n", " ").rsplit("\n", 1)[-1]
    return base_name(last[0].words[0]) not in (*SHELLS, "source", ".") and not set(line) & set(
        "<>|(){}"
    )


def _grace(workload: Workload) -> Iterator[CheckHit]:
    for each in training(workload):
        grace = each.pod.get("terminationGracePeriodSeconds", _DEFAULT_GRACE)
        saves = "--exit-signal-handler" in each.arguments
        if saves and isinstance(grace, int) and grace <= _DEFAULT_GRACE:
            yield CheckHit(
                (*each.path, "spec", "terminationGracePeriodSeconds"),
                f"{each.name} saves on SIGTERM, and has {grace} s for a step and a save",
                "set terminationGracePeriodSeconds above both, 300 for a large model",
            )


CHECKS = (
    Check("exit-code", CheckLevel.ERROR, "the exit code of training is the container's", _masked),
    Check("first-process", CheckLevel.WARNING, "SIGTERM reaches the trainer", _first_process),
    Check("grace-period", CheckLevel.WARNING, "there is time to save on SIGTERM", _grace),
)
