# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster that somebody interrupts: brings one up, says so, and waits for its end.

Run by `test_rig_leaves_nothing`, through the very fixtures that the tests use:
`pytest cluster/leaving.py` with `MWATCH_LEAVING` saying how far it shall come.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from cluster import control_plane
from cluster.control_plane import ControlPlane
from cluster.node import PAUSE

FAR = "MWATCH_LEAVING"
READY = "MWATCH_LEAVING_READY"


@pytest.mark.timeout(1200)
def test_waits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    how_far = os.environ[FAR]
    if how_far == "failing":
        monkeypatch.setattr(control_plane, "READY_SECONDS", 0.3)
    plane: ControlPlane = request.getfixturevalue("plane")
    if how_far == "pod":
        request.getfixturevalue("node")
        _run_a_pod(plane)
    Path(os.environ[READY]).write_text(str(plane.folder))
    threading.Event().wait(600)


def _run_a_pod(plane: ControlPlane) -> None:
    container = {"name": "one", "image": PAUSE, "imagePullPolicy": "IfNotPresent"}
    meta = {"name": "one", "namespace": "default"}
    plane.kubectl.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}
    )
    plane.kubectl("wait", "--for=condition=Ready", "pod/one", "--timeout=240s", seconds=250)
