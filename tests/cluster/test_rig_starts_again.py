# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A part of the cluster that dies while it starts is started again, and the output says so."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import namespaces
from cluster.missing import KUBECONFIG
from cluster.namespaces import ClusterBroken, Namespaces

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(os.environ.get(KUBECONFIG)), reason="nothing is made here"),
]
DIES = """
echo "$(($(cat starts 2>/dev/null || echo 0) + 1))" > starts
if [ "$(cat starts)" -le "$1" ]; then echo "no room in podResources" >&2; exit 7; fi
grep SigIgn /proc/self/status > there.new && mv there.new there && exec sleep 600
"""
_SECONDS = 120.0


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespaces]:
    """The real ones, with no Kubernetes in them."""
    monkeypatch.setattr(namespaces, "restarted", [])
    opened = Namespaces(Path(tempfile.mkdtemp(prefix="mwr-")))
    yield opened
    opened.close()


def start(made: Namespaces, deaths: int) -> None:
    words = ["sh", "-c", DIES, "sh", str(deaths)]
    made.start("kubelet", words, {"PATH": os.environ["PATH"]})


def is_there(made: Namespaces) -> bool:
    return (made.folder / "there").exists()


@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_a_part_that_dies_while_starting_is_started_again(made: Namespaces, deaths: int) -> None:
    start(made, deaths)
    made.wait_for("node", lambda: is_there(made), _SECONDS)
    assert made.dead() is None
    assert (made.folder / "starts").read_text().strip() == str(deaths + 1)
    assert namespaces.restarted == [
        f"kubelet died while starting, started again ({number} of 2): no room in podResources"
        for number in range(1, deaths + 1)
    ]


def test_a_part_that_dies_three_times_is_broken(made: Namespaces) -> None:
    start(made, 3)
    with pytest.raises(ClusterBroken, match=r"kubelet died .* node.*podResources"):
        made.wait_for("node", lambda: is_there(made), _SECONDS)
    assert made.dead() == "kubelet"


def test_a_part_that_dies_after_its_start_is_not_started_again(
    made: Namespaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "_STARTING_SECONDS", 0.0)
    start(made, 1)
    with pytest.raises(ClusterBroken, match="podResources"):
        made.wait_for("node", lambda: is_there(made), _SECONDS)
    assert namespaces.restarted == []


def test_a_part_ignores_no_signal(made: Namespaces) -> None:
    start(made, 0)
    made.wait_for("node", lambda: is_there(made), _SECONDS)
    ignored = int((made.folder / "there").read_text().split()[1], 16)
    assert ignored & 0x4003 == 0  # SIGHUP, SIGINT, SIGTERM
