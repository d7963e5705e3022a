# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures for every test folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.debian_tools import ToolMissing, debian_tool

# They need root and Go: `make test-cluster` runs them.
collect_ignore = [] if os.environ.get("MWATCH_CLUSTER_TESTS") else ["cluster"]


@pytest.fixture(scope="session")
def mtail() -> Path:
    """The real mtail, an independent reader of the same logs."""
    try:
        return debian_tool("mtail", "mtail")
    except ToolMissing as error:
        pytest.skip(str(error))
