# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Read flags and values of a training command from a command line or a shell script.

A script is split into words, not run. Variables are substituted from the container's environment
and from plain assignments in the script. Loops, functions and computed names stay unknown, as does
a variable that a script with branches assigns twice.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

SHELLS = ("bash", "sh", "dash", "zsh", "ksh", "ash")
MAX_SCRIPT = 400_000
_TEXT_FLAG = re.compile(r"-[a-zA-Z]*c[a-zA-Z]*", re.ASCII)
_ASSIGNMENT = re.compile(
    r"""(?m)(?:^|[;&(]|\b(?:export|local|readonly|declare)\s)\s*([A-Za-z_]\w*)=("[^"\n]*"|'[^'\n]*'|[^\s;&|()]*)"""
)
_VARIABLE = re.compile(
    r"\$(?:\{(\w+)(?::?-([^}]*))?\}|\((\w+)\)|(\w+))", re.ASCII
)  # ${A}, ${A:-b}, $(A) of Kubernetes, $A
_BRANCH = re.compile(r"(?m)(?:^|;)\s*(?:if|case|elif|else)\b")
_FLAG = re.compile(r"--[A-Za-z][\w.-]*", re.ASCII)
_KEYED = re.compile(r"(?:--)?[A-Za-z_][\w.-]*", re.ASCII)
"""The name in `--flag=`, or in Composer's `key=`."""
_ROUNDS = 8
_PUNCTUATION = frozenset("();<>|&")
LAUNCHERS = re.compile(
    r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|composer|deepspeed|accelerate launch"
    r"|ft_launcher|hyperpodrun|llmfoundry|pretrain_\w+\.py|mwatch_gpt)\b"
)


def base_name(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def shell_script(words: Sequence[str]) -> str | None:
    if not words or base_name(words[0]) not in SHELLS:
        return None
    for index, word in enumerate(words[1:], 1):
        if _TEXT_FLAG.fullmatch(word):
            return words[index + 1] if index + 1 < len(words) else None
        if not word.startswith(("-", "+")):
            return None
    return None


def script_file(words: Sequence[str]) -> str | None:
    """FILE of the commands `bash FILE` and `./FILE.sh`."""
    if not words:
        return None
    if words[0].endswith(".sh"):
        return words[0]
    if base_name(words[0]) in SHELLS:
        return next((each for each in words[1:] if not each.startswith(("-", "+"))), None)
    return None


def called_files(script: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"(?<![\w=:-])(/[\w./-]+\.sh)\b", script)))


def variables(script: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment, overridden by the script's assignments; the last assignment wins."""
    known, doubtful = dict(environment), set[str]()
    assigned: dict[str, str] = {}
    for name, value in _ASSIGNMENT.findall(script[:MAX_SCRIPT]):
        raw = value[1:-1] if value[:1] in "\"'" and value[:1] == value[-1:] and value else value
        if raw.startswith("("):
            continue
        known[name] = filled(raw, known)
        if assigned.setdefault(name, known[name]) != known[name]:
            doubtful.add(name)
    if not has_branches(script):
        return known
    return {name: value for name, value in known.items() if name not in doubtful}


def has_branches(script: str) -> bool:
    return _BRANCH.search(script[:MAX_SCRIPT]) is not None


def filled(text: str, known: Mapping[str, str]) -> str:
    for _ in range(_ROUNDS):
        done = _VARIABLE.sub(lambda found: _value(found, known), text)
        if done == text:
            break
        text = done
    return text


def _value(found: re.Match[str], known: Mapping[str, str]) -> str:
    name = found.group(1) or found.group(3) or found.group(4)
    if known.get(name):
        return known[name]
    return found.group(2) if found.group(2) is not None else found.group(0)


def words_of(script: str) -> list[str]:
    """All words of a script, without comments; split at blanks if its quotes do not match."""
    text = re.sub(r"(?m)(^|\s)#[^\n]*", r"\1", script[:MAX_SCRIPT]).replace("\\\n", " ")
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:
        return text.split()


def arguments(
    words: Iterable[str], known: Mapping[str, str], *, is_branched: bool = False
) -> dict[str, str | None]:
    """Flags, each with its last value; None: no value, or an unknown one. `is_branched`: a flag
    with two different values counts as unknown."""
    found: dict[str, str | None] = {}
    for name, value in _pairs(words, known):
        is_other = is_branched and name in found and found[name] != value
        found[name] = None if is_other else value
    return found


def _pairs(words: Iterable[str], known: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    flag: str | None = None
    for word in words:
        name, equals, value = word.partition("=")
        is_end = set(word) <= _PUNCTUATION
        if flag is not None and (is_end or _is_flag(name, equals)):
            yield flag, None
            flag = None
        if is_end:
            continue
        if _is_flag(name, equals):
            if equals:
                yield name, _settled(value, known)
            else:
                flag = name
        elif flag is not None:
            yield flag, _settled(word, known)
            flag = None
    if flag is not None:
        yield flag, None


def _is_flag(name: str, equals: str) -> bool:
    return bool((_FLAG if not equals else _KEYED).fullmatch(name))


def _settled(value: str, known: Mapping[str, str]) -> str | None:
    value = filled(value, known)
    return value if value and not set(value) & {"$", "`"} else None
