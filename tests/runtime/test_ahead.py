# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Items made by a second process arrive in order; it ends with them, and whenever we stop."""

from __future__ import annotations

import io
import os
import pickle
import signal
from collections.abc import Iterator

import pytest

from mwatch.errors import InputError
from mwatch.runtime.ahead import _received, run_ahead


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def is_gone(process: int) -> bool:
    return not os.path.exists(f"/proc/{process}")


def makers(count: int) -> Iterator[int]:
    """Yield the process that makes each item."""
    for _ in range(count):
        yield os.getpid()


def test_another_process_makes_the_items() -> None:
    made = list(run_ahead(makers(3)))
    assert len(made) == 3
    assert os.getpid() not in made
    assert is_gone(made[0])


def test_large_items_arrive_whole_and_in_order() -> None:
    items = [bytes([number]) * (3 << 20) for number in range(5)]
    assert list(run_ahead(items)) == items


def test_an_error_is_raised_after_the_items_before_it() -> None:
    def broken() -> Iterator[int]:
        yield os.getpid()
        raise InputError("x.log: is a folder")

    items = run_ahead(broken())
    maker = next(items)
    with pytest.raises(InputError, match=r"x\.log: is a folder"):
        next(items)
    assert is_gone(maker)


def test_a_process_that_makes_nothing_for_long_is_ended_when_we_stop() -> None:
    def endless() -> Iterator[int]:
        yield os.getpid()
        signal.pause()

    items = run_ahead(endless())
    maker = next(items)
    items.close()  # type: ignore[attr-defined]
    assert is_gone(maker)


def test_it_leaves_an_interrupt_to_us() -> None:
    def interrupted() -> Iterator[int]:
        os.kill(os.getpid(), signal.SIGINT)
        yield 7

    assert list(run_ahead(interrupted())) == [7]


def test_a_process_that_was_killed_is_reported() -> None:
    def killed() -> Iterator[int]:
        yield 1
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(InputError, match="was killed"):
        list(run_ahead(killed()))


def test_a_process_that_was_killed_within_an_item_is_reported() -> None:
    cut = io.BytesIO(pickle.dumps(bytes(100))[:50])
    with pytest.raises(InputError, match="was killed"):
        list(_received(cut))


def test_with_one_core_or_without_a_process_we_make_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert list(run_ahead(makers(1))) == [os.getpid()]

    def refused() -> int:
        raise OSError("no more processes")

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "fork", refused)
    assert list(run_ahead(makers(1))) == [os.getpid()]
