# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The training script of the hang benchmark: the small GPT, held to half a second a step.

It takes the arguments of `python -m mwatch_gpt`. Under torchrun that is all. Under NVIDIA's
ft_launcher it also reports to its monitor, since that sees nothing by itself: either as
Megatron-LM does, by sections, with timeouts calculated after a save; or by a heartbeat a step.
The rest of a step is slept, as the CPU of a rank does while its GPU works.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import Any, Protocol

STEP_SECONDS = 0.5
API_VARIABLE = "HANG_PEER_API"
_STARTED_BY_PEER = "FT_RANK_MONITOR_IPC_SOCKET"
_WARM_UP_STEPS = 5
"""Megatron-LM leaves so many steps out of the section, because the first are slower."""


class Report(Protocol):
    """What the script has to tell a monitor, and when."""

    def before_step(self, step: int) -> None: ...
    def after_step(self, step: int) -> None: ...
    def before_save(self) -> None: ...
    def after_save(self) -> None: ...


class Nobody:
    def before_step(self, step: int) -> None: ...
    def after_step(self, step: int) -> None: ...
    def before_save(self) -> None: ...
    def after_save(self) -> None: ...


class Sections:
    def __init__(self, client: Any) -> None:
        self._client = client
        client.init_workload_monitoring()
        client.start_section("setup")

    def before_step(self, step: int) -> None:
        if step == 1:
            self._client.end_section("setup")
        if step > _WARM_UP_STEPS:
            self._client.start_section("step")

    def after_step(self, step: int) -> None:
        if step > _WARM_UP_STEPS:
            self._client.end_section("step")

    def before_save(self) -> None:
        self._client.start_section("checkpointing")

    def after_save(self) -> None:
        self._client.end_section("checkpointing")
        self._client.calculate_and_set_section_timeouts(["step", "checkpointing"])
        _tell(self._client.section_timeouts)


class Heartbeats:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._has_saved = False
        client.init_workload_monitoring()

    def before_step(self, step: int) -> None: ...

    def after_step(self, step: int) -> None:
        self._client.send_heartbeat()
        if self._has_saved:
            # Only now: none is sent during a save, and its time has to count.
            self._has_saved = False
            self._client.calculate_and_set_hb_timeouts()
            _tell(self._client.hb_timeouts)

    def before_save(self) -> None: ...

    def after_save(self) -> None:
        self._has_saved = True


def _tell(timeouts: object) -> None:
    if os.environ.get("RANK") == "0":
        print(f"calculated: {timeouts}", flush=True)


def _report() -> Report:
    if _STARTED_BY_PEER not in os.environ:
        return Nobody()
    client = importlib.import_module("nvidia_resiliency_ext.fault_tolerance").RankMonitorClient()
    return Heartbeats(client) if os.environ.get(API_VARIABLE) == "heartbeats" else Sections(client)


def main() -> None:
    started = time.time()
    from mwatch_gpt import arguments, device

    args = arguments.parse(sys.argv[1:])
    chosen = device.prepare()
    from mwatch_gpt.training import pretrain

    training: Any = importlib.import_module("mwatch_gpt.training")
    report = _report()
    work, save = training.train_step, training.save_checkpoint

    def train_step(run: Any, data: Any, *, is_first: bool) -> Any:
        began = time.monotonic()
        step = run.iteration + 1
        report.before_step(step)
        result = work(run, data, is_first=is_first)
        time.sleep(max(0.0, began + STEP_SECONDS - time.monotonic()))
        report.after_step(step)
        return result

    def save_checkpoint(*given: Any) -> None:
        report.before_save()
        save(*given)
        report.after_save()

    training.train_step, training.save_checkpoint = train_step, save_checkpoint
    pretrain(args, chosen, started)


if __name__ == "__main__":
    main()
