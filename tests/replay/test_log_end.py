# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Excerpts of logs: the fault at their end is the verdict, in a file that is still warm or old, and
what training survived is not. A live job is judged by more than its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwatch.engine.engine import Engine
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.finding import CulpritState
from mwatch.model.observation import Observed
from mwatch.replay.log_end import LAST_LINES
from support.builders.events import events, log, megatron_line
from support.builders.job import entries
from support.runs.recorded import read

FULL = "OSError: [Errno 28] No space left on device: '/ckpt/iter_0000100/__3_0.distcp'"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."
NO_SIZE = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory."
TIMEOUT = (
    "[rank{rank}]:[E501 10:10:00.1 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={size}, "
    "NumelOut={size}, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
)
TIMED_OUT = "EE1002: Stream synchronize timeout. rtDeviceSynchronize failed"
TEARDOWN = (
    "[rank5]:[E501 10:10:01.1 ProcessGroupNCCL.cpp:630] Some NCCL operations have failed or timed "
    "out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on "
    "corrupted/incomplete data."
)


def timeout(rank: int, seq: int = 51, op: str = "ALLREDUCE", size: int = 4096) -> str:
    return TIMEOUT.format(rank=rank, seq=seq, op=op, size=size)


@pytest.mark.parametrize("age", [0.0, 86_400.0])
@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([megatron_line(100), FULL], Cause.STORAGE),
        ([OOM], Cause.OOM),
        (["[rank3]: KeyError: 'input_ids'"], Cause.USER_ERROR),
        ([OOM, TEARDOWN, "wandb: Synced 5 files", "[rank5]: more text"], Cause.OOM),
        ([TEARDOWN, OOM], Cause.OOM),
        ([TIMED_OUT, NO_SIZE], Cause.HANG),
        (["  AssertionError: tp size should be divisible by 8"], Cause.USER_ERROR),
        (['  message: "AssertionError: the group is not initialized"'], Cause.USER_ERROR),
        (["AssertionErrorassert param.ds_status == ZeroParamStatus.AVAILABLE"], Cause.USER_ERROR),
        (["WARN: Line: 459: NET/OFI Couldn't open AV. RC: -22"], Cause.FABRIC),
        (["httpx.ReadTimeout: The read operation timed out"], Cause.FABRIC),
        (["HfHubHTTPError: 504 Server Error: Gateway Time-out for url: x-tokenizer"], Cause.FABRIC),
        (["ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready."], Cause.HANG),
        (["SafetensorError: I/O error: Invalid argument (os error 22)"], Cause.STORAGE),
        ([TIMED_OUT], Cause.HANG),
    ],
)
def test_the_fault_at_the_end_of_an_excerpt_is_the_verdict(
    tmp_path: Path, lines: list[str], cause: Cause, age: float
) -> None:
    report = read(tmp_path, *lines, age=age)
    assert report.verdict.cause is cause
    assert report.decision.action is not Action.NONE
    assert report.verdict.confidence <= 0.6
    assert report.advice.runbook is not None
    assert "still up" not in " ".join([report.verdict.summary, *report.notes])
    assert [each.cause for each in report.incidents] == [cause.value]


@pytest.mark.parametrize(
    "lines",
    [
        [FULL, megatron_line(100), megatron_line(101)],
        ["WARNING: No module named 'apex', falling back to torch", megatron_line(1)],
        ["WARNING: No module named 'apex', falling back to torch"],
        [OOM, *["some output of another trainer"] * (LAST_LINES + 1)],
    ],
)
def test_what_the_run_survived_is_not_its_end(tmp_path: Path, lines: list[str]) -> None:
    report = read(tmp_path, *lines)
    assert report.decision.action is Action.NONE
    assert report.verdict.cause in (Cause.UNKNOWN, Cause.HEALTHY, Cause.BLIND)


def test_a_fault_that_a_live_job_prints_is_not_acted_on() -> None:
    engine = Engine("run", entries())
    for each in events(log(megatron_line(1), megatron_line(2), FULL)):
        engine.observe(Observed(1000.0 + each.line, "pod-0", each))
    for later in range(0, 60, 5):
        assert engine.evaluate(1003.0 + later).decision.action is Action.NONE


