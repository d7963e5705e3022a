# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The log of an fp16 run in which four things go wrong, each followed by a resume, to its end."""

from __future__ import annotations

import math
import random
import re

from support.runs.recorded import RunLog

TOTAL = 900
_WATCHDOG = (
    "[rank1]:[E107 {time} ProcessGroupNCCL.cpp:689] [Rank 1] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=8121, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, "
    "Timeout(ms)=60000) ran for 60029 milliseconds before timing out."
)


class EventfulRun:
    """Numbers with noise, so that curves look like curves; the same ones every time."""

    def __init__(self) -> None:
        self.log = RunLog(total=TOTAL)
        self.chance = random.Random(7)
        self.scale = 65536.0

    def steps(self, first: int, last: int, *, slow: float = 1.0) -> None:
        for number in range(first, last + 1):
            noise = self.chance.gauss(0, 1)
            loss = 2.1 + 8.2 * math.exp(-number / 130) + 0.05 * noise
            if number % 160 == 0:
                self.scale = min(self.scale * 2, 2.0**18)
            self._line(number, 0.5 * slow * (1 + 0.05 * abs(noise)), f"{loss:.6E}",
                       0.6 + 1.8 * math.exp(-number / 90) + 0.1 * abs(noise))  # fmt: skip

    def bad_steps(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            self._line(number, 0.5, None, math.nan)

    def falling_scale(self, first: int, last: int) -> None:
        """Every step overflows: the scale is halved until there is nothing left to halve."""
        for number in range(first, last + 1):
            self.scale = max(1.0, self.scale / 2)
            self._line(number, 0.4, None, None, skipped=1)

    def resume(self, iteration: int) -> None:
        self.scale = 65536.0
        self.log.wait(4.0).start(load=iteration)

    def _line(
        self, number: int, seconds: float, loss: str | None, norm: float | None, skipped: int = 0
    ) -> None:
        said = "" if loss is None else f" lm loss: {loss} |"
        change = {
            "loss scale": f"{self.scale:.1f}",
            "grad norm": None if norm is None else f"{norm:.3f}",
            "number of skipped iterations": f"{skipped:3d}",
            "elapsed time per iteration (ms)": f"{seconds * 1000:.1f}",
        }
        self.log.steps(number, number, seconds, loss=said, change=change)

    def saved(self, first: int, last: int, *, slow: float = 1.0) -> None:
        """Steps, with a save after every hundred."""
        for begin in range(first, last + 1, 100):
            end = min(last, (begin - 1) // 100 * 100 + 100)
            self.steps(begin, end, slow=slow)
            if end % 100 == 0:
                self.log.save(end, 2.5)


def eventful_log() -> str:
    run = EventfulRun()
    log = run.log.start()
    run.saved(1, 260)
    log.wait(60.0).say(_WATCHDOG.format(time=log.stamp.split()[1]))  # a rank never joined
    log.wait(1.0).killed()
    run.resume(200)
    run.saved(201, 430)
    run.bad_steps(431, 470)
    run.resume(400)
    run.saved(401, 560, slow=1.05)
    log.killed()
    run.resume(500)
    run.saved(501, 640)
    run.falling_scale(641, 700)
    run.resume(600)
    run.saved(601, TOTAL)
    return _in_fp16(str(log.done()))


def _in_fp16(log: str) -> str:
    return re.sub(r"(?m)^  bf16 (\.+) True$", r"  fp16 \1 True", log)
