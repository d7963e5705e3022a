# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""By which route GPUs are seen: the sampler's records or our own NVML, over a fake driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mwatch.model.event import Fault
from mwatch.model.reading import Absent, Failed, Ok
from mwatch.sources.gpu.gpus import GpuSource, NvmlSource
from mwatch_trainer import contract
from mwatch_trainer.gpu.sampler import GpuSampler, put
from support.builders.job import entries
from support.builders.nvml import FakeDriver
from support.builders.volume import ManualClock, gpu, write_gpus
from support.waiting import until

SECONDS = 60.0


class Bench:
    """A pod with a driver; the sampler beside its trainer may write, or not."""

    def __init__(self, volume: Path, driver: FakeDriver) -> None:
        self.volume, self.driver = volume, driver
        self.clock = ManualClock()
        self.sampler = GpuSampler(clock=self.clock)
        self.nvml = NvmlSource(clock=self.clock)
        self.source = GpuSource(str(volume), "pod-0", entries(), nvml=self.nvml, clock=self.clock)

    def sample(self) -> None:
        """As the sampler does."""
        folder = self.volume / contract.NODE_FOLDER
        folder.mkdir(exist_ok=True)
        put(str(folder / contract.NODE_GPUS), self.sampler.sample())

    def look(self, later: float = 1.0) -> list[Fault]:
        """By our own NVML where it is needed: once to ask, once to hear."""
        self.clock.now += later
        readings = [self.source.read()]
        if self.source.route != "wrapper" or self.nvml.is_awaited:
            assert self.nvml.wait(SECONDS)
            readings.append(self.source.read())
        said = [each for reading in readings if isinstance(reading, Ok) for each in reading.value]
        return [each.what for each in said if isinstance(each.what, Fault)]

    def told(self, *, with_records: bool = False) -> list[str]:
        """The faults that the driver's events lead to, once they are there."""
        found: list[str] = []

        def is_told() -> bool:
            if with_records:
                self.sample()
            found.extend(each.id for each in self.look())
            return bool(found)

        until(is_told)
        return found

    def close(self) -> None:
        self.driver.say("over")
        self.sampler.close()
        self.source.close()
        until(lambda: not watchers())


def watchers() -> list[str]:
    names = [each.name for each in threading.enumerate()]
    return [name for name in names if name in ("mwatch-xid", "mwatch-nvml-end")]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench(tmp_path, FakeDriver(tmp_path, monkeypatch))
    yield bench
    bench.close()


def test_the_samplers_records_come_first_and_then_nvml_is_not_opened(bench: Bench) -> None:
    bench.sample()
    bench.driver.say("nvmlInitWithFlags=18")  # nobody may open it from now on
    assert bench.look() == []
    assert (bench.source.route, len(bench.source.gpus)) == ("wrapper", 8)
    assert isinstance(bench.nvml.read(), Absent)


def test_without_records_nvml_is_read_and_shows_the_same(bench: Bench) -> None:
    bench.look()
    assert (bench.source.route, len(bench.source.gpus)) == ("nvml", 8)
    bench.look(later=5.0)
    direct = bench.source.gpus
    bench.sample()
    bench.clock.now += 5.0
    bench.sample()
    bench.look(later=0.0)
    assert bench.source.route == "wrapper"
    assert bench.source.gpus == direct
    assert direct[3].tensor_active == pytest.approx(0.4003)


def test_records_that_grow_old_give_way_and_come_back_without_a_fault(bench: Bench) -> None:
    bench.sample()
    assert bench.look() == []
    bench.clock.now += 60.0
    assert bench.source.read() == Ok(())  # not out of sight for a moment
    assert len(bench.source.gpus) == 8
    assert bench.nvml.wait(SECONDS)
    assert isinstance(bench.source.read(), Ok)
    assert (bench.source.route, len(bench.source.gpus)) == ("nvml", 8)
    bench.sample()
    assert bench.look(later=0.5) == []
    assert bench.source.route == "wrapper"


def test_what_nvml_reported_long_ago_is_not_of_now(bench: Bench) -> None:
    bench.nvml.read()
    assert bench.nvml.wait(SECONDS)
    bench.clock.now += 50.0
    assert isinstance(bench.nvml.read(), Absent)
    assert bench.nvml.wait(SECONDS)
    assert isinstance(bench.nvml.read(), Ok)


def test_nvml_is_left_alone_once_the_records_are_back_for_a_while(bench: Bench) -> None:
    bench.look()
    until(lambda: len(watchers()) == 1)
    bench.driver.say("over")
    for _ in range(3):
        bench.clock.now += 30.0
        write_gpus(bench.volume, bench.clock.now, gpu())
        bench.source.read()
    until(lambda: not watchers())