def test_the_teardown_of_nccl_alone_is_no_hang(tmp_path: Path) -> None:
    report = read(tmp_path, TEARDOWN)
    assert (report.verdict.cause, report.verdict.culprit) == (Cause.CRASH, None)


@pytest.mark.parametrize(
    ("second", "third"),
    [(timeout(1, op="_ALLGATHER_BASE"), timeout(2)), (timeout(1, size=8), timeout(2))],
)
def test_ranks_in_different_collectives_are_an_error_of_the_code(
    tmp_path: Path, second: str, third: str
) -> None:
    report = read(tmp_path, timeout(0), second, third, TEARDOWN)
    assert (report.verdict.cause, report.decision.action) == (Cause.USER_ERROR, Action.STOP)
    culprit = report.verdict.culprit
    assert culprit is not None
    assert (culprit.rank, culprit.state) == (None, CulpritState.OUT_OF_STEP)
    assert report.advice.runbook == "user-code"


def test_the_one_rank_that_differs_from_three_others_is_named(tmp_path: Path) -> None:
    report = read(tmp_path, timeout(0), timeout(1), timeout(2), timeout(5, op="BROADCAST"))
    assert report.verdict.culprit is not None
    assert report.verdict.culprit.rank == 5


@pytest.mark.parametrize(
    "second",
    [
        timeout(1),
        timeout(1, seq=60, op="_ALLGATHER_BASE"),
        timeout(1, op="ALLTOALL", size=8).replace("ALLTOALL", "RECV"),
    ],
)
def test_ranks_that_may_be_in_step_time_out_in_a_hang(tmp_path: Path, second: str) -> None:
    report = read(tmp_path, timeout(0), second, TEARDOWN)
    assert (report.verdict.cause, report.decision.action) == (Cause.HANG, Action.RESTART)


def test_the_exception_of_one_rank_beats_the_timeouts_of_the_others(tmp_path: Path) -> None:
    report = read(tmp_path, timeout(0), timeout(1), TEARDOWN, "[rank2]: IndexError: out of range")
    assert (report.verdict.cause, report.decision.action) == (Cause.USER_ERROR, Action.STOP)


def test_a_traceback_without_its_last_line_names_the_place(tmp_path: Path) -> None:
    frames = ("Traceback (most recent call last):", '  File "/w/train.py", line 7, in main')
    report = read(tmp_path, *frames)
    assert "/w/train.py:7 in main" in report.verdict.summary


def test_the_reason_inside_a_line_beats_the_cascade_that_prints_it(tmp_path: Path) -> None:
    line = (
        "[rank3]:[E501 10:10:00.1 ProcessGroupNCCL.cpp:1440] [PG 0 Rank 3] Process group watchdog "
        "thread terminated with exception: CUDA error: uncorrectable ECC error encountered"
    )
    assert read(tmp_path, line).verdict.cause is Cause.HARDWARE


def test_no_older_checkpoint_is_recommended_where_none_is_known(tmp_path: Path) -> None:
    report = read(
        tmp_path,
        " loading checkpoint from /ckpt at iteration 100",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central "
        "directory",
    )
    assert report.verdict.cause is Cause.CHECKPOINT
    assert "resume from 100" not in (report.decision.proposal or "")
    assert "no checkpoint from before it is known" in report.advice.step


def test_the_evidence_is_the_line_as_it_was_printed(tmp_path: Path) -> None:
    statement = "    assert args.hidden_size %  args.heads == 0"
    frame = '  File "/w/arguments.py", line 70, in validate'
    lines = ("Traceback (most recent call last):", frame, statement, "AssertionError")
    report = read(tmp_path, *lines)
    assert report.finding is not None
    quoted = [(each.line, each.text) for each in report.finding.evidence]
    assert quoted == [(4, "AssertionError"), (2, frame.strip())]
    assert "args.hidden_size %  args.heads" in report.verdict.summary


