# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Who may be restarted now, and who waits in the line."""

from __future__ import annotations

from mwatch.remediate.gates import Waiting, admit


def test_the_longest_due_go_first_and_the_others_wait_in_order() -> None:
    waiting = [Waiting("c", 3.0), Waiting("a", 1.0), Waiting("b", 2.0)]
    found = admit(waiting, (), 2)
    assert found.now == ("a", "b") and found.line == ("c",)


def test_those_under_way_take_places() -> None:
    waiting = [Waiting("a", 1.0), Waiting("b", 2.0)]
    assert admit(waiting, {"x"}, 2).now == ("a",)
    assert admit(waiting, {"x", "y"}, 2).line == ("a", "b")
    assert admit(waiting, {"x", "y", "z"}, 2).now == ()


def test_a_person_does_not_wait_but_takes_a_place() -> None:
    waiting = [Waiting("a", 1.0), Waiting("b", 2.0, is_asked=True)]
    found = admit(waiting, {"x"}, 2)
    assert found.now == ("b",) and found.line == ("a",)
    assert admit(waiting, {"x", "y", "z"}, 2).now == ("b",)


def test_nobody_waits_where_there_is_room() -> None:
    assert admit([], (), 2) == ((), ())
    assert admit([Waiting("a", 1.0)], (), 2) == (("a",), ())
