# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Exit code 0 does not mean finished."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mwatch.decide.verdict import judge_quiet
from mwatch.detect.finished_early import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.event import Exit
from mwatch.model.finding import Severity
from mwatch.model.job import Attempt, ExitSeen, Job, KnownCheckpoint, Layout, ProcessGone
from mwatch.model.observation import ProcessExit, Source
from mwatch.model.phase import JobPhase
from mwatch_trainer.contract import TRAINS_ON
from support.builders.job import START, fault, found, job, step, steps


def bye(reason: str) -> ExitSeen:
    output = Exit(reason, None, f"exiting: {reason}", None, None, "trainer.log", 99)
    return ExitSeen(START + 500, "pod-0", output)


def gone(stream: str = "pod-0", code: int | None = 0, **more: Any) -> ProcessGone:
    end = ProcessExit(code, more.get("signal"), more.get("reason"))
    return ProcessGone(START + 600, stream, end)


def left(*ends: ProcessGone, **more: Any) -> Job:
    lines = more.pop("lines", steps([2.0] * 30))
    return job(lines, gone={end.stream: end for end in ends}, **more)


def test_a_signal_ends_it_early() -> None:
    (finding,) = found(DETECTOR, job(steps([2.0] * 30), exit=bye("signal")))
    assert (finding.cause, finding.severity) == (Cause.FINISHED_EARLY, Severity.CRITICAL)
    assert finding.since_iteration == 31
    assert finding.since_time == START + 500
    assert finding.cannot_heal
    assert finding.evidence[0].line == 99


@pytest.mark.parametrize("reason", ["terminated", "something new"])
def test_other_reasons_that_nobody_asked_for_count_too(reason: str) -> None:
    assert len(found(DETECTOR, job(steps([2.0] * 30), exit=bye(reason)))) == 1


@pytest.mark.parametrize("reason", ["interval", "duration", "evaluation-time-limit"])
def test_what_the_user_asked_for_is_no_finding(reason: str) -> None:
    assert found(DETECTOR, job(steps([2.0] * 30), exit=bye(reason))) == []
    assert found(DETECTOR, left(gone(), exit=bye(reason))) == []


def test_exit_code_0_in_the_middle_is_early() -> None:
    (finding,) = found(DETECTOR, left(gone()))
    assert finding.since_iteration == 31
    assert "30 of 1000" in finding.summary


def test_a_job_that_is_done_is_done() -> None:
    assert found(DETECTOR, left(gone(), is_done=True)) == []
    assert found(DETECTOR, left(gone(), iteration=1000)) == []
    assert found(DETECTOR, left(gone(), lines=[], resumed_from=1000)) == []
    assert found(DETECTOR, job(steps([2.0] * 30))) == []


def test_a_checkpoint_of_the_last_step_stands_for_its_lost_line() -> None:
    last = KnownCheckpoint(1000, START + 590, attempt=1, is_saved=True)
    done = left(gone())
    done.checkpoints[1000] = last
    assert found(DETECTOR, done) == []
    done.checkpoints[1000] = replace(last, attempt=0)  # of an older history
    assert len(found(DETECTOR, done)) == 1


def test_all_pods_must_have_left() -> None:
    both = {"streams": {"pod-0", "pod-1"}}
    assert found(DETECTOR, left(gone(), **both)) == []
    assert len(found(DETECTOR, left(gone(), gone("pod-1"), **both))) == 1


def test_a_pod_that_failed_is_a_crash() -> None:
    assert found(DETECTOR, left(gone(code=1))) == []
    assert found(DETECTOR, left(gone(code=None, signal="SIGKILL"))) == []


def test_a_failure_that_ends_with_0_is_reported_elsewhere() -> None:
    seen = [fault("checkpoint-load-exit-zero")]
    assert found(DETECTOR, left(gone(), lines=[], faults=seen, load="failed")) == []


def test_a_complaint_about_a_peer_does_not_hide_it() -> None:
    peer = fault("store-peer-gone", at=START + 590, line=300)
    assert len(found(DETECTOR, left(gone(), faults=[peer]))) == 1


def test_where_the_reason_is_known_it_is_reported_elsewhere() -> None:
    assert found(DETECTOR, left(gone(reason="Preempted"), exit=bye("signal"))) == []


