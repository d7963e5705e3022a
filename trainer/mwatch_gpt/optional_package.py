# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Packages that only some input asks for, and what to say where one is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mwatch_gpt.bad_input import BadInput


def package(name: str, reason: str) -> Any:
    """BadInput with the command that brings it."""
    try:
        return import_module(name)
    except ImportError:
        raise BadInput(f"{reason} needs the package {name}: pip install 'mwatch[data]'") from None
