# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Manifests as plain data, and as the trees of ruamel.yaml, which keep comments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ruamel.yaml.comments import CommentedMap, CommentedSeq


def tree(value: Any) -> Any:
    """Convert plain data to ruamel.yaml's types, which keep comments."""
    if isinstance(value, Mapping):
        made = CommentedMap()
        for key, each in value.items():
            made[key] = tree(each)
        return made
    if isinstance(value, list | tuple):
        return CommentedSeq([tree(each) for each in value])
    return value


def plain(value: Any) -> Any:
    """Convert to plain data, without comments and ruamel.yaml's own strings and numbers."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return str(value)  # a date, which is a string in Kubernetes
