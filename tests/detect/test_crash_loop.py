# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Several attempts in a row fail with the same cause."""

from __future__ import annotations

from typing import Any

from mwatch.detect.crash_loop import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.finding import Severity
from mwatch.model.job import Attempt, Job, ProcessGone
from mwatch.model.observation import ProcessExit
from mwatch.model.phase import JobPhase
from support.builders.job import START, error, fault, found, job


def died(number: int, *, iteration: int | None = 450, hours: float = 1.0, **more: Any) -> Attempt:
    start = START + 3600 * hours * number
    usual: dict[str, Any] = {
        "phase": JobPhase.ENDED,
        "first_iteration": 1,
        "iteration": iteration,
        "ended_at": start + 50,
    }
    return Attempt(number, start, **(usual | more))


def history(*attempts: Attempt) -> Job:
    built = job()
    built.past.extend(attempts[:-1])
    built.attempt = attempts[-1]
    built.now = attempts[-1].ended_at or attempts[-1].started_at
    return built


def illegal(number: int, **more: Any) -> Attempt:
    return died(number, faults=[fault("cuda-illegal-address", rank=number)], **more)


def test_the_same_root_fault_three_times_is_a_loop() -> None:
    (finding,) = found(DETECTOR, history(illegal(1), illegal(2), illegal(3)))
    assert finding.cause is Cause.CRASH
    assert finding.severity is Severity.CRITICAL
    assert finding.fault == "cuda-illegal-address"
    assert finding.fingerprint == "crash-loop/cuda-illegal-address"
    assert finding.since_time == START + 3600 + 50
    assert finding.since_iteration == 450
    assert len(finding.evidence) == 3


def test_twice_is_not_yet_a_loop() -> None:
    assert found(DETECTOR, history(illegal(1), illegal(2))) == []


def test_another_death_between_them_breaks_the_row() -> None:
    other = died(3, errors=[error(error="ValueError")])
    assert found(DETECTOR, history(illegal(1), illegal(2), other, illegal(4))) == []


def test_a_death_without_a_word_breaks_the_row() -> None:
    assert found(DETECTOR, history(illegal(1), illegal(2), died(3), illegal(4))) == []


def test_the_root_counts_and_not_the_loudest() -> None:
    attempts = [illegal(i, errors=[error(error=f"Error{i}")]) for i in (1, 2, 3)]
    for each in attempts:
        each.faults.insert(0, fault("collective-timeout", at=START))
    assert len(found(DETECTOR, history(*attempts))) == 1


def test_without_a_fault_the_class_of_the_error_counts() -> None:
    attempts = [died(i, errors=[error(error="ValueError", message=f"at {i}")]) for i in (1, 2, 3)]
    (finding,) = found(DETECTOR, history(*attempts))
    assert finding.fault is None
    assert finding.fingerprint == "crash-loop/ValueError"


def test_exit_codes_and_signals_are_the_last_resort() -> None:
    killed = [died(i, errors=[error("elastic", exit_code=-9, signal="SIGKILL")]) for i in (1, 2, 3)]
    assert found(DETECTOR, history(*killed))[0].fingerprint == "crash-loop/SIGKILL"
    gone = ProcessGone(START, "pod-0", ProcessExit(3, None, None))
    failed = [died(i, gone={"pod-0": gone}) for i in (1, 2, 3)]
    assert found(DETECTOR, history(*failed))[0].fingerprint == "crash-loop/exit-3"


def test_an_end_that_says_nothing_bad_is_no_death() -> None:
    """torchrun's own restart line, and an exit code of 0."""
    gone = ProcessGone(START, "pod-0", ProcessExit(0, None, None))
    quiet = [died(i, errors=[error("restart")], gone={"pod-0": gone}) for i in (1, 2, 3)]
    assert found(DETECTOR, history(*quiet)) == []


def test_the_same_fault_once_a_day_is_no_loop() -> None:
    assert (
        found(DETECTOR, history(illegal(1, hours=24), illegal(2, hours=24), illegal(3, hours=24)))
        == []
    )


def test_with_progress_in_between_it_is_a_warning() -> None:
    attempts = [illegal(i, iteration=1000 * i) for i in (1, 2, 3)]
    (finding,) = found(DETECTOR, history(*attempts))
    assert finding.severity is Severity.WARNING
    assert "got further" in finding.summary


def test_while_the_next_attempt_runs_it_is_a_warning() -> None:
    running = Attempt(4, START + 5 * 3600, phase=JobPhase.LOADING)
    (finding,) = found(DETECTOR, history(illegal(1), illegal(2), illegal(3), running))
    assert finding.severity is Severity.WARNING


def test_wanted_ends_do_not_count_and_do_not_break_the_row() -> None:
    gone = ProcessGone(START, "pod-0", ProcessExit(143, None, "Preempted"))
    preempted = died(3, gone={"pod-0": gone})
    assert len(found(DETECTOR, history(illegal(1), illegal(2), preempted, illegal(4)))) == 1


def test_no_history_and_no_data_give_no_verdict() -> None:
    assert found(DETECTOR, job()) == []
    built = history(illegal(1), illegal(2), illegal(3))
    built.sources = {}
    assert found(DETECTOR, built) == []


def raised(number: int, message: str, **more: Any) -> Attempt:
    seen = error(error="RuntimeError", message=message, where="/w/model.py:7 in forward")
    return died(number, errors=[seen], **more)


def test_an_exception_of_the_program_twice_at_one_place_is_a_loop() -> None:
    text = "expected scalar type Half but found Float"
    (finding,) = found(DETECTOR, history(raised(1, text), raised(2, text)))
    assert finding.severity is Severity.CRITICAL
    further = history(raised(1, text), raised(2, text, iteration=470))
    assert found(DETECTOR, further) == []


def test_an_exception_from_outside_may_come_back_twice() -> None:
    text = "Connection reset by peer"
    assert found(DETECTOR, history(raised(1, text), raised(2, text))) == []
