# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The document of GPUs, over a fake driver that breaks in every way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.builders.nvml import FakeDriver, SamplerBench


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SamplerBench]:
    bench = SamplerBench(FakeDriver(tmp_path, monkeypatch))
    yield bench
    bench.close()


def test_eight_gpus_are_read_with_everything_that_they_report(bench: SamplerBench) -> None:
    bench.sample()
    document = bench.sample()
    assert (document["state"], document["reason"], document["driver"]) == ("ok", None, "580.0")
    assert [each["index"] for each in document["gpus"]] == list(range(8))
    found = document["gpus"][3]
    assert (found["uuid"], found["name"], found["error"]) == ("GPU-fake-3", "NVIDIA Fake", None)
    assert (found["utilization"], found["power_watts"]) == (0.93, 600.003)
    assert (found["power_limit_watts"], found["temperature_celsius"]) == (700.0, 63)
    assert (found["memory_used_bytes"], found["memory_total_bytes"]) == (63 << 30, 140 << 30)
    assert found["sm_clock_hz"] == 1.98e9
    assert found["throttle"] == ["sw_power_cap", "hw_thermal_slowdown"]
    assert found["throttled_seconds"]["sw_power_cap"] == 74.0
    assert found["throttled_seconds"]["hw_power_brake_slowdown"] == pytest.approx(27.1)
    assert (found["ecc_uncorrected"], found["ecc_corrected"]) == (0, 11)
    assert found["remapped_rows"] == {"corrected": 2, "uncorrected": 1}
    assert (found["remap_pending"], found["remap_failed"]) == (False, False)
    assert (found["recovery_action"], found["pcie_replays"], found["pids"]) == (0, 8, [1003])
    assert found["nvlink_errors"] == {"replay": 12, "recovery": 24, "crc": 36}
    assert found["tensor_active"] == pytest.approx(0.4003)
    assert (found["xids"], found["events"]) == ([], [])


def test_a_call_that_is_not_supported_is_unknown_and_not_zero(bench: SamplerBench) -> None:
    calls = {
        "nvmlDeviceGetUtilizationRates": ("utilization",),
        "nvmlDeviceGetPowerUsage": ("power_watts",),
        "nvmlDeviceGetEnforcedPowerLimit": ("power_limit_watts",),
        "nvmlDeviceGetClockInfo": ("sm_clock_hz",),
        "nvmlDeviceGetTotalEccErrors": ("ecc_uncorrected", "ecc_corrected"),
        "nvmlDeviceGetRemappedRows": ("remapped_rows", "remap_pending", "remap_failed"),
        "nvmlDeviceGetFieldValues": ("recovery_action",),
        "nvmlDeviceGetPcieReplayCounter": ("pcie_replays",),
        "nvmlGpmQueryDeviceSupport": ("tensor_active",),
    }
    bench.driver.say(*(f"{name}=3" for name in calls))
    bench.sample()
    document = bench.sample()
    assert document["state"] == "ok"
    for keys in calls.values():
        assert [document["gpus"][0][key] for key in keys] == [None] * len(keys)
    assert document["gpus"][0]["nvlink_errors"] == document["gpus"][0]["throttled_seconds"] == {}
    assert document["gpus"][0]["temperature_celsius"] == 60


def test_an_older_driver_is_asked_by_the_older_names(bench: SamplerBench) -> None:
    bench.driver.say(
        "nvmlDeviceGetCurrentClocksEventReasons=13",
        "nvmlDeviceGetMemoryInfo_v2=13",
        "nvmlDeviceGetTemperatureV=13",
        "nvmlDeviceGetComputeRunningProcesses_v3=13",
    )
    found = bench.gpu()
    assert found["throttle"] == ["hw_slowdown"]
    assert (found["memory_used_bytes"], found["temperature_celsius"]) == (64 << 30, 53)
    assert found["pids"] == [1003]


@pytest.mark.parametrize("word", ["ampere", "nvmlGpmSampleGet=4", "nvmlGpmMetricsGet=4", "nan"])
def test_without_tensor_activity_all_else_is_read(bench: SamplerBench, word: str) -> None:
    bench.driver.say(word)
    bench.sample()
    found = bench.gpu()
    assert (found["tensor_active"], found["utilization"]) == (None, 0.93)


def test_tensor_activity_is_of_the_time_between_two_looks(bench: SamplerBench) -> None:
    assert bench.gpu()["tensor_active"] is None
    bench.driver.say("tensor=150")
    assert bench.gpu(0)["tensor_active"] == pytest.approx(0.015)
    bench.driver.unsay("tensor=150")
    assert bench.gpu(0, later=0.2)["tensor_active"] == pytest.approx(0.015)


def test_dear_values_are_read_twice_a_minute(bench: SamplerBench) -> None:
    bench.sample()
    bench.driver.say("crc=100")
    assert bench.gpu()["nvlink_errors"]["crc"] == 36
    assert bench.gpu(later=30.0)["nvlink_errors"]["crc"] == 1200


