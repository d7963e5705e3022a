# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Families of failures, each by texts that differ in their words: cause and action are the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.replay.replay import ReplayRequest, replay
from support.builders.events import log, megatron_line

NOW = 2_000_000_000.0
LAST = "{'train_runtime': 190.5, 'train_samples_per_second': 0.6, 'train_loss': 0.7, 'epoch': 1.0}"
BAR = "100%|##########| 64/64 [03:10<00:00,  2.97s/it]"
TIMEOUT = (
    "[rank0]:[E ProcessGroupNCCL.cpp:475] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=3391, OpType=_ALLGATHER_BASE, NumelIn=26, NumelOut=52, Timeout(ms)=1800000) "
    "ran for 1800911 milliseconds before timing out."
)
NO_CUDA = "  what():  CUDA error: initialization error"
TRAINED = megatron_line(100)
RAISED = "Traceback (most recent call last):"


def frame(function: str, file: str = "/w/train.py") -> tuple[str, str]:
    return f'  File "{file}", line 10, in {function}', "    result = call()"


def judged(folder: Path, *lines: str) -> tuple[Cause, Action]:
    file = folder / "train.log"
    file.write_text(log(*lines))
    os.utime(file, (NOW - 86_400.0, NOW - 86_400.0))
    report = replay(ReplayRequest([str(file)]), NOW)
    return report.verdict.cause, report.decision.action


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([BAR, LAST, TIMEOUT], Cause.HANG),
        ([LAST, RAISED, *frame("save_model"), "EOFError"], Cause.CRASH),
        ([LAST, RAISED, *frame("write_preloaded_data_multiproc"), "EOFError"], Cause.CRASH),
        ([LAST, RAISED, *frame("_save"), "ValueError: tensors share memory"], Cause.USER_ERROR),
        ([LAST, RAISED, *frame("export"), "ValueError: no such format"], Cause.USER_ERROR),
        ([LAST, RAISED, *frame("finish"), "ValueError: the run is over"], Cause.FINISHED),
        ([LAST, RAISED, *frame("main"), "BrokenPipeError: [Errno 32] Broken"], Cause.FINISHED),
    ],
)
def test_what_comes_after_the_last_step_counts_if_the_result_is_lost(
    tmp_path: Path, lines: list[str], cause: Cause
) -> None:
    assert judged(tmp_path, *lines)[0] is cause


def test_a_result_that_is_saved_is_not_lost(tmp_path: Path) -> None:
    saved = "  successfully saved checkpoint from iteration     200 to /ckpt [ t 1/1, p 1/1 ]"
    done = "[after training is done] datetime: 2025-09-07 23:59:02"
    last = megatron_line(200).replace("/  500000", "/     200")
    found = judged(tmp_path, last, done, saved, TIMEOUT)
    assert found == (Cause.FINISHED, Action.NONE)


def test_a_bar_of_the_training_shows_its_end_and_another_does_not(tmp_path: Path) -> None:
    step = "(TaskRunner pid=4) step:{} - actor/pg_loss:-0.002 - actor/grad_norm:0.118"
    died = "(raylet) A worker died or was killed while executing a task by an unexpected error."
    bar = "{}: 100%|##########| 8/8 [8:51:10<00:00, 71.91s/it]"
    lines = [step.format(7), bar.format("Training Progress"), step.format(8), died]
    assert judged(tmp_path, *lines)[0] is Cause.FINISHED
    lines[1] = bar.format("Validating")
    assert judged(tmp_path, *lines)[0] is Cause.CRASH


@pytest.mark.parametrize("function", ["_download_checkpoint", "restore_ckpt", "load_checkpoint"])
def test_a_file_that_is_missing_in_a_load_is_one_of_the_checkpoint(
    tmp_path: Path, function: str
) -> None:
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/rank_0.tar'"
    assert judged(tmp_path, RAISED, *frame(function), missing)[0] is Cause.CHECKPOINT
    assert judged(tmp_path, RAISED, *frame("build_dataset"), missing)[0] is Cause.DATA


@pytest.mark.parametrize(
    "worker",
    [
        "RuntimeError: DataLoader worker (pid(s) 1181, 1183) exited unexpectedly",
        "RuntimeError: DataLoader worker (pid 21486) is killed by signal: Aborted.",
        "RuntimeError: Caught RuntimeError in DataLoader worker process 0.",
    ],
)
def test_cuda_that_does_not_start_in_a_loader_worker_is_no_bad_gpu(
    tmp_path: Path, worker: str
) -> None:
    assert judged(tmp_path, NO_CUDA, worker) == (Cause.USER_ERROR, Action.STOP)
    assert judged(tmp_path, NO_CUDA)[0] is Cause.HARDWARE


