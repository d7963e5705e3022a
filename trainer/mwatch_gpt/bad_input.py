# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The one error of the data tools that is meant for the user."""

from __future__ import annotations


class BadInput(ValueError):
    """What is wrong with the input, in one line."""