def test_links_of_blackwell_have_counters_of_their_own(bench: SamplerBench) -> None:
    bench.driver.say("blackwell")
    found = bench.gpu()["nvlink_errors"]
    assert found["recovery"] == found["effective"] == found["receive"] == 18
    assert "crc" not in found


@pytest.mark.parametrize(("word", "code"), [("lost", 15), ("reset", 16), ("odd", 999)])
def test_a_gpu_that_is_lost_keeps_its_name_and_the_others_are_read(
    bench: SamplerBench, word: str, code: int
) -> None:
    bench.sample()
    bench.driver.say(f"{word}=3")
    bench.sample()  # one unknown error may be a hiccup
    document = bench.sample()
    lost, other = document["gpus"][3], document["gpus"][4]
    assert (lost["uuid"], lost["error_code"]) == ("GPU-fake-3", code)
    assert lost["error"]
    assert "power_watts" not in lost
    assert (document["state"], other["error"], other["utilization"]) == ("failed", None, 0.94)


def test_an_unknown_error_of_one_call_or_one_look_is_no_loss(bench: SamplerBench) -> None:
    bench.driver.say("nvmlDeviceGetRemappedRows=999", "nvmlDeviceGetUtilizationRates=999")
    bench.sample()
    assert bench.gpu()["error"] is None
    bench.driver.say("odd=3")
    assert bench.gpu()["error"] is None
    bench.driver.unsay("odd=3")
    assert bench.gpu()["error"] is None


def test_a_gpu_that_falls_off_in_the_middle_of_a_look_is_lost(bench: SamplerBench) -> None:
    bench.sample()
    bench.driver.say("hang=nvmlDeviceGetClockInfo")
    found: list[dict[str, Any]] = []
    look = threading.Thread(target=lambda: found.append(bench.sample()))
    look.start()
    bench.driver.say("lost=0")
    bench.driver.unsay("hang=nvmlDeviceGetClockInfo")
    look.join(60)
    errors = [each["error_code"] for each in found[0]["gpus"]]
    assert errors == [15, *[None] * 7]


def test_a_gpu_that_was_lost_before_the_start_is_reported_and_one_of_others_is_not(
    bench: SamplerBench,
) -> None:
    bench.driver.say("lost=2", "closed=6", "closed=7")
    document = bench.sample()
    errors = {each["index"]: each["error_code"] for each in document["gpus"]}
    assert errors == {0: None, 1: None, 2: 15, 3: None, 4: None, 5: None}


def test_fields_and_processes_that_cannot_be_reported_are_unknown(bench: SamplerBench) -> None:
    bench.driver.say(
        "field=999",
        "nvmlDeviceGetComputeRunningProcesses_v3=3",
        "nvmlDeviceGetComputeRunningProcesses_v2=3",
        "nvmlDeviceGetCurrentClocksEventReasons=3",
        "nvmlDeviceGetCurrentClocksThrottleReasons=3",
        "nvmlGpmSampleAlloc=20",
    )
    found = bench.gpu()
    keys = ("error", "recovery_action", "pids", "throttle", "tensor_active")
    assert [found[key] for key in keys] == [None] * len(keys)
    assert found["throttled_seconds"] == found["nvlink_errors"] == {}


def test_a_driver_that_is_not_there_is_absent_and_one_of_another_version_a_failure(
    bench: SamplerBench,
) -> None:
    bench.driver.unload()
    document = bench.sample()
    assert (document["state"], document["gpus"]) == ("absent", [])
    bench.driver.say("nvmlInit_v2=18", "nvmlInitWithFlags=18")
    document = bench.sample(later=60.0)
    assert (document["state"], document["gpus"]) == ("failed", [])
    assert "does not start" in document["reason"]


def test_no_gpu_is_absent(bench: SamplerBench) -> None:
    bench.driver.say("gpus=0")
    document = bench.sample()
    assert (document["state"], document["reason"]) == ("absent", "there is no GPU")


def test_a_library_that_fails_as_a_whole_is_opened_again_ever_more_rarely(
    bench: SamplerBench,
) -> None:
    bench.sample()
    bench.driver.say("nvmlDeviceGetMemoryInfo_v2=1", "over")
    assert bench.sample()["state"] == "failed"
    bench.driver.unsay("nvmlDeviceGetMemoryInfo_v2=1")
    bench.driver.say("nvmlInit_v2=18", "nvmlInitWithFlags=18")
    assert bench.sample(later=10.0)["state"] == "failed"
    bench.driver.unsay("nvmlInit_v2=18", "nvmlInitWithFlags=18")
    assert bench.sample(later=10.0)["state"] == "failed"  # it waits for 20 s now
    assert bench.sample(later=10.0)["state"] == "ok"


def test_without_its_package_the_reason_is_given(
    bench: SamplerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    document = bench.sample()
    assert (document["state"], document["reason"]) == ("absent", "nvidia-ml-py is not installed")


def test_a_python_without_ctypes_is_absent_with_that_reason(
    bench: SamplerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    document = bench.sample()
    assert (document["state"], document["reason"]) == ("absent", "this Python has no ctypes")
