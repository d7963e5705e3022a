# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Logs of whole runs for the tests of `replay`, written line by line with a clock of their own."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from mwatch.replay.replay import ReplayRequest, replay
from mwatch.report.run_report import RunReport
from support.builders.events import arguments_block, log, megatron_line

NOW = 2_000_000_000.0
START = datetime(2026, 1, 7, 10, 0, 0)
KILLED = (
    "E0107 {time} 2540 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: -9)"
    " local_rank: 0 (pid: 2632) of binary: /usr/bin/python3"
)
ELASTIC = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
pretrain_gpt.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : {date}_{time}
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -9 (pid: 2632)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 2632
============================================================"""


def read(folder: Path, *lines: str, age: float = 86_400.0) -> RunReport:
    """What mwatch makes of an excerpt in a file of that age, in seconds before `NOW`."""
    file = folder / "train.log"
    file.write_text(log(*lines))
    os.utime(file, (NOW - age, NOW - age))
    return replay(ReplayRequest([str(file)]), NOW)


def moment(seconds: float) -> float:
    """So many seconds after the start, as mwatch counts time."""
    return START.replace(tzinfo=UTC).timestamp() + seconds


def falling(iteration: int) -> float:
    """A loss that falls, with a little noise."""
    return 2.0 + 8.0 * math.exp(-iteration / 500) + 0.01 * math.sin(iteration * 1.7)


class RunLog:
    """What a single-node run prints; `at` is the clock, in seconds since the start."""

    def __init__(self, *, interval: int = 1, total: int = 1000, at: float = 0.0) -> None:
        self.at = at
        self.interval = interval
        self.total = total
        self.lines: list[str] = []

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    @property
    def stamp(self) -> str:
        return (START + timedelta(seconds=self.at)).strftime("%Y-%m-%d %H:%M:%S.%f")

    def say(self, *lines: str) -> RunLog:
        self.lines += lines
        return self

    def wait(self, seconds: float) -> RunLog:
        self.at += seconds
        return self

    def start(self, *, load: int | None = None, world: int = 8) -> RunLog:
        """From the first line to the first step, in ten seconds."""
        shape = f"data-parallel size: {world}, tensor-model-parallel size: 1"
        self.say(f"using world size: {world}, {shape}")
        self.say(arguments_block(bf16=True, load="/ck" if load else None, save="/ck",
                                 log_interval=self.interval, train_iters=self.total,
                                 world_size=world, save_interval=100))  # fmt: skip
        self.wait(5.0).mark("after megatron is initialized")
        if load:
            self.say(f" loading distributed checkpoint from /ck at iteration {load}")
            self.wait(2.0).say(
                f"  successfully loaded checkpoint from /ck [ t 1/1, p 1/1 ] at iteration {load}"
            )
        self.wait(3.0).mark("after dataloaders are built")
        self.say("done with setup ...", "training ...")
        return self.mark("before the start of training step")

    def mark(self, text: str) -> RunLog:
        return self.say(f"[{text}] datetime: {self.stamp} ")

    def steps(
        self,
        first: int,
        last: int,
        seconds: float = 1.0,
        *,
        loss: str | None = None,
        change: Mapping[str, str | None] | None = None,
    ) -> RunLog:
        """Lines of every interval from `first` to `last`; `seconds` is one iteration."""
        usual: dict[str, str | None] = {
            "elapsed time per iteration (ms)": f"{seconds * 1000:.1f}",
            "loss scale": "1.0",
        }
        for number in range(first, last + 1):
            self.wait(seconds)
            if number % self.interval == 0:
                said = f" lm loss: {falling(number):.6E} |" if loss is None else loss
                line = megatron_line(number, self.total, stamp=self.stamp, losses=said,
                                     change=usual | dict(change or {}))  # fmt: skip
                self.say(line)
        return self

    def save(self, iteration: int, seconds: float = 5.0) -> RunLog:
        where = "to /ck in torch_dist format"
        self.say(f"[{self.stamp}] saving checkpoint at iteration {iteration:7d} {where}")
        self.wait(seconds)
        return self.say(f"  [{self.stamp}] successfully saved checkpoint from iteration "
                        f"{iteration:7d} to /ck [ t 1/1, p 1/1 ]")  # fmt: skip

    def killed(self) -> RunLog:
        """As torchrun tells of it."""
        date, time = self.stamp.split()
        words = {"date": date, "time": time[:8]}
        return self.say(KILLED.format(time=time), *ELASTIC.format(**words).splitlines())

    def done(self) -> RunLog:
        return self.mark("after training is done")
