# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The state of the probes is computed once per evaluation, and again in the next one."""

from __future__ import annotations

from mwatch.detect.shared.probe import one_evaluation, probed_ranks
from mwatch.model.job import Job, SourceStatus
from mwatch.model.observation import Source
from mwatch.model.settings import Settings
from support.builders import job as build

SETTINGS = Settings()


def job() -> Job:
    made = build.job([build.step(number) for number in range(1, 11)])
    made.sources[Source.PROBE] = SourceStatus(True, build.START, "seen")
    made.attempt.ranks = {rank: build.rank(rank, 10, at=made.now) for rank in (0, 1)}
    return made


def test_within_one_evaluation_it_is_computed_once_for_each_job() -> None:
    first, second = job(), job()
    with one_evaluation():
        assert probed_ranks(first, SETTINGS) is probed_ranks(first, SETTINGS)
        assert probed_ranks(first, SETTINGS) is not probed_ranks(second, SETTINGS)


def test_a_look_within_a_look_shares_what_is_known() -> None:
    one = job()
    with one_evaluation():
        known = probed_ranks(one, SETTINGS)
        with one_evaluation():
            assert probed_ranks(one, SETTINGS) is known
        assert probed_ranks(one, SETTINGS) is known


def test_the_next_look_sees_what_has_changed() -> None:
    one = job()
    with one_evaluation():
        assert len(probed_ranks(one, SETTINGS).beating) == 2
    del one.attempt.ranks[1]
    assert len(probed_ranks(one, SETTINGS).beating) == 1
    with one_evaluation():
        assert len(probed_ranks(one, SETTINGS).beating) == 1
