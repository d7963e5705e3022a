# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A view may fail, and whoever shows something does not notice."""

from __future__ import annotations

import pytest

from mwatch.watch.watcher import RunEnd, SafeObserver
from support.builders.run import Heard

ENDED = RunEnd(0, "done", True)


class Broken(Heard):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def noted(self, text: str) -> None:
        super().noted(text)
        raise self.error


def test_a_reader_that_has_left_is_not_spoken_to_again() -> None:
    view = Broken(BrokenPipeError())
    safe = SafeObserver(view)
    for _ in range(3):
        safe.noted("x")
    safe.printed(b"y")
    assert len(view.calls) == 1


def test_one_picture_that_cannot_be_drawn_is_not_the_end_of_the_view() -> None:
    view = Broken(ValueError())
    safe = SafeObserver(view)
    safe.noted("x")
    safe.printed(b"y")
    assert view.of("printed") == [b"y"]
    for _ in range(100):
        safe.noted("x")
    assert len(view.of("noted")) < 20


def test_the_end_is_always_reported() -> None:
    view = Broken(BrokenPipeError())
    safe = SafeObserver(view)
    safe.noted("x")
    safe.ended(ENDED)
    assert view.of("ended") == [ENDED]


def test_an_interrupt_goes_through() -> None:
    class Stopped(Heard):
        def noted(self, text: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SafeObserver(Stopped()).noted("x")
