# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The judge can fail: it sees a false kill, a wrong checkpoint, a missed fault, a wrong blame."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from mwatch.engine.engine import Assessment
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.finding import Culprit, Finding, Severity
from mwatch.model.phase import JobPhase
from sim.eyes import Eyes
from sim.faults import Fault
from sim.judge import Judge
from sim.plan import Plan, draw_shape
from sim.watch import Watch

HANG = Fault("hang", JobPhase.TRAINING, 12, 0.5, 1, variant="data")


def watched(*faults: Fault, **more: Any) -> tuple[Watch, Judge]:
    fixed: dict[str, Any] = {
        "world_size": 4, "pod_ranks": 2, "tensor": 1, "pipeline": 1, "precision": "bf16",
        "step_seconds": 1.0, "log_interval": 1, "save_interval": 5, "first": 0, "is_async": False,
        "start_seconds": 10.0, "first_step_seconds": 5.0, "load_seconds": 5.0,
        "save_seconds": 1.0, "first_save_factor": 1.0, "handles_sigterm": False,
    }  # fmt: skip
    shape = replace(draw_shape(Random(1), **(fixed | more)), total=40, eval_interval=0)
    watch = Watch(Plan(7, "test", not faults, shape, Eyes(), faults))
    watch.begin()
    return watch, Judge(watch)


def pass_time(watch: Watch, judge: Judge, seconds: int) -> None:
    """Without the engine: these tests say themselves what was found."""
    for _ in range(seconds):
        watch.world.advance(watch.stage.now + 1.0)
        judge.see(said(watch))


def said(watch: Watch, *findings: Finding, **decision: Any) -> Assessment:
    usual: dict[str, Any] = {
        "action": Action.NONE, "cause": Cause.HEALTHY, "attempt": 1, "reason": "",
    }  # fmt: skip
    return Assessment(watch.stage.now, findings, Decision(**(usual | decision)))


def hang(rank: int | None = None) -> Finding:
    culprit = None if rank is None else Culprit(rank=rank)
    return Finding("stalled", Cause.HANG, Severity.CRITICAL, "it hangs", culprit=culprit)


def restart(resume_from: int | None, cause: Cause = Cause.HANG) -> Decision:
    return Decision(Action.RESTART, cause, 1, "so it was said", resume_from)


def test_a_restart_of_a_healthy_job_is_a_false_kill() -> None:
    watch, judge = watched()
    pass_time(watch, judge, 40)
    judge.acted(restart(5))
    assert "nothing was wrong" in judge.outcome.false_kills[0]


def test_a_restart_of_a_hung_job_is_none() -> None:
    watch, judge = watched(HANG)
    pass_time(watch, judge, 60)
    judge.acted(restart(10))
    assert judge.outcome.false_kills == []
    assert judge.outcome.wrong_checkpoints == []


def test_a_stall_that_heals_sooner_than_a_restart_must_be_left_alone() -> None:
    short, judge = watched(replace(HANG, kind="stall_heals", seconds=12.0))
    pass_time(short, judge, 36)
    judge.acted(restart(10))
    assert "a stall of 12 s that heals" in judge.outcome.false_kills[0]


def test_a_stall_that_lasts_longer_than_a_restart_may_be_ended() -> None:
    long, judge = watched(replace(HANG, kind="stall_heals", seconds=100.0))
    pass_time(long, judge, 90)
    judge.acted(restart(10))
    assert judge.outcome.false_kills == []


def test_a_stop_of_what_a_restart_fixes_is_a_false_kill() -> None:
    watch, judge = watched(replace(HANG, kind="killed"))
    pass_time(watch, judge, 60)
    judge.acted(Decision(Action.STOP, Cause.KILLED, 1, "enough"))
    assert "a restart would have fixed killed" in judge.outcome.false_kills[0]


def test_an_action_on_a_finished_job_is_a_false_kill() -> None:
    watch, judge = watched()
    pass_time(watch, judge, 120)
    assert watch.stage.has_finished
    judge.acted(restart(40))
    assert "had finished" in judge.outcome.false_kills[0]


def test_a_checkpoint_after_the_first_bad_iteration_is_wrong() -> None:
    watch, judge = watched(Fault("nan", iteration=12))
    pass_time(watch, judge, 50)
    judge.acted(restart(15, Cause.NAN))
    assert "not older than the first bad iteration 12" in judge.outcome.wrong_checkpoints[0]


def test_a_half_written_checkpoint_is_wrong() -> None:
    plot = replace(HANG, phase=JobPhase.SAVING, iteration=10)
    watch, judge = watched(plot, save_seconds=4.0)
    pass_time(watch, judge, 60)
    judge.acted(restart(10))
    assert "half written" in judge.outcome.wrong_checkpoints[0]


def test_from_the_beginning_is_wrong_where_a_checkpoint_is_fit() -> None:
    watch, judge = watched(Fault("nan", iteration=12))
    pass_time(watch, judge, 50)
    judge.acted(replace(restart(None, Cause.NAN), quarantine_from=12))
    assert "though 10 is fit" in judge.outcome.wrong_checkpoints[0]


def test_where_nothing_is_chosen_the_trainer_takes_its_newest() -> None:
    watch, judge = watched(HANG)
    pass_time(watch, judge, 60)
    judge.acted(restart(None))
    assert watch.resume_of(restart(None)) == 10
    assert judge.outcome.wrong_checkpoints == []


def test_a_fault_that_nobody_names_is_missed() -> None:
    watch, judge = watched(HANG)
    pass_time(watch, judge, 60)
    (case,) = judge.outcome.cases
    assert case.is_missed


def test_the_first_true_finding_counts_and_the_last_blame() -> None:
    watch, judge = watched(HANG)
    pass_time(watch, judge, 60)
    at = watch.stage.incidents[0].at
    judge.see(said(watch, hang(1), cause=Cause.HANG, finding=hang(1)))
    (case,) = judge.outcome.cases
    assert case.detected_after == watch.stage.now - at
    assert not case.blames_wrongly
    judge.see(said(watch, hang(3), cause=Cause.HANG, finding=hang(3)))
    assert case.blames_wrongly


def test_a_finding_that_was_there_before_is_no_detection() -> None:
    watch, judge = watched(HANG)
    for _ in range(60):
        watch.world.advance(watch.stage.now + 1.0)
        judge.see(said(watch, hang()))
    (case,) = judge.outcome.cases
    assert case.detected_after is None


def test_critical_alarms_on_a_healthy_job_are_counted() -> None:
    watch, judge = watched()
    pass_time(watch, judge, 30)
    judge.see(said(watch, hang()))
    assert judge.outcome.alarms == ["hang: it hangs"]
