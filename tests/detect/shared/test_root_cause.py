# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which of the last errors is the root cause."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.detect.shared.causes import is_after
from mwatch.detect.shared.root_cause import RootCause, root_cause
from mwatch.model.cause import Cause
from mwatch.model.job import ErrorSeen, FaultSeen, ProcessGone
from mwatch.model.observation import ProcessExit
from support.builders.job import START, error, fault, job, steps

LATE = START + 1000


def cause(*seen: FaultSeen | ErrorSeen, gone: ProcessExit | None = None, **more: Any) -> RootCause:
    lines = more.pop("lines", steps([2.0] * 10))
    built = job(
        lines,
        faults=[each for each in seen if isinstance(each, FaultSeen)],
        errors=[each for each in seen if isinstance(each, ErrorSeen)],
        gone={"pod-0": ProcessGone(LATE + 50, "pod-0", gone)} if gone else {},
        **more,
    )
    shown_events = root_cause(built)
    assert shown_events is not None
    return shown_events


def elastic(code: int, **more: Any) -> ErrorSeen:
    return error("elastic", exit_code=code, at=LATE + 40, line=900, **more)


def raised(name: str, message: str = "", **more: Any) -> ErrorSeen:
    return error(error=name, message=message, **({"at": LATE, "line": 500} | more))


def test_the_earliest_root_fault_wins_over_louder_ones() -> None:
    ecc = fault("gpu-ecc-uncorrectable", at=LATE, line=100, rank=3)
    timeout = [fault("collective-timeout", at=LATE + 1, line=101 + n, rank=n) for n in range(8)]
    late = fault("storage-io-error", at=LATE + 2, line=200)
    shown_events = cause(late, *timeout, ecc, elastic(-6))
    assert (shown_events.cause, shown_events.fault) == (Cause.HARDWARE, ecc)


def test_a_cascade_alone_is_a_hang() -> None:
    shown_events = cause(fault("collective-timeout", at=LATE, line=100), elastic(-6))
    assert shown_events.cause is Cause.HANG
    assert shown_events.confidence < 0.8


def test_a_launcher_that_tidies_up_says_nothing_itself() -> None:
    tidy = fault("elastic-worker-failed", at=LATE, line=99)
    assert cause(tidy, elastic(1)).cause is Cause.CRASH


def test_a_launcher_that_was_asked_to_stop_was_killed() -> None:
    assert cause(fault("elastic-death-signal", at=LATE, line=99)).cause is Cause.KILLED


def test_a_kill_is_no_memory_fault_unless_somebody_says_so() -> None:
    assert cause(elastic(-9)).cause is Cause.KILLED
    assert cause(elastic(-9), fault("host-oom-cgroup", at=LATE, line=50)).cause is Cause.OOM
    assert cause(elastic(-9), gone=ProcessExit(1, None, "OOMKilled")).cause is Cause.OOM


def test_what_other_ranks_raise_after_a_kill_is_not_the_cause() -> None:
    shown_events = cause(raised("RuntimeError", "something odd", rank=1), elastic(-9, rank=0))
    assert shown_events.cause is Cause.KILLED


def test_of_several_pods_the_one_that_was_shot_is_believed() -> None:
    abort = elastic(-6, rank=0)
    shot = elastic(-9, rank=10)._replace(at=LATE + 41)
    stopped = elastic(-15, rank=4)
    raising = elastic(1, rank=2)
    for pods in ((abort, shot, stopped, raising), (raising, stopped, shot, abort)):
        shown_events = cause(*pods)
        assert (shown_events.cause, shown_events.error) == (Cause.KILLED, shot)
    assert cause(stopped, abort).error == abort
    assert cause(abort, raising).error == raising
    asking = elastic(16, rank=1)
    assert cause(shot, asking).error == asking


def test_kubernetes_knows_best() -> None:
    shown_events = cause(raised("RuntimeError"), gone=ProcessExit(143, "SIGTERM", "Preempted"))
    assert shown_events.cause is Cause.PREEMPTED
    assert cause(gone=ProcessExit(None, None, "deleted")).cause is Cause.DELETED_BY_USER


def test_exit_16_asks_for_another_run() -> None:
    named = fault("rerun-reproducible", at=LATE, line=100, rank=3, gpu="5")
    shown_events = cause(fault("rerun-unexpected-result", at=LATE, line=99), named, elastic(16))
    assert (shown_events.cause, shown_events.fault) == (Cause.RERUN, named)
    assert cause(fault("rerun-checkpoint-exit", at=LATE, line=99)).cause is Cause.RERUN
    assert cause(gone=ProcessExit(16, None, None)).cause is Cause.RERUN
    assert cause(elastic(16)).at == LATE + 40


