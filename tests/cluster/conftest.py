# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster that the tests of this folder run on: made here, or one that the user has.

`MWATCH_TEST_KUBECONFIG` names a cluster that is there already (kind, k3s); its images are named
by `MWATCH_TEST_IMAGES`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster import operator
from cluster.binaries import GoMissing, prepare
from cluster.control_plane import ControlPlane
from cluster.images import mwatch_image, trainer_image
from cluster.kubectl import Kubectl
from cluster.node import Node
from debian_tools import ToolMissing

GIVEN = "MWATCH_TEST_KUBECONFIG"


@contextmanager
def _plane() -> Iterator[ControlPlane]:
    if os.geteuid() != 0:
        pytest.exit(f"a cluster for the tests needs root; or name one that you have in {GIVEN}", 2)
    with tempfile.TemporaryDirectory(prefix="mwatch-cluster-") as folder:
        try:
            prepare()
            plane = ControlPlane(Path(folder))
        except (GoMissing, ToolMissing) as error:
            pytest.exit(f"{error}; or name a cluster that you have in {GIVEN}", 2)
        try:
            with plane.namespaces.inside():
                plane.start()
                yield plane
        finally:
            plane.close()


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """An API server without nodes or controllers."""
    with _plane() as made:
        yield made


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Kubectl:
    """A cluster that runs pods: the same API server, with all the rest."""
    given = os.environ.get(GIVEN)
    if given:
        return Kubectl("kubectl", Path(given))
    made: ControlPlane = request.getfixturevalue("plane")
    made.start_controllers()
    node = Node(made)
    node.start()
    for image in (mwatch_image(made.folder), trainer_image(made.folder)):
        node.load(image)
    operator.install(made, node)
    return made.kubectl
