# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures for every test folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.debian_tools import ToolMissing, debian_tool
from support.signals import give_children_default_signals
from support.workers import in_turn, scheduler

# They need root and Go, or minutes: `make test-cluster` and `make test-healthy` run them.
_ASKED_FOR = {"cluster": "MWATCH_CLUSTER_TESTS", "healthy": "MWATCH_HEALTHY_TESTS"}
collect_ignore = [folder for folder, name in _ASKED_FOR.items() if not os.environ.get(name)]

# How fast examples are made says how busy the machine is, nothing about the code.
settings.register_profile(
    "suite", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = in_turn(items)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Any:
    return scheduler(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def default_signals_of_children() -> None:
    give_children_default_signals()


@pytest.fixture(scope="session")
def mtail() -> Path:
    """The real mtail, an independent reader of the same logs."""
    try:
        return debian_tool("mtail", "mtail")
    except ToolMissing as error:
        pytest.skip(str(error))
