# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The clients of the API server and of pods belong to the controller and the commands: the sidecar
never loads them."""

from __future__ import annotations

import subprocess
import sys

import pytest

_CODE = "import sys; {0}; print(*{{'kubernetes', 'urllib3'}} & set(sys.modules))"


@pytest.mark.parametrize(
    "statement",
    [
        "import mwatch.sidecar.sidecar",
        "import mwatch.run.assemble",
        "from mwatch.cli.program import program; program()",
    ],
)
def test_they_are_not_loaded_by(statement: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CODE.format(statement)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == ""
