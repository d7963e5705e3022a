# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What was observed, numbered: each reader gets each once, or is told that it missed something."""

from __future__ import annotations

import pytest

from mwatch.model.observation import AttemptStart, Beat, Observed, ProcessExit
from mwatch.sidecar.event_buffer import MAX_ANSWER_BYTES, MAX_CHARACTERS, MAX_ENTRIES, EventBuffer


def start(number: int) -> Observed:
    return Observed(float(number), "p", AttemptStart(number, None, None))


def encode(observed: Observed) -> bytes:
    what = observed.what
    return str(what.attempt).encode() if isinstance(what, AttemptStart) else b"x"


def ring_of(count: int) -> EventBuffer:
    ring = EventBuffer("life", encode)
    for number in range(1, count + 1):
        ring.add(start(number))
    return ring


def test_a_new_reader_gets_all_and_then_only_what_is_new() -> None:
    ring = ring_of(3)
    first = ring.after("")
    assert (first.bodies, first.gap) == ([b"1", b"2", b"3"], False)
    assert ring.after(first.cursor).bodies == []
    ring.add(start(4))
    assert ring.after(first.cursor).bodies == [b"4"]


def test_two_readers_do_not_disturb_each_other() -> None:
    ring = ring_of(2)
    early = ring.after("")
    ring.add(start(3))
    late = ring.after("")
    assert ring.after(early.cursor).bodies == [b"3"]
    assert ring.after(late.cursor).bodies == []


def test_who_was_away_too_long_learns_of_the_gap() -> None:
    ring = ring_of(2)
    cursor = ring.after("").cursor
    for number in range(3, MAX_ENTRIES + 10):
        ring.add(start(number))
    found = ring.after(cursor)
    assert found.gap
    assert len(found.bodies) == MAX_ENTRIES
    assert not ring.after(found.cursor).gap, "from then on nothing is missing"


@pytest.mark.parametrize("cursor", ["other.2", "life.99", "life.x", "nonsense", "life.-1", "99"])
def test_a_cursor_of_another_life_gets_all_and_is_informed(cursor: str) -> None:
    found = ring_of(3).after(cursor)
    assert (len(found.bodies), found.gap, found.after) == (3, True, 0)


def test_a_bare_number_is_a_cursor_too() -> None:
    assert ring_of(3).after("2").bodies == [b"3"]


def test_states_are_not_in_the_sequence() -> None:
    ring = ring_of(1)
    ring.add(Observed(2.0, "p", Beat(0, 1, 1, "compute", "a", 1, None)))
    assert len(ring.after("").bodies) == 1


def test_an_answer_is_bounded_and_the_rest_comes_next() -> None:
    ring = EventBuffer("life", lambda observed: bytes(MAX_ANSWER_BYTES // 3 + 1))
    for number in range(5):
        ring.add(start(number))
    first = ring.after("")
    assert len(first.bodies) == 2
    second = ring.after(first.cursor)
    third = ring.after(second.cursor)
    assert (len(second.bodies), len(third.bodies)) == (2, 1)
    assert not (second.gap or third.gap)


def test_long_texts_are_bounded_too() -> None:
    ring = ring_of(0)
    for _ in range(64):
        ring.add(Observed(1.0, "p", ProcessExit(1, None, "x" * (MAX_CHARACTERS // 8))))
    assert len(ring._entries) == 8
    assert ring.after("0").gap


def test_what_nobody_asks_for_is_not_encoded() -> None:
    asked: list[Observed] = []

    def count(observed: Observed) -> bytes:
        asked.append(observed)
        return b"x"

    ring = EventBuffer("life", count)
    ring.add(start(1))
    assert not asked
    ring.after("")
    ring.after("")
    assert len(asked) == 1, "and once"


def test_a_ring_of_a_sidecar_that_was_started_again_goes_on_counting() -> None:
    ring = EventBuffer("life", encode, newest=7)
    assert not ring.after("life.7").gap
    assert ring.after("life.5").gap, "it was told to nobody, and is gone"
    ring.add(start(8))
    assert ring.after("life.7").cursor == "life.8"
