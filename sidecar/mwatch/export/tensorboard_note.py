# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One note for TensorBoard: a number or a text at an iteration."""

from __future__ import annotations

from typing import NamedTuple


class Note(NamedTuple):
    tag: str
    step: int
    """The iteration."""
    at: float
    value: float | str
