# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How `make test` shares the tests among its workers (pytest-xdist).

A file of tests stays in one worker, so that its module fixtures are made once. So does a folder
whose session fixture is dear: a process with torch loaded, a server that holds a real run, a
browser. What takes long begins first: a long file that begins last is waited for by everyone.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_TOGETHER = ("tests/gpt", "tests/monitoring", "tests/browser")
"""Each of these folders has one dear session fixture. Two trainings at once would also make each
other slow, and some tests wait for steps."""
_FIRST = (
    "tests/gpt", "tests/monitoring", "tests/cli/test_demo_command.py", "tests/browser", "tests/run",
    "tests/cli", "tests/trainer/probe", "tests/sidecar", "tests/trainer", "tests/charts",
    "tests/megatron_chart", "tests/sim",
)  # fmt: skip
"""By the seconds that they take."""


def unit(nodeid: str) -> str:
    """What stays in one worker."""
    file = nodeid.partition("::")[0]
    folders = {str(each) for each in PurePosixPath(file).parents}
    return next((each for each in _TOGETHER if each in folders), file)


def turn(nodeid: str) -> int:
    """Tests are begun by rising turns."""
    file = PurePosixPath(nodeid.partition("::")[0])
    places = {str(file), *map(str, file.parents)}
    return next((index for index, each in enumerate(_FIRST) if each in places), len(_FIRST))


def scheduler(config: pytest.Config, log: object) -> Any:
    """xdist's own for whole files, with our units and in our order."""
    config.option.loadscopereorder = False  # it would begin with the files of many small tests
    made = LoadScopeScheduling(config, log)
    made._split_scope = unit
    return made


def in_turn(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    return sorted(items, key=lambda each: turn(each.nodeid))