def test_an_advice_to_debug_is_no_level_of_a_line(tmp_path: Path) -> None:
    barrier = "XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Read the log to debug further"
    assert judged(tmp_path, TRAINED, barrier) == (Cause.FABRIC, Action.RESTART)


def test_the_signal_that_a_framework_reports_is_not_the_cause(tmp_path: Path) -> None:
    refused = (
        "  what():  [gloo/transport/tcp/pair.cc:799] connect [127.0.0.1]:2185: Connection refused"
    )
    signal = "FatalError: `Process abort signal` is detected by the operating system."
    assert judged(tmp_path, refused, signal)[0] is Cause.FABRIC


@pytest.mark.parametrize(
    ("lines", "cause", "action"),
    [
        (["omegaconf.errors.MissingMandatoryValue: Missing mandatory value: data.path"],
         Cause.USER_ERROR, Action.STOP),
        (["Could not override 'trainer.max_step'."], Cause.USER_ERROR, Action.STOP),
        (["RuntimeError: HIP error: invalid device function"], Cause.USER_ERROR, Action.STOP),
        (["jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm"],
         Cause.OOM, Action.STOP),
        ([TRAINED, "jax.errors.JaxRuntimeError: UNAVAILABLE: Socket closed"],
         Cause.LOST_POD, Action.RESTART),
        (["XlaRuntimeError: INVALID_ARGUMENT: Mosaic failed to compile"],
         Cause.USER_ERROR, Action.STOP),
        (["RuntimeError: Failed to connect to lighthouse: Connection refused (os error 111)"],
         Cause.FABRIC, Action.RESTART),
        (["wandb.errors.errors.CommError: user is not logged in (Error 401: Unauthorized)"],
         Cause.USER_ERROR, Action.STOP),
        (["wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec."],
         Cause.CRASH, Action.RESTART),
        (["slurmstepd: error: pyxis: container start failed with error code: 1"],
         Cause.IMAGE, Action.STOP),
        (["FATAL:   could not open image /images/train.sif: no such file"],
         Cause.IMAGE, Action.STOP),
        ([TRAINED, "OSError: [Errno 103] Software caused connection abort: '/gcs/ckpt'"],
         Cause.STORAGE, Action.RESTART),
        (["The node had condition: [PIDPressure]."], Cause.LOST_POD, Action.RESTART),
        ([TRAINED, "ORTE has lost communication with its daemon located on node:"],
         Cause.FABRIC, Action.RESTART),
        ([TRAINED, "ssl.SSLEOFError: [SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred"],
         Cause.FABRIC, Action.RESTART),
        (["OSError: image file is truncated (24 bytes not processed)"], Cause.DATA, Action.STOP),
        ([TRAINED, "ValueError: Grad Norm Spiked"], Cause.LOSS_SPIKE, Action.STOP),
        (["W0903 hook.py:91] found TPU t5 in state PREEMPTED, and health None."],
         Cause.PREEMPTED, Action.NONE),
        (["agent closed with allocated containers"], Cause.LOST_POD, Action.RESTART),
        (["watchdog: no new log line for 8402 s, gpu util 0 0"], Cause.HANG, Action.RESTART),
        (["RuntimeError: Cannot call current_seed during CUDA graph capture."],
         Cause.USER_ERROR, Action.STOP),
    ],
)  # fmt: skip
def test_a_family_has_one_verdict(
    tmp_path: Path, lines: list[str], cause: Cause, action: Action
) -> None:
    assert judged(tmp_path, *lines) == (cause, action)


NAN_LINES = [
    "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 2e-06, 'epoch': 0.01}",
    "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 4e-06, 'epoch': 0.02}",
]
GOOD_LINES = [
    "{'loss': 2.1, 'grad_norm': 0.5, 'learning_rate': 2e-06, 'epoch': 0.01}",
    "{'loss': 2.0, 'grad_norm': 0.5, 'learning_rate': 4e-06, 'epoch': 0.02}",
]


