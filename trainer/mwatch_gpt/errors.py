# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Errors of the data tools that are shown to the user in one line."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class BadInput(ValueError):
    pass


class Disturbed(RuntimeError):
    """A fault of the machine, not of the input: the same command continues when it is fixed."""


def package(name: str, reason: str) -> Any:
    """Import an optional package. Raises BadInput with the command that installs it."""
    try:
        return import_module(name)
    except ImportError:
        raise BadInput(f"{reason} needs the package {name}: pip install 'mwatch[data]'") from None
