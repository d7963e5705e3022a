# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Signals that ask a run to end: real ones, sent to this process."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from mwatch.runtime.shutdown import Interrupted, interrupts


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_becomes_an_exception_that_shows_its_exit_code(number: signal.Signals) -> None:
    with interrupts() as all_of_them, pytest.raises(Interrupted) as caught:
        all_of_them.begin()
        send(number)
    assert caught.value.exit_code == 128 + number
    assert not isinstance(caught.value, Exception)


def test_what_comes_before_somebody_catches_it_is_raised_when_it_begins() -> None:
    with interrupts() as caught:
        send(signal.SIGTERM)
        with pytest.raises(Interrupted) as raised:
            caught.begin()
    assert raised.value.exit_code == 143


def test_the_handlers_of_before_are_back_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with interrupts():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_was_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts():
            send(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_is_held_is_raised_at_the_end_and_the_first_counts() -> None:
    done = []
    with interrupts() as caught, pytest.raises(Interrupted) as raised:
        caught.begin()
        with caught.held():
            send(signal.SIGTERM)
            send(signal.SIGINT)
            done.append("not torn")
        done.append("never")
    assert done == ["not torn"]
    assert raised.value.exit_code == 143


def test_holds_may_be_inside_each_other() -> None:
    done = []
    with interrupts() as caught, pytest.raises(Interrupted):
        caught.begin()
        with caught.held():
            with caught.held():
                send(signal.SIGINT)
            done.append("still held")
    assert done == ["still held"]


def test_once_the_end_is_under_way_nothing_interrupts_it() -> None:
    with interrupts() as caught:
        caught.begin()
        caught.ignore()
        with caught.held():
            send(signal.SIGINT)
        send(signal.SIGTERM)


def test_another_thread_has_no_signals_and_no_error() -> None:
    done = []

    def work() -> None:
        with interrupts() as caught, caught.held():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
