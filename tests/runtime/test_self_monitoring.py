# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Faults of mwatch itself: told once for each place, and survived."""

from __future__ import annotations

from mwatch.runtime.self_monitoring import InternalErrors


def fails(text: str) -> None:
    raise KeyError(text)


def test_a_fault_is_reported_once_for_each_place_and_survived() -> None:
    said: list[str] = []
    faults = InternalErrors(said.append)
    for number in range(100):
        with faults.guard():
            fails(f"{number}")
    with faults.guard():
        raise ValueError("x" * 10_000)
    assert len(said) == 2
    assert "test_self_monitoring.py" in said[0]
    assert "KeyError: '0'" in said[0]
    assert "the training goes on" in said[0]
    assert len(said[1]) < 1000


def test_an_interrupt_is_no_fault() -> None:
    faults = InternalErrors(lambda text: None)
    try:
        with faults.guard():
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        return
    raise AssertionError("it was swallowed")
