# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The text that dying trainers and their launchers leave behind (log-formats 4 and 6)."""

from __future__ import annotations

import time
from typing import NamedTuple

from sim.release import glog

PYTHON = "/opt/venv/bin/python3"
_SIGNALS = {-6: "SIGABRT", -9: "SIGKILL", -11: "SIGSEGV", -15: "SIGTERM"}


class Frame(NamedTuple):
    file: str
    line: int
    function: str
    code: str


TRAIN = (
    Frame("/workspace/Megatron-LM/pretrain_gpt.py", 536, "<module>", "pretrain("),
    Frame("/workspace/Megatron-LM/megatron/training/training.py", 2027, "pretrain", "train("),
    Frame("/workspace/Megatron-LM/megatron/training/training.py", 4722, "train", ") = train_step("),
)
LOAD = (
    TRAIN[0],
    Frame(
        "/workspace/Megatron-LM/megatron/training/training.py",
        1165,
        "setup_model_and_optimizer",
        "args.iteration, args.num_floating_point_operations_so_far = load_checkpoint(",
    ),
)


def pid(rank: int) -> int:
    return 2000 + rank


def traceback(rank: int, error: str, *frames: Frame) -> list[str]:
    """As torch's hook prints it: each line with the global rank."""
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        lines.append(f'  File "{frame.file}", line {frame.line}, in {frame.function}')
        lines.append(f"    {frame.code}")
    return [f"[rank{rank}]: {line}" for line in [*lines, error]]


def worker_failed(at: float, local: int, rank: int, code: int) -> str:
    return (
        f"E{glog(at)} 871 torch/distributed/elastic/multiprocessing/api.py:986] failed"
        f" (exitcode: {code}) local_rank: {local} (pid: {pid(rank)}) of binary: {PYTHON}"
    )


def child_failed(at: float, local: int, rank: int, code: int) -> list[str]:
    """torchrun's own end: its traceback, and the block that names the first failure."""
    signal = _SIGNALS.get(code)
    cause = (
        f"Signal {-code} ({signal}) received by PID {pid(rank)}"
        if signal
        else "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    )
    when = time.strftime("%Y-%m-%d_%H:%M:%S", time.gmtime(int(at)))
    return [
        "Traceback (most recent call last):",
        '  File "/opt/venv/lib/python3.12/site-packages/torch/distributed/run.py", line 990,'
        " in main",
        "    run(args)",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "=" * 60,
        "pretrain_gpt.py FAILED",
        "-" * 60,
        "Failures:",
        "  <NO_OTHER_FAILURES>",
        "-" * 60,
        "Root Cause (first observed failure):",
        "[0]:",
        f"  time      : {when}",
        "  host      : worker.train.svc.cluster.local",
        f"  rank      : {rank} (local_rank: {local})",
        f"  exitcode  : {code} (pid: {pid(rank)})",
        "  error_file: <N/A>",
        f"  traceback : {cause}",
        "=" * 60,
    ]


def torchrun_restart(at: float, left: int, most: int) -> str:
    return (
        f"W{glog(at)} 871 torch/distributed/elastic/agent/server/api.py:900] [default] Worker"
        f" group FAILED. {left}/{most} attempts left; will restart worker group"
    )


def closing_signal(at: float, rank: int) -> str:
    return (
        f"W{glog(at)} 871 torch/distributed/elastic/multiprocessing/api.py:900] Sending process"
        f" {pid(rank)} closing signal SIGTERM"
    )


def _torch_nccl(at: float, rank: int, text: str) -> str:
    head = f"[rank{rank}]:[E{glog(at)}321 ProcessGroupNCCL.cpp:2303]"
    return f"{head} [PG ID 2 PG GUID 14(DATA_PARALLEL_GROUP) Rank {rank}] {text}"


def collective_timeout(at: float, rank: int, work: int, seconds: float) -> list[str]:
    milliseconds = int(seconds * 1000)
    return [
        _torch_nccl(
            at, rank,
            f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={work},"
            f" OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)={milliseconds}) ran for"
            f" {milliseconds + 81} milliseconds before timing out.",
        ),
        _torch_nccl(
            at, rank,
            f"Exception (either an error or timeout) detected by watchdog at work: {work},"
            f" last enqueued NCCL work: {work + 2}, last completed NCCL work: {work - 1}.",
        ),
        _torch_nccl(
            at, rank,
            "To avoid data inconsistency, we are taking the entire process down.",
        ),
    ]  # fmt: skip


def peer_closed(at: float, rank: int, host: str) -> list[str]:
    """What the neighbours of a dead rank print: cascade, however loud."""
    return [
        f"{host}:{pid(rank)}:{pid(rank) + 77} [{rank % 8}] misc/socket.cc:58 NCCL WARN"
        " socketProgress: Connection closed by remote peer peer.train.svc<51234>",
        _torch_nccl(
            at, rank,
            "Process group watchdog thread terminated with exception: NCCL error in:"
            " ProcessGroupNCCL.cpp:2006, remote process exited or there was a network error,"
            " NCCL version 2.27.3",
        ),
    ]  # fmt: skip


def ib_retries(rank: int, host: str) -> str:
    return (
        f"{host}:{pid(rank)}:{pid(rank) + 77} [{rank % 8}] transport/net_ib.cc:1285 NCCL WARN"
        " NET/IB : Got completion from peer 10.0.3.17<40511> with status=12 opcode=0 len=0"
        " vendor err 129 (Send) localGid fe80::1 remoteGids fe80::2 hca mlx5_2"
    )


def destroyed(at: float, rank: int) -> str:
    """At every exit; harmless."""
    return (
        f"[rank{rank}]:[W{glog(at)}130 ProcessGroupNCCL.cpp:1575] Warning: WARNING:"
        " destroy_process_group() was not called before program exit, which can leak resources."
        " For more info, please see https://pytorch.org/docs/stable/distributed.html#shutdown"
        " (function operator())"
    )


def xid(bus: str, number: int, text: str) -> str:
    return f"NVRM: Xid (PCI:0000:{bus}:00): {number}, pid='<unknown>', name=<unknown>, {text}"