def test_bad_numbers_of_a_run_that_has_hardly_begun_are_not_tried_again(tmp_path: Path) -> None:
    assert judged(tmp_path, *NAN_LINES) == (Cause.NAN, Action.STOP)
    assert judged(tmp_path, *GOOD_LINES, *NAN_LINES) == (Cause.NAN, Action.STOP)
    assert judged(tmp_path, *GOOD_LINES * 30, *NAN_LINES) == (Cause.NAN, Action.RESTART)


def test_numbers_that_a_failed_collective_left_undefined_are_no_cause(tmp_path: Path) -> None:
    other = "[rank0]: RuntimeError: DDP expects same model across all ranks, but Rank 0 has 148 "
    none = other + "params, while rank 9 has inconsistent 0 params."
    assert judged(tmp_path, TIMEOUT, none)[0] is Cause.HANG
    assert judged(tmp_path, none)[0] is Cause.USER_ERROR
    assert judged(tmp_path, TIMEOUT, other + "params, while rank 9 has 147")[0] is Cause.USER_ERROR


@pytest.mark.parametrize("function", ["_jit_compile", "init_process_group"])
def test_a_start_that_people_interrupt_since_it_does_not_end_is_a_hang(
    tmp_path: Path, function: str
) -> None:
    stopped = [RAISED, *frame(function), "KeyboardInterrupt"]
    assert judged(tmp_path, *stopped)[0] is Cause.HANG
    assert judged(tmp_path, TRAINED, *stopped)[0] is Cause.DELETED_BY_USER


@pytest.mark.parametrize(
    ("function", "cause"),
    [("_try_get_data", Cause.HANG), ("save_checkpoint", Cause.HANG), ("backward", None)],
)
def test_a_person_interrupts_a_short_task_only_if_it_does_not_end(
    tmp_path: Path, function: str, cause: Cause | None
) -> None:
    stopped = [RAISED, *frame(function), "KeyboardInterrupt"]
    found = judged(tmp_path, TRAINED, *stopped)
    advised = (Cause.DELETED_BY_USER, Action.NONE) if cause is None else (cause, Action.RESTART)
    assert found == advised


def test_what_tidies_up_after_a_process_ends_nothing(tmp_path: Path) -> None:
    busy = "OSError: [Errno 39] Directory not empty: 'pymp-2x'"
    tidy = [RAISED, *frame("_run_finalizers", "/usr/lib/python3.9/multiprocessing/util.py"), busy]
    epochs = [f"epoch {number} done, train loss 0.09, valid acc 99.1" for number in range(4, 8)]
    cause, action = judged(tmp_path, epochs[0], *tidy, *epochs[1:], *tidy)
    assert cause in (Cause.UNKNOWN, Cause.HEALTHY) and action is Action.NONE


def test_the_gpu_that_is_gone_says_more_than_that_none_is_visible(tmp_path: Path) -> None:
    none = "RuntimeError: No CUDA GPUs are available"
    lost = "Failed to initialize NVML: Unknown Error"
    assert judged(tmp_path, TRAINED, none, lost) == (Cause.HARDWARE, Action.RESTART)
    assert judged(tmp_path, none) == (Cause.USER_ERROR, Action.STOP)


def test_a_mount_that_several_ranks_lost_is_not_the_fault_of_the_first(tmp_path: Path) -> None:
    file = tmp_path / "train.log"
    lost = "[rank{0}]: OSError: [Errno 107] Transport endpoint is not connected: '/mnt/{0}.pt'"
    file.write_text(log(TRAINED, lost.format(12), lost.format(14)))
    verdict = replay(ReplayRequest([str(file)]), NOW).verdict
    assert (verdict.cause, verdict.culprit) == (Cause.STORAGE, None)


@pytest.mark.parametrize(
    "line",
    [
        "[batch={0}/24000]: loss/train/total: {1}  lr-DecoupledAdamW/group0: 0.0006",
        'INFO | train_inner | {{"epoch": 12, "loss": "{1}", "num_updates": "{0}"}}',
        '{{"loss": {1}, "grad_norm": 0.3, "iteration": "{0}/2000"}}',
        "I0903 04:12:36.5 1400 basic_session_run_hooks.py:260] loss = {1}, step = {0} (45 sec)",
        "epoch {0} done, train loss {1}, valid acc 99.1",
    ],
)
def test_steps_of_other_loops_are_read(tmp_path: Path, line: str) -> None:
    losses = [2.1, 2.0, 2.0, 1.9, "nan"]
    shown = [line.format(at + 5, loss) for at, loss in enumerate(losses)]
    assert judged(tmp_path, *shown)[0] is Cause.NAN


