# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""When to save: Young, Daly, and a simulated run that agrees with them."""

from __future__ import annotations

import random

import pytest

from mwatch.plan import storage

HOUR = 3600.0


def test_young_and_daly_agree_where_a_save_is_short() -> None:
    assert storage.young(60, 24 * HOUR) == pytest.approx(3220, rel=0.001)
    assert storage.daly(60, 24 * HOUR) == pytest.approx(3220 - 60 + 20, rel=0.001)


def test_a_save_longer_than_two_failures_leaves_daly_no_choice() -> None:
    assert storage.daly(3 * HOUR, HOUR) == HOUR


def test_the_rate_of_llama_3_gives_a_failure_every_3_1_hours() -> None:
    between = storage.mean_time_between_failures(16384, storage.FAILURES_PER_1000_GPU_DAYS)
    assert between / HOUR == pytest.approx(3.1, rel=0.01)


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.25, 2.0])
def test_no_other_interval_has_a_better_goodput(factor: float) -> None:
    best = storage.daly(120, 3 * HOUR)
    top = storage.goodput(best, 120, 3 * HOUR, 600)
    assert storage.goodput(best * factor, 120, 3 * HOUR, 600) < top


def test_the_goodput_is_that_of_a_simulated_run() -> None:
    chance = random.Random(7)
    work, stall, between, recovery = 1800.0, 120.0, 3 * HOUR, 600.0
    done = clock = 0.0
    failure = chance.expovariate(1 / between)
    while done < 20_000 * work:
        if failure > work + stall:
            failure -= work + stall
            clock += work + stall
            done += work
        else:
            clock += failure
            failure = chance.expovariate(1 / between)
            while failure < recovery:  # it fails again while it comes back
                clock += failure
                failure = chance.expovariate(1 / between)
            clock += recovery
            failure -= recovery
    expected = storage.goodput(work, stall, between, recovery)
    assert done / clock == pytest.approx(expected, rel=0.01)


def test_a_save_in_the_background_is_never_begun_before_the_last_has_ended() -> None:
    found = storage.saving(stall=1, write=1000, between=HOUR, restart=300)
    assert found.interval_seconds == 999
    waiting = storage.saving(stall=1000, write=1000, between=HOUR, restart=300)
    assert waiting.goodput < found.goodput < 1


def test_hopeless_is_zero_and_no_overflow() -> None:
    assert storage.goodput(1e9, 1, 1, 1) == 0.0
    assert storage.goodput(1, 1, 1, 1e9) == 0.0
