# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Many questions at the same time: one that fails or hangs takes nothing from the others."""

from __future__ import annotations

import threading
import time

from mwatch.errors import InputError
from mwatch.runtime.fanout import MOST_WORKERS, TimedOut, gather


def refuse() -> None:
    raise InputError("no right")


def break_down() -> None:
    raise KeyError("items")


def test_all_are_answered_whoever_fails() -> None:
    told = gather({"a": lambda: 1, "b": refuse, "c": break_down}, seconds=60.0)
    assert told["a"] == 1
    assert isinstance(told["b"], TimedOut) and told["b"].why == "no right"
    assert isinstance(told["b"].error, InputError)
    assert told["c"] == TimedOut("KeyError: 'items'")


def test_nothing_to_ask_is_answered_at_once() -> None:
    assert gather({}, seconds=60.0) == {}


def test_one_that_hangs_is_missed_and_the_others_are_not() -> None:
    release = threading.Event()
    began = time.monotonic()
    told = gather({"hangs": release.wait, "a": lambda: 1}, seconds=3.0)
    took = time.monotonic() - began
    release.set()
    assert told["a"] == 1
    assert isinstance(told["hangs"], TimedOut) and "no answer" in told["hangs"].why
    assert took < 30


def test_sixty_four_that_do_not_answer_cost_the_time_of_one() -> None:
    together = threading.Barrier(MOST_WORKERS)  # all of them wait for all of them
    asks = {str(number): lambda: together.wait(60.0) for number in range(MOST_WORKERS)}
    told = gather(asks, seconds=60.0)
    assert sorted(told.values()) == list(range(MOST_WORKERS))


def test_there_are_never_more_askers_than_so_many() -> None:
    lock, release, now, most = threading.Lock(), threading.Event(), 0, 0

    def ask() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
            if now == MOST_WORKERS:
                release.set()
        release.wait(60.0)
        with lock:
            now -= 1

    told = gather({str(number): ask for number in range(3 * MOST_WORKERS)}, seconds=60.0)
    assert set(told.values()) == {None}
    assert most == MOST_WORKERS
