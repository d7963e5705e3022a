# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Placeholders that somebody forgot to fill in: Helm's `{{ }}` and the `$VAR` of envsubst.

A shell's text may hold both and mean it; elsewhere Kubernetes knows neither, only `$(VAR)` in
commands and variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mwatch.manifests.shell_text import SHELLS, base
from mwatch.manifests.stream import RENDER
from mwatch.model.checks.workload import Path

ENVSUBST = "fill it in first (envsubst < FILE) and give what comes out with -f -"
_HELM = re.compile(r"\{\{.*?\}\}")
_SHELL_STYLE = re.compile(r"\$(?:\{\w+\}|[A-Z_]\w*)", re.ASCII)
_WORDS = ("command", "args")
_ANYTHING = ("annotations", "data", "stringData", "postStart", "preStop", "exec")


def unrendered(content: Any) -> Iterator[tuple[Path, str]]:
    """Where, and what to do about it."""
    for path, text in _texts(content, ()):
        if _HELM.search(text):
            yield path, f"{text[:40]!r} is a template's placeholder; {RENDER}"
        elif found := _placeholder(path, text):
            yield path, f"{found.group(0)} is a placeholder for envsubst; {ENVSUBST}"


def _placeholder(path: Path, text: str) -> re.Match[str] | None:
    """A variable's value may hold a dollar for somebody else; alone it is a placeholder."""
    if path[-1] == "value":
        return _SHELL_STYLE.fullmatch(text)
    return _SHELL_STYLE.search(text)


def _texts(node: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(node, Mapping):
        is_shell = _is_shell(node)
        for key, value in node.items():
            if isinstance(key, Mapping):
                yield path, "{{ }}"  # which is YAML for a mapping in the place of a key
                continue
            if key in _ANYTHING or (key in _WORDS and is_shell):
                continue
            yield from _texts(value, (*path, str(key)))
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for index, value in enumerate(node):
            yield from _texts(value, (*path, index))
    elif isinstance(node, str):
        yield path, node


def _is_shell(container: Mapping[Any, Any]) -> bool:
    command = container.get("command")
    if isinstance(command, str) or not isinstance(command, Sequence) or not command:
        return False
    return any(base(str(each)) in SHELLS for each in command[:8])