def test_an_xid_that_both_routes_see_is_one_fault(bench: Bench) -> None:
    bench.look()
    bench.sample()
    until(lambda: len(watchers()) == 2)
    bench.driver.xid(3, 79)
    assert (bench.told(with_records=True), bench.source.route) == (["xid-79"], "wrapper")
    assert bench.look(later=60.0) == []
    assert bench.source.route == "nvml"
    assert bench.source.gpus[3].xid == 79


def test_a_fault_that_nvml_shows_names_nvml(bench: Bench) -> None:
    bench.look()
    bench.driver.say("lost=3")
    (fault,) = bench.look()
    assert (fault.id, fault.gpu, fault.file, fault.line) == ("gpu-lost", "GPU-fake-3", "nvml", 0)
    assert [each.number for each in bench.source.gpus if not each.is_up] == [3]
    assert bench.look() == []


def test_a_gpu_that_the_other_route_does_not_see_is_not_lost(bench: Bench) -> None:
    write_gpus(bench.volume, bench.clock.now, *(gpu(index) for index in range(8)))
    assert bench.look() == []
    bench.driver.say("gpus=2")
    assert bench.look(later=60.0) == []
    assert (bench.source.route, len(bench.source.gpus)) == ("nvml", 2)


def test_a_sampler_that_sees_no_gpu_leaves_it_to_nvml(bench: Bench) -> None:
    write_gpus(bench.volume, bench.clock.now, state="absent", reason="no ctypes")
    bench.look()
    assert bench.source.route == "nvml"
    bench.driver.say("nvmlDeviceGetMemoryInfo_v2=1", "over")
    bench.look()
    assert isinstance(bench.source.read(), Failed)
    assert not bench.source.gpus


def test_neither_route_is_absent_as_the_sampler_reported(bench: Bench) -> None:
    bench.driver.unload()
    write_gpus(bench.volume, bench.clock.now, state="absent", reason="no GPU in this pod")
    bench.look()
    assert bench.source.read() == Absent("no GPU in this pod")
    bench.driver.say()


def test_a_record_of_the_attempt_before_is_not_read(bench: Bench) -> None:
    """Its Xid ended that attempt, and must not end this one too."""
    write_gpus(bench.volume, bench.clock.now - 2.0, gpu(xid=79))
    assert isinstance(bench.source.read(), Absent)
    assert bench.source.route is None
    write_gpus(bench.volume, bench.clock.now, gpu())
    assert bench.source.read() == Ok(())


def test_an_xid_that_our_own_nvml_saw_in_the_attempt_before_is_not_reported_again(
    bench: Bench,
) -> None:
    bench.look()
    bench.driver.xid(3, 79)
    assert bench.told() == ["xid-79"]
    bench.source = GpuSource(
        str(bench.volume), "pod-0", entries(), nvml=bench.nvml, clock=bench.clock
    )
    assert bench.look() == bench.look() == []
    assert (bench.source.route, bench.source.gpus[3].xid) == ("nvml", 79)


def test_a_call_that_hangs_holds_nobody_and_is_a_failure_after_its_limit(bench: Bench) -> None:
    bench.look()
    bench.driver.say("hang=nvmlDeviceGetPowerUsage")
    bench.clock.now += 1.0
    assert isinstance(bench.source.read(), Ok)
    bench.clock.now += 11.0
    assert bench.source.read() == Failed("no answer for 11 s")
    assert (bench.source.route, bench.source.gpus) == (None, ())
    bench.driver.unsay("hang=nvmlDeviceGetPowerUsage")
    assert bench.nvml.wait(SECONDS)
    assert isinstance(bench.source.read(), Ok)
    assert bench.source.route == "nvml"


READ = """
import json, sys, time
from mwatch.sources.gpu.gpus import GpuSource, NvmlSource
source = GpuSource(sys.argv[1], "pod-0", {})
end = time.monotonic() + 50
while source.route is None and time.monotonic() < end:
    said = source.read()
    if source._nvml.wait(50) and sys.argv[2] == "once":
        said = source.read()
        break
print(json.dumps([source.route, len(source.gpus), "pynvml" in sys.modules, str(said)]))
"""


def in_a_fresh_process(volume: Path, how: str, **environment: str) -> list[object]:
    path = os.pathsep.join(each for each in sys.path if each)
    result = subprocess.run(
        [sys.executable, "-c", READ, str(volume), how],
        env={"PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        timeout=150,
        check=True,
    )
    found = json.loads(result.stdout)
    assert isinstance(found, list)
    return found


def test_without_a_driver_its_package_is_not_even_loaded(tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU here")
    route, count, is_loaded, said = in_a_fresh_process(tmp_path, "once")
    assert (route, count, is_loaded) == (None, 0, False)
    assert "Absent" in str(said)


def test_the_library_is_found_by_its_name(bench: Bench, tmp_path: Path) -> None:
    found = in_a_fresh_process(
        tmp_path,
        "until seen",
        LD_LIBRARY_PATH=str(bench.driver.library.parent),
        FAKE_NVML=str(bench.driver.file),
    )
    assert found[:3] == ["nvml", 8, True]
