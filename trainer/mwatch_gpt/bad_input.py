# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The errors of the data tools that are meant for the user, each in one line."""

from __future__ import annotations


class BadInput(ValueError):
    """What is wrong with the input, in one line."""


class Disturbed(RuntimeError):
    """The machine's doing and not the input's: the same command goes on when it is mended."""