@pytest.mark.parametrize(("line", "cause"), [(OOM, Cause.OOM), (FULL, Cause.STORAGE)])
def test_a_last_save_that_fails_after_the_training_is_no_good_end(
    tmp_path: Path, line: str, cause: Cause
) -> None:
    done = ["{'train_runtime': 108.2, 'train_loss': 0.98, 'epoch': 3.0}"]
    raised = ["Traceback (most recent call last):", '  File "train.py", line 9, in train', line]
    report = read(tmp_path, *done, *raised)
    assert (report.verdict.cause, report.decision.action) == (cause, Action.STOP)
    assert read(tmp_path, *done).verdict.cause is Cause.FINISHED
    late = ["[rank0]: RuntimeError: NCCL communicator was aborted on rank 0."]
    assert read(tmp_path, *done, *late).verdict.cause is Cause.FINISHED


GATHER = """\
{'train_runtime': 20110.3, 'train_loss': 0.9, 'epoch': 1.0}
[rank5]:   File "/lib/torch/distributed/fsdp/_optim_utils.py", line 1837, in _unflatten_optim_state
[rank5]:     tensor_buffer = value.new_zeros(*buffer_size)
[rank5]:   File "/lib/torchao/utils.py", line 444, in _dispatch__torch_dispatch__
[rank5]: NotImplementedError: attempting to run unimplemented operator"""


def test_a_last_save_that_the_code_cannot_do_is_an_error_of_the_code(tmp_path: Path) -> None:
    assert read(tmp_path, *GATHER.splitlines()).verdict.cause is Cause.USER_ERROR
    other = GATHER.replace("_unflatten_optim_state", "close_logger")
    assert read(tmp_path, *other.splitlines()).verdict.cause is Cause.FINISHED


