# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Events of GPUs, and a driver that does not answer at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mwatch_trainer.gpu import sampler
from mwatch_trainer.gpu.nvml import Nvml, open_nvml
from mwatch_trainer.gpu.sampler import GpuSampler
from support.builders.nvml import FakeDriver, SamplerBench
from support.builders.volume import ManualClock
from support.waiting import until


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SamplerBench]:
    bench = SamplerBench(FakeDriver(tmp_path, monkeypatch))
    yield bench
    bench.close()


def test_xids_and_other_events_come_with_their_times_and_none_hides_another(
    bench: SamplerBench,
) -> None:
    bench.sample()
    bench.driver.xid(3, 79)
    bench.driver.xid(3, 45)
    bench.driver.event(2, 0x4000)
    until(lambda: len(bench.gpu(3)["xids"]) == 2 and bench.gpu(2)["events"])
    found = bench.gpu(3)
    assert [xid for xid, _ in found["xids"]] == [79, 45]
    assert (found["xid"], found["xid_at"]) == tuple(found["xids"][-1])
    assert [name for name, _ in bench.gpu(2)["events"]] == ["gpu_unavailable"]


def test_where_only_xids_can_be_reported_xids_are_reported(bench: SamplerBench) -> None:
    bench.driver.say("nvmlDeviceGetSupportedEventTypes=3")
    bench.sample()
    bench.driver.event(3, 0x4000)
    bench.driver.xid(3, 31)
    until(lambda: bench.gpu(3)["xid"] == 31)
    assert bench.gpu(3)["events"] == []


@pytest.mark.parametrize(
    "word",
    ["nvmlEventSetCreate=3", "nvmlDeviceRegisterEvents=3", "nvmlEventSetWait_v2=15"],
)
def test_without_events_all_else_is_read(bench: SamplerBench, word: str) -> None:
    bench.driver.say(word)
    bench.sample()
    assert (bench.sample()["state"], bench.gpu()["xids"]) == ("ok", [])


def test_a_wait_that_a_lost_gpu_broke_is_taken_up_for_the_others(bench: SamplerBench) -> None:
    bench.sample()
    bench.driver.say("lost=2", "nvmlEventSetWait_v2=15")
    bench.sample()
    bench.driver.unsay("nvmlEventSetWait_v2=15")
    bench.driver.xid(3, 45)
    until(lambda: bench.gpu(3)["xid"] == 45)


def test_a_call_that_hangs_is_reported_by_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeDriver(tmp_path, monkeypatch)
    clock, is_open = ManualClock(), threading.Event()

    def opened() -> Nvml:
        is_open.set()
        return open_nvml()

    gpus = GpuSampler(opened, clock=clock)
    driver.say("hang=nvmlDeviceGetPowerUsage", "over")
    look = threading.Thread(target=gpus.sample, daemon=True)
    look.start()
    assert is_open.wait(60)
    clock.now += 12.0
    path = tmp_path / "gpus.json"
    assert sampler.report_hang(gpus.waiting_seconds, str(path))
    document = json.loads(path.read_text())
    assert (document["state"], document["gpus"]) == ("failed", [])
    assert document["reason"] == "NVML has not answered for 12 s"
    driver.unsay("hang=nvmlDeviceGetPowerUsage")
    look.join(60)
    assert not sampler.report_hang(gpus.waiting_seconds, str(path))
    gpus.close()
