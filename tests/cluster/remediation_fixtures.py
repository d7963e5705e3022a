# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The API server with all kinds of jobs that can be restarted, and a namespace for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster import kube_things as things
from cluster.control_plane import ControlPlane
from mwatch.gang import plan
from mwatch.kube.access import Access


@pytest.fixture(scope="session", name="all_kinds")
def kinds(plane: ControlPlane) -> ControlPlane:
    access = things.client(plane)
    things.install_crds(access)
    access.close()
    return plane


@pytest.fixture(name="access")
def an_access(all_kinds: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Iterator[Access]:
    # The Jobs of these tests are marked so that no controller of the cluster makes pods for them.
    monkeypatch.setattr(plan, "OUR_OWN", (*plan.OUR_OWN, things.MANAGER))
    made = things.client(all_kinds)
    yield made
    made.close()


@pytest.fixture(name="namespace")
def a_namespace(access: Access) -> str:
    return things.fresh_namespace(access)
