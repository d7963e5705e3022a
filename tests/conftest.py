# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures for every test folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from debian_tools import ToolMissing, debian_tool


@pytest.fixture(scope="session")
def mtail() -> Path:
    """The real mtail, an independent reader of the same logs."""
    try:
        return debian_tool("mtail", "mtail")
    except ToolMissing as error:
        pytest.skip(str(error))