def test_an_unknown_exception_is_judged_by_where_it_was_raised(tmp_path: Path) -> None:
    odd = "samples.SampleTooLong: sample 991231 has 9000 tokens"
    data = [TRAINED, RAISED, *frame("__getitem__", "/w/samples.py"), odd]
    assert judged(tmp_path, *data) == (Cause.DATA, Action.STOP)
    step = [TRAINED, RAISED, *frame("forward", "/w/model.py"), odd]
    assert judged(tmp_path, *step) == (Cause.CRASH, Action.RESTART)


def test_scary_lines_in_a_run_that_goes_on_are_no_verdict(tmp_path: Path) -> None:
    scary = [
        "wandb.errors.errors.CommError: user is not logged in (Error 401: Unauthorized)",
        "nvshmem initialization failed, falling back",
        "FATAL:   could not open image /images/extra.sif: no such file",
        "NFS: state manager: lease expired failed on NFSv4 server 10.0.0.2",
    ]
    lines = [line for at, text in enumerate(scary) for line in (megatron_line(100 + at), text)]
    found = judged(tmp_path, *lines, *(megatron_line(110 + at) for at in range(4)))
    assert found[1] is Action.NONE


FAILED = "[INFO] [default] Worker group FAILED. 2/3 attempts left; will restart worker group"
BAD_INDEX = [RAISED, *frame("train_step"), "IndexError: list index out of range"]


@pytest.mark.parametrize("announced", [[FAILED], [FAILED, FAILED]])
def test_a_restart_that_is_only_announced_does_not_hide_what_ended_the_attempt(
    tmp_path: Path, announced: list[str]
) -> None:
    assert judged(tmp_path, TRAINED, *BAD_INDEX, *announced)[0] is Cause.USER_ERROR
    again = [TRAINED, *BAD_INDEX, *announced, megatron_line(101)]
    assert judged(tmp_path, *again)[0] is not Cause.USER_ERROR


CANCELLED = "slurmstepd: error: *** STEP 77.0 ON node-1 CANCELLED AT 2026-02-03T18:40:09 ***"


def test_an_exception_of_a_step_that_slurm_had_ended_is_no_cause(tmp_path: Path) -> None:
    ended = "srun: error: node-1: tasks 0-7: Terminated"
    assert judged(tmp_path, TRAINED, CANCELLED, *BAD_INDEX, ended)[0] is Cause.KILLED
    assert judged(tmp_path, TRAINED, *BAD_INDEX, CANCELLED, ended)[0] is Cause.USER_ERROR
    failed = "srun: error: node-1: task 3: Exited with exit code 1"
    assert judged(tmp_path, TRAINED, failed, CANCELLED, *BAD_INDEX)[0] is Cause.USER_ERROR


SEGFAULT = "Segmentation fault (core dumped)"


def test_a_crash_after_a_watchdog_gave_up_is_not_the_cause(tmp_path: Path) -> None:
    assert judged(tmp_path, TRAINED, TIMEOUT, SEGFAULT)[0] is Cause.HANG
    assert judged(tmp_path, TRAINED, SEGFAULT, TIMEOUT)[0] is Cause.CRASH


def test_the_header_of_ray_does_not_hide_the_exception_below_it(tmp_path: Path) -> None:
    header = "ray.exceptions.RayTaskError(RuntimeError): ray::Worker.step() (pid=18, ip=10.2.4.7)"
    raised = "(Worker pid=18) RuntimeError: op.default: got mixed torch.Tensor and DTensor"
    assert judged(tmp_path, header, raised)[0] is Cause.USER_ERROR


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("/data/enron/enron_text_document.idx", Cause.DATA),
        ("/opt/lib/fused_kernels/build/lock", Cause.USER_ERROR),
        ("/ckpt/iter_0002000/common.pt", Cause.CHECKPOINT),
    ],
)
def test_whose_a_missing_file_is_shows_in_its_path(tmp_path: Path, path: str, cause: Cause) -> None:
    error = f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    assert judged(tmp_path, RAISED, *frame("main"), error)[0] is cause


def test_a_harmless_line_at_the_end_of_a_log_is_no_complaint(tmp_path: Path) -> None:
    notice = "Invalidate trace cache @ step 10: expected module 11, but got module 19"
    assert judged(tmp_path, "***** Running training *****", notice)[0] is Cause.UNKNOWN
