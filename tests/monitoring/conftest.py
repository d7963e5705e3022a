# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One watched run for all tests of this folder: it takes most of a minute."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from monitoring.watched_run import Watched, watched_run
from support.debian_tools import ToolMissing, debian_tool


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    if any(importlib.util.find_spec(name) is None for name in ("torch", "megatron")):
        pytest.skip("the small trainer is not installed: pip install 'mwatch[demo]'")
    try:
        debian_tool("prometheus", "prometheus")
        debian_tool("prometheus-alertmanager", "prometheus-alertmanager")
    except ToolMissing as error:
        pytest.skip(str(error))
    with watched_run(tmp_path_factory.mktemp("watched")) as found:
        yield found
