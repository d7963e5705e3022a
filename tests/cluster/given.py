# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster that the user has (kind, k3s), in the place of the one that is made here.

`MWATCH_TEST_KUBECONFIG` names it, `MWATCH_TEST_IMAGES` the images that its nodes can pull:
`mwatch=REF,trainer=REF`. The first is ours; the second is one in which `python3 -m mwatch_gpt`
runs. Tests that need more than the API (programs beside the API server, the node itself) are
skipped, and say so.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cluster.control_plane import ControlPlane
from cluster.kubectl import Kubectl
from cluster.missing import KUBECONFIG

IMAGES = "MWATCH_TEST_IMAGES"
_KNOWN = ("mwatch", "trainer")
_SECONDS = 240.0


def is_given() -> bool:
    return bool(os.environ.get(KUBECONFIG))


def given_images() -> dict[str, str]:
    """By name; empty where the user named none. ValueError for what cannot be read."""
    pairs = [each.strip() for each in os.environ.get(IMAGES, "").split(",") if each.strip()]
    named = dict(each.partition("=")[::2] for each in pairs)
    for name, reference in named.items():
        if name not in _KNOWN or not reference:
            raise ValueError(f"{IMAGES} is mwatch=REF,trainer=REF; it has {name!r}")
    return named


class GivenPlane(ControlPlane):
    """Its API server. Nothing is started beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kubeconfig = Path(os.environ[KUBECONFIG]).absolute()
        self.environment = dict(os.environ)
        self.kubectl = Kubectl("kubectl", self._kubeconfig)

    def kubeconfig(self, who: str) -> Path:
        if who != "admin":
            pytest.skip(f"no {who} is known of a cluster that was given")
        return self._kubeconfig

    def run(self, program: str, *words: str) -> None:
        pytest.skip(f"{program} runs only beside an API server that is made here")

    def wait_for(self, what: str, *words: str, says: str = "") -> None:
        until = time.monotonic() + _SECONDS
        while (answer := self.kubectl.answer(*words)) is None or says not in answer:
            assert time.monotonic() < until, f"no {what} after {_SECONDS:.0f} s"
            time.sleep(0.2)

    def close(self) -> None:
        """It is the user's."""
