# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lines that look bad and mean nothing, and pauses that end: a healthy job has them all."""

from __future__ import annotations

from sim import lines, wreckage
from sim.trainer import Trainer

VARIANTS = ("caught", "nccl", "port", "words", "corrected", "guess")


def _of_another_run(trainer: Trainer, back: int) -> str:
    """An iteration line of the log of an earlier run, which somebody prints into this one."""
    done = max(1, trainer.weights.iteration - back)
    report = lines.Report(done, 32 * done, 1000.0, 1e-4, 32, 2.0, 1.0, 1.0, 0, 0)
    return lines.iteration_line(trainer.stage.now - 86400.0, trainer.shape, report)


def harmless(trainer: Trainer, variant: str, rank: int) -> list[str]:
    now, host = trainer.stage.now, trainer.stage.host(rank)
    texts = {
        "caught": [
            "WARNING: retrying after an exception in the metrics client:",
            "Traceback (most recent call last):",
            '  File "/usr/lib/python3.12/urllib/request.py", line 1344, in do_open',
            "    h.request(req.get_method(), req.selector, req.data, headers)",
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            "metrics client: reconnected",
        ],
        "nccl": [
            f"{host}:{wreckage.pid(rank)}:99 [{rank % 8}] NCCL WARN Call to connect to"
            " 10.0.3.17<40511> failed : Connection refused, retrying",
        ],
        "port": [
            f"{host}:{wreckage.pid(rank)}:99 [{rank % 8}] transport/net_ib.cc:94 NCCL WARN"
            " NET/IB : mlx5_2:1 Got async event : port error",
        ],
        "words": [
            "INFO: error rate of the tokenizer cache: 0.0 (no error, no failure, nan: 0)",
            "> fatal errors so far: 0",
            wreckage.destroyed(now, rank),
        ],
        "corrected": ["nvidia 0000:18:00.0: PCIe Bus Error: severity=Corrected, type=Physical"
                      " Layer, (Receiver ID)"],
        "guess": [
            f"[rank{rank}]:[W1115 03:59:39.115227172 ProcessGroupNCCL.cpp:5188] Guessing device"
            " ID based on global rank. This can cause a hang if rank to GPU mapping is"
            " heterogeneous.",
        ],
        "exit codes": [
            "exit code 1", "Rank 3 crashed with exit code -9 in my run",
            "command terminated with exit code 137",
        ],
        "report": [
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "=" * 60,
            "pretrain_gpt.py FAILED", "Root Cause (first observed failure):", "[0]:",
            "  exitcode  : 1 (pid: 4711)", "=" * 60,
        ],
        "done": [lines.marker(trainer.stage.shown, trainer.shape.release,
                              "after training is done")],
        "other run": [_of_another_run(trainer, back) for back in (3, 2, 1)],
    }  # fmt: skip
    return texts[variant]
