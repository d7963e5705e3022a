# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The attempt died: when that is certain, since when, and which rank is named."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.detect.crashed import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.event import Exit
from mwatch.model.finding import Finding, Severity
from mwatch.model.job import ErrorSeen, ExitSeen, FaultSeen, Job, Layout, ProcessGone, Save
from mwatch.model.observation import ProcessExit, Source
from mwatch.model.step import Step
from support.builders.job import START, add_checkpoints, error, fault, found, job, steps

LATE = START + 200
WATCHED = (Source.LOG, Source.PROBE)


def dying(*seen: FaultSeen | ErrorSeen, gone: ProcessExit | None = None, **more: Any) -> Job:
    lines = more.pop("lines", steps([2.0] * 10))
    faults = [each for each in seen if isinstance(each, FaultSeen)]
    errors = [each for each in seen if isinstance(each, ErrorSeen)]
    ends = {"pod-0": ProcessGone(LATE + 5, "pod-0", gone)} if gone else {}
    return job(lines, faults=faults, errors=errors, gone=ends, **({"now": LATE + 10} | more))


def until_late() -> list[Step]:
    """Steps up to the end: without a silence before it."""
    return [line._replace(at=LATE - 10 + line.iteration) for line in steps([2.0] * 10)]


def elastic(code: int = 1, **more: Any) -> ErrorSeen:
    return error("elastic", exit_code=code, at=LATE + 5, line=900, **more)


def raised(name: str = "RuntimeError", message: str = "odd", **more: Any) -> ErrorSeen:
    return error(error=name, message=message, **({"at": LATE, "line": 500} | more))


def output(id: str, **more: Any) -> FaultSeen:
    return fault(id, **({"at": LATE, "line": 510} | more))


def crash(built: Job) -> list[tuple[Cause, Severity]]:
    return [(finding.cause, finding.severity) for finding in found(DETECTOR, built)]


def one(built: Job) -> Finding:
    (finding,) = found(DETECTOR, built)
    return finding


def test_out_of_memory_is_reported_with_its_rank() -> None:
    finding = one(dying(output("cuda-out-of-memory", rank=3), elastic(1, rank=0, host="node-7")))
    assert (finding.cause, finding.severity) == (Cause.OOM, Severity.CRITICAL)
    assert finding.since_iteration == 11
    assert finding.since_time == LATE
    assert finding.cannot_heal
    assert finding.fault == "cuda-out-of-memory"
    assert finding.fingerprint == "oom/cuda-out-of-memory"
    assert finding.culprit is not None
    assert (finding.culprit.rank, finding.culprit.node) == (3, "node-7")


def test_training_that_goes_on_is_no_crash() -> None:
    caught = output("storage-io-error", at=START + 105, line=6)
    assert crash(dying(raised(at=START + 105, line=5), caught)) == []
    assert crash(dying()) == []
    assert crash(dying(output("checkpoint-none-found", line=2))) == []


def test_a_log_that_ends_with_an_uncaught_exception_is_a_crash() -> None:
    finding = one(dying(raised(rank=0)))
    assert (finding.cause, finding.severity) == (Cause.CRASH, Severity.CRITICAL)
    assert not finding.cannot_heal
    assert finding.confidence <= 0.7


def test_a_traceback_without_its_rank_may_have_been_caught() -> None:
    assert crash(dying(raised())) == [(Cause.CRASH, Severity.WARNING)]
    assert crash(dying(raised(), output("storage-io-error"))) == [(Cause.CRASH, Severity.WARNING)]
    deadly = output("cuda-illegal-address")
    assert crash(dying(raised(), deadly)) == [(Cause.CRASH, Severity.WARNING)]
    memory = output("cuda-out-of-memory", line=499)
    assert crash(dying(raised(), memory)) == [(Cause.OOM, Severity.CRITICAL)]


def test_silence_after_a_traceback_makes_it_sure() -> None:
    assert crash(dying(raised(), now=LATE + 4000)) == [(Cause.CRASH, Severity.CRITICAL)]


def test_before_the_first_step_a_traceback_is_enough() -> None:
    finding = one(dying(raised("NameError", "name 'x' is not defined"), lines=[]))
    assert (finding.cause, finding.severity) == (Cause.USER_ERROR, Severity.CRITICAL)
    assert finding.since_iteration is None
    assert "before its first step" in finding.summary


def test_the_probe_shows_an_iteration_before_the_first_step() -> None:
    built = dying(raised("TypeError", "no"), lines=[], iteration=504, resumed_from=504)
    assert crash(built) == [(Cause.USER_ERROR, Severity.CRITICAL)]
    built.attempt.first_iteration = 505
    assert crash(built) == [(Cause.USER_ERROR, Severity.WARNING)]