@pytest.mark.parametrize(("seconds", "cause"), [(21, Cause.HEALTHY), (3000, Cause.HANG)])
def test_steps_without_a_time_need_a_long_silence(
    tmp_path: Path, seconds: int, cause: Cause
) -> None:
    clock = "[2021-06-08 {:02d}:{:02d}:{:02d},002] [INFO] [timer.py:157:stop] SamplesPerSec=1.8"
    overflow = "[2021-06-08 12:00:00,001] [INFO] OVERFLOW! Skipping step. Attempted loss scale: "
    lines = [f"{overflow}65536.0, reducing to 32768.0"]
    for number in range(1, 8):
        lines.append(f"{{'loss': {3 - number / 10}, 'step': {number * 10}}}")
        at = 12 * 3600 + number * 21 if number < 7 else 12 * 3600 + 6 * 21 + seconds
        lines.append(clock.format(at // 3600, at // 60 % 60, at % 60))
    assert read(tmp_path, *lines).verdict.cause is cause


def test_a_kill_after_the_training_counts_unless_its_result_was_saved(tmp_path: Path) -> None:
    done = "{'train_runtime': 51230.4, 'train_steps_per_second': 0.015, 'train_loss': 0.81}"
    killed = (
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 "
        "(pid: 4122) of binary: /usr/bin/python"
    )
    report = ("Root Cause (first observed failure):", "[0]:", "  rank      : 0 (local_rank: 0)",
              "  exitcode  : -9 (pid: 4122)", "=" * 20)  # fmt: skip
    found = read(tmp_path, done, killed, *report)
    assert found.verdict.cause is Cause.KILLED
    ended = read(tmp_path, done, *(line.replace("-9", "-11") for line in report))
    assert ended.verdict.cause is Cause.FINISHED
    last = megatron_line(100).replace("  500000", "     100")
    saved = "  successfully saved checkpoint from iteration     100 to /ckpt"
    assert read(tmp_path, last, saved, done, *report).verdict.cause is Cause.FINISHED


def test_stacks_dumped_by_a_person_show_a_hang(tmp_path: Path) -> None:
    dump = ('Thread 2211 (active): "MainThread"', "    synchronize (torch/cuda/__init__.py:792)")
    assert read(tmp_path, megatron_line(100), *dump).verdict.cause is Cause.HANG
    went_on = read(tmp_path, megatron_line(100), *dump, megatron_line(101), megatron_line(102))
    assert went_on.verdict.cause is Cause.UNKNOWN


def test_a_load_that_fails_below_a_cancelled_step_is_of_the_next_run(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        megatron_line(100),
        "slurmstepd: error: *** STEP 81.0 ON gpu-1 CANCELLED AT 2026-03-09T04:12:51 ***",
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 148, in load_checkpoint',
        "    dist_cp.load_state_dict(",
        "FileNotFoundError: [Errno 2] No such file or directory: 'ckpt/100steps/.metadata'",
        "srun: error: gpu-1: task 0: Exited with exit code 1",
    )
    assert found.verdict.cause is Cause.CHECKPOINT


def test_steps_given_up_for_overflows_are_of_the_loss_scale(tmp_path: Path) -> None:
    line = "Exception: Skipped 50 iterations in a row due to Overflow - Exiting training."
    assert read(tmp_path, megatron_line(100), line).verdict.cause is Cause.LOSS_SCALE_COLLAPSE


def test_an_old_nccl_prints_its_errors_as_warnings(tmp_path: Path) -> None:
    line = "h7:51109:51162 [1] include/socket.h:344 WARN Socket creation failed : "
    found = read(tmp_path, line + "Address family not supported by protocol")
    assert found.verdict.cause is Cause.USER_ERROR


def test_a_run_stopped_by_hand_before_its_first_step_may_have_stood_still(tmp_path: Path) -> None:
    last = "^CKeyboardInterrupt"
    found = read(tmp_path, "constructing DDP(model) ...", last)
    assert (found.verdict.cause, found.decision.action) == (Cause.HANG, Action.STOP)
    assert found.decision.is_advice
    trained = read(tmp_path, megatron_line(100), last)
    assert trained.verdict.cause is Cause.DELETED_BY_USER


def test_a_loss_scale_that_is_zero_is_no_error_of_the_code(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "Traceback (most recent call last):",
        '  File "train_gpt2.py", line 143, in <module>',
        "    scaled_loss.backward()",
        '  File "/opt/conda/lib/python3.6/site-packages/apex/amp/scaler.py", line 114, in unscale',
        "    1./scale)",
        "ZeroDivisionError: float division by zero",
    )
    assert found.verdict.cause is Cause.LOSS_SCALE_COLLAPSE


def test_no_checkpoint_yet_is_not_why_the_ranks_did_not_meet(tmp_path: Path) -> None:
    none_yet = "Checkpoint tracker file does not exist: /out/latest_checkpointed_iteration.txt"
    assert read(tmp_path, none_yet, timeout(1)).verdict.cause is Cause.HANG


def test_a_job_cancelled_before_its_first_step_may_have_hung(tmp_path: Path) -> None:
    parts = ("tokenizer", "index", "model", "optimizer", "scheduler", "loader", "groups", "buffers")
    starts = [f"building the {part}" for part in parts]
    cancelled = "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-01-01T10:00:00 ***"
    assert read(tmp_path, *starts, cancelled).verdict.cause is Cause.HANG
    assert read(tmp_path, cancelled).verdict.cause is Cause.DELETED_BY_USER


def test_a_kernel_that_never_worked_is_not_tried_again_on_the_word_of_a_file(
    tmp_path: Path,
) -> None:
    failed = "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"
    report = read(tmp_path, failed)
    assert (report.verdict.cause, report.decision.action) == (Cause.CRASH, Action.STOP)
    assert report.decision.is_advice
    trained = read(tmp_path, megatron_line(10), failed)
    assert (trained.verdict.cause, trained.decision.action) == (Cause.CRASH, Action.RESTART)
    assert not trained.decision.is_advice


def test_a_container_that_is_started_again_and_again_is_not_started_again(tmp_path: Path) -> None:
    loop = "  Warning  BackOff  1s (x24 over 4m50s)  kubelet  Back-off restarting failed container"
    report = read(tmp_path, "      Exit Code:    255", loop)
    assert (report.verdict.cause, report.decision.action) == (Cause.USER_ERROR, Action.STOP)


def test_a_task_that_stands_still_without_memory_is_no_bad_machine(tmp_path: Path) -> None:
    hung = "INFO: task pt_data_worker:90114 blocked for more than 24 seconds."
    killed = ["      Reason:       OOMKilled", "      Exit Code:    137"]
    assert read(tmp_path, megatron_line(10), *killed, hung).verdict.cause is Cause.OOM
    assert read(tmp_path, megatron_line(10), hung).verdict.cause is not Cause.OOM


BROKEN_PIPE = (
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3.8/multiprocessing/queues.py", line 245, in _feed',
    "    send_bytes(obj)",
    "BrokenPipeError: [Errno 32] Broken pipe",
)


def test_an_exception_after_which_an_unknown_count_rises_was_caught(tmp_path: Path) -> None:
    rounds = [f"Federated learning round {n}. Test acc 71.{n}" for n in range(41, 46)]
    caught = read(tmp_path, rounds[0], *BROKEN_PIPE, *rounds[1:])
    assert caught.verdict.cause in (Cause.HEALTHY, Cause.UNKNOWN)
    assert read(tmp_path, *rounds, *BROKEN_PIPE).verdict.cause is Cause.CRASH


def test_a_full_bar_hides_no_timeout_after_it(tmp_path: Path) -> None:
    bar = "Train step: 100%|██████████| 250/250 [09:28<00:00, 20.21s/it, gpt_loss=0.702]"
    stuck = timeout(1).replace("Watchdog caught", "watchdog got stuck for 480 seconds, caught")
    assert read(tmp_path, bar).verdict.cause is Cause.FINISHED
    assert read(tmp_path, bar, timeout(1), stuck).verdict.cause is Cause.HANG


def test_a_warning_that_ends_the_training_counts(tmp_path: Path) -> None:
    text = "x WARNING: TerminateOnNan: Output '{'loss': nan}' contains NaN or Inf."
    assert read(tmp_path, f"{text} Stop training").verdict.cause is Cause.NAN


@pytest.mark.parametrize(
    ("header", "is_end"),
    [
        ("Exception in thread QueueFeederThread:", False),
        ("Process ForkPoolWorker-1:1:", False),
        ("something else", True),
    ],
)
def test_a_helper_that_lost_its_peer_has_ended_nothing(
    tmp_path: Path, header: str, is_end: bool
) -> None:
    report = read(tmp_path, "**** EPOCH 499 ****", header, *BROKEN_PIPE)
    assert (report.verdict.cause is Cause.CRASH) is is_end
    assert (report.decision.action is not Action.NONE) is is_end


def test_a_port_that_another_job_holds_is_the_users_to_change(tmp_path: Path) -> None:
    in_use = "RuntimeError: Address already in use"
    assert read(tmp_path, in_use).verdict.cause is Cause.USER_ERROR
    assert read(tmp_path, megatron_line(100), in_use).verdict.cause is Cause.FABRIC


def test_a_file_that_a_loader_reads_is_no_checkpoint(tmp_path: Path) -> None:
    cut = "_pickle.UnpicklingError: pickle data was truncated"
    loader = "_pickle.UnpicklingError: Caught UnpicklingError in DataLoader worker process 3."
    assert read(tmp_path, cut).verdict.cause is Cause.CHECKPOINT
    assert read(tmp_path, loader, cut).verdict.cause is Cause.DATA


def test_a_loss_scale_that_was_never_good_is_not_tried_again(tmp_path: Path) -> None:
    lines = [
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: "
        f"{2 ** (16 - step)}, reducing to {2 ** max(15 - step, 0)}"
        for step in range(17)
    ]
    lines += [lines[-1]] * 8
    report = read(tmp_path, *lines)
    assert report.verdict.cause is Cause.LOSS_SCALE_COLLAPSE
    assert report.decision.action is Action.STOP
