# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes client is for the controller and for people: the sidecar never loads it."""

from __future__ import annotations

import subprocess
import sys

import pytest

_CODE = "import sys, mwatch.{0}; print([n for n in sys.modules if n.startswith('kubernetes')])"


@pytest.mark.parametrize("module", ["sidecar.sidecar", "run.assemble", "cli.main"])
def test_it_is_not_loaded_by(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CODE.format(module)],
        capture_output=True,
        text=True,
        timeout=25,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == "[]"
