# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""All but the tests of plain scripts need helm."""

from __future__ import annotations

import pytest

from support.repository.chart_renders import NO_HELM, helm


@pytest.fixture(scope="session", autouse=True)
def _helm_is_here(request: pytest.FixtureRequest) -> None:
    if helm() is None:
        pytest.skip(NO_HELM)
