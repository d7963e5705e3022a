# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch run` around a real training of two ranks, one of which stops to read its data.

The policy waits some seconds before it acts on a stall that could heal, so that the stall is there
long enough to be scraped, judged and sent.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from support.free_ports import free_port
from support.runs.live_runs import Running, command, started
from support.waiting import until

RUN = "r"
"""As `live_runs` names it."""
POLICY = """
[act]
backoff_first_seconds = 1.0
backoff_factor = 1.0
default_restart_cost_seconds = 8.0
min_restart_cost_seconds = 8.0
stall_factor = 1.0
"""
_SIZE = (
    "--num-layers 1 --hidden-size 32 --num-attention-heads 2 --seq-length 32 --lr 1e-3 "
    "--micro-batch-size 2 --global-batch-size 4 --train-iters 100000 --log-interval 1 "
    "--eval-interval 100000 --eval-iters 1 --save-interval 20 --log-throughput "
    "--fp16 --initial-loss-scale 4096 --loss-scale-window 100"
)


def trainer(*faults: str) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    folders = "--save ckpt --load ckpt --fault-state faults --tensorboard-dir events"
    flags = [part for fault in faults for part in ("--fault", fault)]
    of_gpt = [*_SIZE.split(), *folders.split(), *flags]
    # Two ranks want two GPUs, which few machines have: the processor will do everywhere.
    on_processor = ["env", "CUDA_VISIBLE_DEVICES="]
    return [*on_processor, *torchrun, "--nproc-per-node", "2", "-m", "mwatch_gpt", *of_gpt]


@contextmanager
def training(folder: Path, *faults: str) -> Iterator[tuple[Running, str]]:
    """The run and the address of its metrics. It is killed at the end."""
    then = trainer(*faults)
    line = command(folder, "--act", "--port", str(free_port()), then=then, policy=POLICY)
    with started(line, folder) as running:
        until(lambda: "/metrics" in running.said.read_text("utf-8"))
        note = json.loads(running.said.read_text("utf-8").splitlines()[0])
        yield running, urlsplit(note["summary"].split()[-1]).netloc