def test_exit_17_is_the_gpu_unless_both_agree() -> None:
    assert cause(elastic(17)).cause is Cause.HARDWARE
    assert cause(gone=ProcessExit(217, None, None)).cause is Cause.HARDWARE
    agree = fault("rerun-application-error", at=LATE, line=99)
    assert cause(agree, elastic(17)).cause is Cause.NAN
    assert cause(fault("rerun-failed-exit", at=LATE, line=99)).cause is Cause.HARDWARE


def test_an_exception_that_came_before_the_fault_is_the_cause() -> None:
    shown_events = cause(
        raised("ValueError", "bad batch", at=LATE, line=100),
        fault("store-connect-timeout", at=LATE + 9, line=300),
        elastic(1),
    )
    assert (shown_events.cause, shown_events.fault) == (Cause.USER_ERROR, None)


def test_an_exception_is_explained_by_the_fault_in_its_text() -> None:
    memory = fault("cuda-out-of-memory", at=LATE, line=140, rank=2)
    shown_events = cause(
        raised("torch.OutOfMemoryError", memory.fault.text[-60:], line=100), memory
    )
    assert shown_events.cause is Cause.OOM
    assert shown_events.error is not None
    bare = fault("assertion-failed", at=LATE, line=140, text="AssertionError")
    assert cause(raised("AssertionError", line=100), bare).cause is Cause.USER_ERROR


def test_what_a_kernel_asserts_is_raised_by_the_host() -> None:
    asserts = fault("cuda-kernel-assert", at=LATE, line=90)
    host = raised("torch.AcceleratorError", "CUDA error: device-side assert triggered", line=99)
    shown_events = cause(asserts, host, elastic(1))
    assert (shown_events.cause, shown_events.error) == (Cause.USER_ERROR, host)


def test_a_peer_that_went_away_is_not_blamed_first() -> None:
    shown_events = cause(raised("torch.distributed.DistBackendError", "NCCL error"), elastic(1))
    assert shown_events.cause is Cause.CRASH
    assert shown_events.error is not None
    assert shown_events.error.error.kind == "elastic"


def test_an_assertion_says_what_its_text_says() -> None:
    output = "Rank 0: found NaN in local forward loss calculation. Device: 0, node: vm"
    generic = fault("assertion-failed", at=LATE, line=140, text=f"AssertionError: {output}")
    assert cause(generic, elastic(1)).cause is Cause.NAN
    assert cause(generic, raised("AssertionError", output)).cause is Cause.NAN
    assert cause(fault("assertion-failed", at=LATE, line=1000)).cause is Cause.CRASH
    named = fault("data-no-samples", at=LATE + 1, line=150)
    assert cause(generic, named).cause is Cause.DATA


@pytest.mark.parametrize(
    "message",
    [
        "nan loss encountered",
        "Loss is not finite and patience is exhausted.",
        "Loss became infinite or NaN at iteration=166!",
        "The total norm for gradients from `parameters` is non-finite",
        "Detected nan in the gradients of layer 3",
    ],
)
def test_a_trainer_that_gives_up_because_of_its_numbers(message: str) -> None:
    assert cause(raised("ValueError", message), elastic(1)).cause is Cause.NAN


def test_other_exceptions_do_not_speak_of_numbers() -> None:
    for message in ("unknown loss function: info_nce", "no normalisation is found for weights"):
        assert cause(raised("ValueError", message), elastic(1)).cause is Cause.USER_ERROR


@pytest.mark.parametrize(
    "name",
    [
        "/out/checkpoint-400/global_step400/zero_pp_rank_4_mp_rank_00_optim_states.pt",
        "/ckpt/step_4000/pytorch_model_fsdp_0/.metadata",
        "out/checkpoint-10/random_states_1.pkl",
        "/out/epoch=3-step=900.ckpt",
    ],
)
def test_a_part_of_a_checkpoint_that_is_not_there_is_not_data(name: str) -> None:
    text = f"FileNotFoundError: [Errno 2] No such file or directory: '{name}'"
    missing = fault("data-file-not-found", at=LATE, line=140, text=text)
    assert cause(missing, elastic(1), lines=[]).cause is Cause.CHECKPOINT
    message = text.partition(": ")[2]
    loading = raised("FileNotFoundError", message, line=139, during="load")
    assert cause(missing, loading, elastic(1)).cause is Cause.CHECKPOINT
    other = fault("data-file-not-found", at=LATE, line=140, text=text.replace(name, "/data/a.bin"))
    assert cause(other, elastic(1), lines=[]).cause is Cause.DATA


