# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The errors of the data tools that are meant for the user, each in one line.

Packages that only some input asks for, and what to say where one is missing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class BadInput(ValueError):
    """What is wrong with the input, in one line."""


class Disturbed(RuntimeError):
    """The machine's doing and not the input's: the same command goes on when it is fixed."""


def package(name: str, reason: str) -> Any:
    """BadInput with the command that brings it."""
    try:
        return import_module(name)
    except ImportError:
        raise BadInput(f"{reason} needs the package {name}: pip install 'mwatch[data]'") from None