def test_without_a_last_iteration_exit_code_0_is_believed() -> None:
    assert found(DETECTOR, left(gone(), layout=Layout())) == []


def test_the_last_iterations_may_be_too_few_for_a_line() -> None:
    layout = Layout(log_interval=10, total_iterations=35)
    assert found(DETECTOR, left(gone(), layout=layout)) == []
    lines = [step(number, covers=10) for number in range(10, 101, 10)]
    apart = {"lines": lines, "iteration": 100}
    layout = Layout(total_iterations=108)  # of a trainer that does not print its log interval
    assert found(DETECTOR, left(gone(), layout=layout, **apart)) == []
    layout = Layout(log_interval=10, total_iterations=40)
    assert len(found(DETECTOR, left(gone(), layout=layout))) == 1


def test_a_run_that_only_evaluates_has_no_iterations() -> None:
    assert found(DETECTOR, left(gone(), lines=[], evaluations=2)) == []
    (finding,) = found(DETECTOR, left(gone(), lines=[]))
    assert finding.since_iteration == 1


def test_blind_means_no_verdict() -> None:
    assert found(DETECTOR, left(gone(), sights=())) == []
    assert len(found(DETECTOR, left(gone(), sights=(Source.PROCESS,)))) == 1


def again(first: dict[str, Any] | None = None, **second: Any) -> Job:
    """Two attempts that left with 0: the first after iteration 30, the second where it resumed."""
    usual = {"number": 2, "resumed_from": 30, "lines": [], "phase": JobPhase.ENDED}
    made = left(*second.pop("ends", [gone()]), **{**usual, **second})
    gone_before = {"pod-0": gone()}
    fields: dict[str, Any] = {"iteration": 30, "gone": gone_before, "streams": {"pod-0"}}
    made.past.append(Attempt(1, START, **{**fields, **(first or {})}))
    return made


def test_the_same_end_once_more_is_the_end() -> None:
    built = again()
    assert found(DETECTOR, built) == []
    judged = judge_quiet(built)
    assert judged.cause is Cause.FINISHED
    assert judged.reason == "training ended at iteration 30 of 1000 by itself, twice"


def test_the_last_checkpoint_of_the_first_end_counts() -> None:
    built = again(resumed_from=35)
    assert len(found(DETECTOR, built)) == 1
    built.checkpoints[35] = KnownCheckpoint(35, START + 590, attempt=1, is_saved=True)
    assert found(DETECTOR, built) == []
    apart = Layout(total_iterations=1000, log_interval=10)
    assert found(DETECTOR, again(resumed_from=35, layout=apart)) == []


@pytest.mark.parametrize(
    "second",
    [
        {"iteration": 31},
        {"iteration": 25, "resumed_from": 20},
        {"resumed_from": None},
        {"resumed_from": 40},
        {"load": "random"},
        {"exit": bye("signal")},
        {"streams": {"pod-0", "pod-1"}, "ends": [gone(), gone("pod-1", reason="something")]},
    ],
)
def test_a_new_step_or_another_end_is_early_again(second: dict[str, Any]) -> None:
    built = again(**second)
    assert len(found(DETECTOR, built)) == 1
    assert judge_quiet(built).cause is Cause.UNKNOWN


@pytest.mark.parametrize(
    "first",
    [
        {"gone": {"pod-0": gone(code=1)}},
        {"gone": {}},
        {"exit": bye("signal")},
        {"streams": {"pod-0", "pod-1"}},
    ],
)
def test_after_another_end_it_is_the_first(first: dict[str, Any]) -> None:
    assert len(found(DETECTOR, again(first))) == 1


def test_all_pods_of_a_gang_end_twice() -> None:
    both: dict[str, Any] = {"streams": {"pod-0", "pod-1"}}
    ends = [gone(), gone("pod-1")]
    first = {**both, "gone": {end.stream: end for end in ends}}
    assert found(DETECTOR, again(first, ends=ends, **both)) == []
    assert len(found(DETECTOR, again(ends=ends, **both, resumed_from=31))) == 1


def test_a_training_that_goes_on_has_not_ended() -> None:
    built = left(gone(reason=TRAINS_ON), phase=JobPhase.ENDED)
    assert found(DETECTOR, built) == []
    assert judge_quiet(built).reason == f"{TRAINS_ON}, iteration 30"
