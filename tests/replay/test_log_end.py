# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Excerpts of logs: the fault at their end is the verdict, in a file that is still warm or old, and
what training survived is not. A live job is judged by more than its text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mwatch.engine.engine import Engine
from mwatch.model.decision import Action
from mwatch.model.finding import Cause, CulpritState
from mwatch.model.observation import Observed
from mwatch.replay.log_end import LAST_LINES
from mwatch.replay.replay import ReplayRequest, replay
from mwatch.report.run_report import RunReport
from support.builders.events import events, log, megatron_line
from support.builders.job import entries

NOW = 2_000_000_000.0
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


def read(folder: Path, *lines: str, age: float = 86_400.0) -> RunReport:
    file = folder / "train.log"
    file.write_text(log(*lines))
    os.utime(file, (NOW - age, NOW - age))
    return replay(ReplayRequest([str(file)]), NOW)


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


@pytest.mark.parametrize(("seconds", "cause"), [(21, Cause.UNKNOWN), (3000, Cause.HANG)])
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