def test_an_unknown_error_while_loading_is_the_checkpoints() -> None:
    odd = raised("KeyError", "'model'")
    assert cause(odd, lines=[], load="begun").cause is Cause.CHECKPOINT
    assert cause(odd, lines=[], load="loaded").cause is Cause.USER_ERROR


def test_the_reason_of_a_failed_load_is_in_the_next_line() -> None:
    failed = fault("checkpoint-load-exit-zero", at=LATE, line=100)
    assert cause(failed, lines=[], load="failed").cause is Cause.CHECKPOINT
    reason = fault("checkpoint-weights-only", at=LATE, line=101)
    assert cause(failed, reason, lines=[], load="failed").cause is Cause.USER_ERROR


def test_trouble_that_training_survived_is_not_considered() -> None:
    old = fault("storage-io-error", at=START + 101, line=3)
    assert cause(old, elastic(-9)).cause is Cause.KILLED
    other = fault("gpu-ecc-uncorrectable", at=START + 100, file="dmesg", line=7)
    assert cause(other, elastic(-6)).cause is Cause.HARDWARE  # seconds before the last line


def test_steps_that_are_printed_below_a_schedulers_report_do_not_take_it_back() -> None:
    last = START + 101
    limit = fault("container-memory-limit", at=last, line=3)
    cancelled = fault("slurm-cancelled", at=last, line=4)
    assert cause(limit, cancelled, elastic(-9)).cause is Cause.OOM
    assert cause(cancelled, elastic(-9)).cause is Cause.DELETED_BY_USER


def test_an_exception_in_a_worker_of_the_loader_is_about_a_sample_once_others_were_read() -> None:
    worker = fault("dataloader-worker-error", at=LATE, line=490)
    odd = raised("ValueError", "the number of samples differs")
    assert cause(worker, odd).cause is Cause.DATA
    assert cause(worker, odd, lines=[]).cause is Cause.USER_ERROR
    assert cause(odd).cause is not Cause.DATA


def test_a_pipe_that_was_flushed_late_does_not_hide_the_traceback() -> None:
    early = fault("checkpoint-worker-failed", at=START + 101, line=3)
    assert cause(early, elastic(1)).cause is Cause.CRASH  # training survived it
    raising = raised("RuntimeError", early.fault.text[-30:], at=START + 101, line=2, rank=0)
    assert cause(early, raising, elastic(1)).cause is Cause.STORAGE


def test_nothing_that_could_end_it_is_no_cause() -> None:
    assert root_cause(job(steps([2.0] * 10))) is None
    survived = fault("storage-io-error", at=START + 101, line=3)
    assert root_cause(job(steps([2.0] * 10), faults=[survived])) is None


def test_exit_codes_are_the_last_resort() -> None:
    assert cause(gone=ProcessExit(139, None, None)).cause is Cause.CRASH
    assert cause(error("launcher", exit_code=137, at=LATE, line=900)).cause is Cause.KILLED
    reported = error("elastic", message="?", at=LATE, line=900)
    assert cause(reported).confidence == 0.5


def test_an_entry_that_this_catalogue_does_not_have_is_left_out() -> None:
    strange = fault("cuda-out-of-memory", at=LATE, line=100)._replace(entry=None)
    assert cause(strange, elastic(-9)).cause is Cause.KILLED


def test_after_means_further_down_the_same_file_or_later_in_another() -> None:
    (last,) = steps([2.0])
    assert is_after(None, 0.0, "x", 1)
    assert is_after(last, last.at, last.file, last.line + 1)
    assert not is_after(last, last.at + 9, last.file, last.line)
    assert is_after(last, last.at + 9, "other.log", 0)
    assert not is_after(last, last.at, "other.log", 99)


def test_where_an_error_was_raised_says_more_than_a_file_that_is_not_there() -> None:
    missing = fault("data-file-not-found", at=LATE, line=100)
    shown_events = raised(
        "CheckpointException", "ranks:dict_keys([0])", at=LATE, line=99, during="load"
    )
    assert cause(shown_events, missing, elastic(1), lines=[]).cause is Cause.CHECKPOINT


def test_a_load_that_ran_out_of_memory_is_not_the_checkpoints_fault() -> None:
    memory = fault("cuda-out-of-memory", at=LATE, line=100)
    shown_events = raised("OutOfMemoryError", "CUDA", at=LATE, line=99, during="load")
    assert cause(shown_events, memory, elastic(1), lines=[]).cause is Cause.OOM
