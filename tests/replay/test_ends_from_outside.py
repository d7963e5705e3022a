# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Excerpts in which something else than the last error says how the run ended, or went on."""

from __future__ import annotations

from pathlib import Path

from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from support.runs.recorded import read


def test_a_peer_that_is_gone_was_taken_away_above(tmp_path: Path) -> None:
    steps = [f"step {n} | loss {9 - n}.0" for n in range(1, 6)]
    events = (
        "5m1s  Normal  DisruptionTerminating  node/n3  Disrupting Node: Underutilized/Delete",
        "deprovisioning via consolidation delete, terminating 1 machines n3/g5.12xlarge/on-demand",
    )
    gone = "RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.3]:481"
    for event in events:
        assert read(tmp_path, *steps, event, gone).decision.cause is Cause.DRAINED
    assert read(tmp_path, *steps, gone).decision.cause is Cause.FABRIC


def test_sockets_instead_of_a_fast_network_are_for_a_person_to_change(tmp_path: Path) -> None:
    line = " iteration {:8d}/ 100 | elapsed time per iteration (ms): 900.0 | lm loss: {}.0E+00 |"
    steps = [line.format(n, 9 - n) for n in range(1, 6)]
    nccl = [
        f"node-{number}:77:9{number} [0] NCCL {text}"
        for number in range(2)
        for text in ("WARN NET/OFI plugin initialization failed", "INFO Using network Socket")
    ]
    decision = read(tmp_path, *nccl, *steps).decision
    assert decision.is_advice and (decision.cause, decision.action) == (Cause.SLOW, Action.STOP)


def test_launchers_that_lose_each_other_after_success_have_finished(tmp_path: Path) -> None:
    done = "INFO:torch.distributed.elastic:Local worker group finished ({}). Waiting 300 seconds"
    barrier = [
        "ERROR:torch.distributed.elastic.agent.server.api:Error waiting on exit barrier.",
        "Traceback (most recent call last):",
        '  File "/env/torch/distributed/elastic/utils/store.py", line 34, in get_all',
        "RuntimeError: Connection reset by peer",
    ]
    steps = [f"step {n} | loss {9 - n}.0" for n in range(1, 6)]
    assert read(tmp_path, *steps, done.format("SUCCEEDED"), *barrier).decision.cause is (
        Cause.FINISHED
    )
    assert read(tmp_path, *steps, *barrier).decision.cause is Cause.FABRIC


def test_a_run_that_begins_anew_after_it_lost_a_node_went_wrong_there(tmp_path: Path) -> None:
    before = [f"(INFO): step: {n}, loss: {9 - n}.1" for n in range(1, 6)]
    before.append("slurmstepd: error: *** JOB 77 ON p5 CANCELLED AT 2024-08-12 DUE TO NODE FAILURE")
    anew = ["(INFO): No checkpoint given, training from random initialization"]
    after = [f"(INFO): step: {n}, loss: 9.{n}" for n in range(1, 3)]
    assert read(tmp_path, *before, *anew, *after).decision.cause is Cause.STARTED_FROM_RANDOM
    assert read(tmp_path, *before, *anew).decision.cause is Cause.LOST_POD


def test_saves_that_fail_one_after_the_other_are_overdue(tmp_path: Path) -> None:
    steps = [f"step {n} | loss {9 - n}.0" for n in range(1, 7)]
    failed = "W1129 checkpoint_manager.py:1102] Checkpoint {} was not finalized"
    lines = [steps[0], steps[1], failed.format(2), steps[2], steps[3], failed.format(4), steps[4]]
    decision = read(tmp_path, *lines).decision
    assert (decision.cause, decision.action) == (Cause.CHECKPOINT_OVERDUE, Action.STOP)
    assert decision.is_advice
    saved = "successfully saved checkpoint from iteration 5"
    assert read(tmp_path, *lines, saved, steps[5]).decision.cause is not Cause.CHECKPOINT_OVERDUE
    assert read(tmp_path, *lines[:5]).decision.cause is not Cause.CHECKPOINT_OVERDUE


def test_a_step_that_hyperpod_tried_again_is_a_new_attempt(tmp_path: Path) -> None:
    before = [f"Batch {n} Loss: {9 - n}.0" for n in range(1, 6)]
    failed = "2: RuntimeError: CUDA error: uncorrectable ECC error encountered"
    retried = "[Auto Resume] Info: JobID: 7 StepID: 0 Replaced faulty nodes. Retrying step"
    after = [f"Batch {n} Loss: {9 - n}.0" for n in range(5, 9)]
    report = read(tmp_path, *before, failed, retried, *after)
    assert report.decision.cause is not Cause.HARDWARE
    assert report.decision.action is Action.NONE
    assert read(tmp_path, *before, failed).decision.cause is Cause.HARDWARE


def test_exit_code_0_in_the_form_of_a_variable_is_an_end(tmp_path: Path) -> None:
    lines = ["Checkpoint manager created!", "restoring from step 20000", "EXIT_CODE={}"]
    for code in (0, 1):
        found = read(tmp_path, *lines[:2], lines[2].format(code)).decision.cause
        assert (found is Cause.FINISHED) is (code == 0)


def test_a_time_limit_that_was_reached_is_no_timeout(tmp_path: Path) -> None:
    steps = [f"step {n}/800 | loss {9 - n}.0" for n in range(1, 6)]
    reached = "Timeout has been reached, stopping training early"
    assert read(tmp_path, *steps, reached).decision.cause is Cause.FINISHED_EARLY
