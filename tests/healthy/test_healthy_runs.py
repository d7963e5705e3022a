# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""No odd but healthy run is restarted, and those for which a restart is right only so often."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from healthy.runs import HealthyRun, Outcome, carry_out, table

_AT_ONCE = int(os.environ.get("HEALTHY_AT_ONCE", "32"))
"""They mostly sleep: two cores carry so many."""


@pytest.fixture(scope="session")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Outcome]]]:
    """All runs that were asked for, side by side; the longest begin first."""
    rows = [
        each.callspec.params["run"]
        for each in request.session.items
        if isinstance(each, pytest.Function) and hasattr(each, "callspec")
    ]
    wanted = [each for each in rows if isinstance(each, HealthyRun)]
    folder = tmp_path_factory.mktemp("healthy")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield {
            each.name: pool.submit(carry_out, each, folder / f"{number:02d}")
            for number, each in enumerate(wanted)
        }


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("run", table(), ids=lambda run: run.name)
def test_it_is_left_alone(run: HealthyRun, outcomes: dict[str, Future[Outcome]]) -> None:
    outcome = outcomes[run.name].result()
    print(outcome.text)
    assert outcome.code == 0, outcome.text
    # At most: the start of a process takes longer on a busy machine, and so does a restart.
    assert len(outcome.acts) <= run.restarts, outcome.text
    assert outcome.attempts == 1 + len(outcome.acts), outcome.text
