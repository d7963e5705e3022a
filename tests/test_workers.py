# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How the tests are shared among the workers of `make test`: `support.workers`."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import workers
from support.workers import turn, unit

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("nodeid", "together"),
    [
        ("tests/gpt/test_faults.py::test_one", "tests/gpt"),
        ("tests/monitoring/test_panel_data.py::test_one[a / b::c]", "tests/monitoring"),
        (
            "tests/parse/lines/test_transport.py::test_one[::]",
            "tests/parse/lines/test_transport.py",
        ),
    ],
)
def test_a_file_stays_in_one_worker_and_so_does_a_folder_with_a_dear_fixture(
    nodeid: str, together: str
) -> None:
    assert unit(nodeid) == together


def test_what_takes_long_begins_first() -> None:
    ids = ["tests/detect/test_oom.py::a", "tests/cli/test_version.py::a", "tests/gpt/test_x.py::a"]
    assert sorted(ids, key=turn) == ids[::-1]
    assert turn("tests/cli/test_demo_command.py::a") < turn("tests/cli/test_version.py::a")


def test_the_order_names_only_what_there_is() -> None:
    assert [
        each for each in (*workers._TOGETHER, *workers._FIRST) if not (ROOT / each).exists()
    ] == []