def test_a_watched_job_is_given_a_moment() -> None:
    assert crash(dying(raised(rank=0), sights=WATCHED)) == []
    late = dying(raised(rank=0), sights=WATCHED, now=LATE + 61)
    assert crash(late) == [(Cause.CRASH, Severity.CRITICAL)]
    late.attempt.progress_at = LATE + 1  # the probe saw another step
    assert crash(late) == []
    proven = dying(raised(rank=0), sights=WATCHED, gone=ProcessExit(1, None, None))
    assert crash(proven) == [(Cause.CRASH, Severity.CRITICAL)]


def test_a_report_of_the_launcher_is_proof() -> None:
    report = elastic(-9, rank=5, signal="SIGKILL", host="localhost")
    finding = one(dying(report, lines=until_late()))
    assert (finding.cause, finding.cannot_heal) == (Cause.KILLED, True)
    assert finding.fingerprint == "killed/SIGKILL"
    assert finding.culprit is not None
    assert (finding.culprit.rank, finding.culprit.node) == (5, None)
    assert finding.culprit.coordinates == {"tp": 0, "pp": 0, "dp": 5}


def test_an_exit_code_is_proof() -> None:
    finding = one(dying(gone=ProcessExit(139, None, None)))
    assert (finding.cause, finding.fingerprint) == (Cause.CRASH, "crash/139")
    assert finding.culprit is None
    assert "exit code 139" in finding.summary
    assert crash(dying(gone=ProcessExit(0, None, None))) == []
    assert one(dying(gone=ProcessExit(None, "SIGBUS", None))).cause is Cause.CRASH


def test_the_word_of_kubernetes_is_proof() -> None:
    finding = one(dying(gone=ProcessExit(0, None, "Preempted")))
    assert (finding.cause, finding.fingerprint) == (Cause.PREEMPTED, "preempted/Preempted")


def test_a_fault_that_only_a_dying_process_prints_is_enough() -> None:
    finding = one(dying(output("checkpoint-load-exit-zero"), lines=[], load="failed"))
    assert (finding.cause, finding.severity) == (Cause.CHECKPOINT, Severity.CRITICAL)
    assert "while loading" in finding.summary
    assert crash(dying(output("process-segfault"))) == [(Cause.CRASH, Severity.CRITICAL)]


def test_a_fault_that_need_not_kill_is_not() -> None:
    assert crash(dying(output("ib-port-error"))) == []
    assert crash(dying(output("xid-94"))) == []


def test_finished_is_finished_whatever_dies_after_it() -> None:
    assert crash(dying(elastic(-11), is_done=True)) == []
    saving = Save(10, LATE - 5, False)
    assert crash(dying(elastic(-9), is_done=True, save=saving)) == [
        (Cause.KILLED, Severity.CRITICAL)
    ]
    queued = Save(10, LATE - 5, True, queued_at=LATE - 4)
    assert crash(dying(elastic(-9), is_done=True, save=queued)) == [
        (Cause.KILLED, Severity.CRITICAL)
    ]  # it takes the queued save with it


@pytest.mark.parametrize("reason", ["interval", "signal"])
def test_a_good_bye_is_no_crash(reason: str) -> None:
    bye = ExitSeen(LATE, "pod-0", Exit(reason, 10, "bye", None, None, "trainer.log", 400))
    assert crash(dying(elastic(-6), exit=bye)) == []
    preempted = dying(gone=ProcessExit(0, None, "Preempted"), exit=bye)
    expected = [] if reason == "interval" else [(Cause.PREEMPTED, Severity.CRITICAL)]
    assert crash(preempted) == expected


NAN_GUARD = (
    "Rank 2, node worker-0, device 2, iteration {}: Unexpected result nan "
    "(message='found NaN in local forward loss calculation')"
)


def test_the_nan_guard_names_its_iteration() -> None:
    layout = Layout(world_size=8, log_interval=100)
    named = output("nan-guard-raised", text=NAN_GUARD.format(57), rank=2, node="worker-0", gpu="2")
    finding = one(dying(named, layout=layout))
    assert (finding.cause, finding.since_iteration) == (Cause.NAN, 57)
    assert finding.culprit is not None
    assert (finding.culprit.node, finding.culprit.gpu_uuid) == ("worker-0", None)


def test_a_guard_that_does_not_know_is_placed_by_the_lines() -> None:
    unknown = output("nan-guard-raised", text=NAN_GUARD.format(-1))
    assert one(dying(unknown)).since_iteration == 11
    assert one(dying(unknown, lines=[])).since_iteration == 1
    known = output("nan-guard-raised", text=NAN_GUARD.format(57))
    assert one(dying(known, lines=[])).since_iteration == 57


def test_a_guard_that_checks_every_iteration_vouches_for_what_was_saved_before_it_raised() -> None:
    built = dying(output("nan-in-gradients"), layout=Layout(log_interval=10))
    assert one(built).since_iteration == 11
    add_checkpoints(built, 12)
    assert one(built).since_iteration == 13
    add_checkpoints(built, 15, saved_at=LATE + 3)
    assert one(built).since_iteration == 13, "a save after it raised proves nothing"
    other = dying(output("loss-not-finite"), elastic(1), layout=Layout(log_interval=10))
    add_checkpoints(other, 12)
    assert one(other).since_iteration == 11, "it may be checked at each line only"


def test_a_guard_cannot_name_an_iteration_beyond_the_next_line() -> None:
    off_by_one = output("nan-guard-raised", text=NAN_GUARD.format(12))
    assert one(dying(off_by_one)).since_iteration == 11


def test_what_the_guard_saved_is_the_last_good_iteration() -> None:
    named = output("rerun-reproducible", text="Rank 0, iteration #52: First rerun", gpu="0")
    built = dying(named, elastic(16), layout=Layout(log_interval=100))
    assert one(built).since_iteration == 52
    add_checkpoints(built, 50, saved_at=LATE + 3)
    assert one(built).since_iteration == 51


def test_megatron_saves_before_it_asks_for_a_rerun() -> None:
    asks = output("rerun-checkpoint-exit")
    assert "Saving a checkpoint" in asks.fault.text
    built = dying(asks)
    assert crash(built) == []
    built.attempt.last_save_at = built.attempt.progress_at = LATE + 4
    assert crash(built) == [(Cause.RERUN, Severity.CRITICAL)]


def test_the_same_failure_has_the_same_fingerprint() -> None:
    first = one(dying(raised("RuntimeError", "shard 12 of /data/a.bin at 0x7f is bad", rank=1)))
    again = one(dying(raised("RuntimeError", "shard 7 of /data/b.bin at 0x1c is bad", rank=6)))
    other = one(dying(raised("RuntimeError", "socket is bad", rank=1)))
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_a_report_without_a_code_is_still_a_crash() -> None:
    bare = error("elastic", at=LATE, line=900)
    finding = one(dying(bare))
    assert (finding.cause, finding.fingerprint) == (Cause.CRASH, "crash")


def test_torchelastics_line_about_a_worker_shows_its_exit_code() -> None:
    line = "failed (exitcode: -9) local_rank: 0 (pid: 17790) of binary: python3"
    finding = one(dying(output("elastic-worker-failed", text=line), lines=until_late()))
    assert (finding.cause, finding.severity) == (Cause.KILLED, Severity.CRITICAL)
    assert not finding.cannot_heal  # torchelastic may start it again itself
    assert one(dying(output("elastic-worker-failed", text="failed"))).cause is Cause.CRASH


def test_a_report_before_lines_that_were_flushed_late_still_names_the_rank() -> None:
    early = error("elastic", exit_code=-9, rank=5, at=START + 105, line=4)
    finding = one(dying(early, gone=ProcessExit(-9, "SIGKILL", None)))
    assert finding.culprit is not None
    assert (finding.cause, finding.culprit.rank) == (Cause.KILLED, 5)


def test_consequences_alone_are_a_crash_of_unknown_cause() -> None:
    aborted = one(dying(output("process-aborted")))
    assert (aborted.cause, aborted.fault) == (Cause.CRASH, "process-aborted")
    peer = one(dying(raised("torch.distributed.DistBackendError", "NCCL error", rank=1)))
    assert (peer.cause, peer.confidence) == (Cause.CRASH, 0.5)


def test_who_complains_of_another_rank_is_not_blamed() -> None:
    lost = output("nccl-remote-error", rank=5)
    assert lost.fault.role == "cascade"
    assert one(dying(lost, elastic(1))).culprit is None
    named = one(dying(lost, elastic(1, rank=2))).culprit
    assert named is not None
    assert named.rank == 2
    gave_up = elastic(-6, rank=2)
    assert one(dying(lost, gave_up)).culprit is None


def test_a_gpu_that_is_named_by_its_uuid_is_passed_on() -> None:
    ecc = output("xid-48", gpu="GPU-1234", node="node-3", text="Xid 48")
    finding = one(dying(ecc, elastic(-6)))
    assert finding.culprit is not None
    assert (finding.culprit.gpu_uuid, finding.culprit.xid) == ("GPU-1234", 48)


def test_blind_means_no_verdict() -> None:
    assert found(DETECTOR, dying(elastic(-9), sights=())) == []


def test_a_kill_after_a_long_silence_is_a_hang_and_blames_nobody() -> None:
    finding = one(dying(elastic(-9, rank=5, signal="SIGKILL", host="localhost")))
    assert (finding.cause, finding.cannot_heal, finding.culprit) == (Cause.HANG, True, None)
    assert finding.since_iteration == 11
    assert "then it was ended: SIGKILL" in finding.summary
