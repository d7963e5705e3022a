# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The sampler as the process that it is, beside a driver that hangs. Takes longer than most tests:
it looks once a second.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mwatch_trainer import contract
from mwatch_trainer.processes.children import start_helper
from support.builders.nvml import FakeDriver
from support.waiting import until


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    driver = FakeDriver(tmp_path, monkeypatch)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver.library.parent))
    return driver


@pytest.fixture
def sampler(driver: FakeDriver, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [str(tmp_path), str(os.getpid())]
    process = start_helper("gpu.sampler", arguments, needs="pynvml")
    yield process
    process.kill()
    process.wait(60)


def read(volume: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((volume / contract.NODE_FOLDER / name).read_text())
    except (OSError, ValueError):
        return {}
    assert isinstance(found, dict)
    return found


def test_the_sampler_finds_the_drivers_library_by_its_name(
    sampler: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    until(lambda: read(tmp_path, contract.NODE_GPUS))
    document = read(tmp_path, contract.NODE_GPUS)
    assert (document["state"], len(document["gpus"])) == ("ok", 8)


def test_a_driver_that_hangs_holds_only_the_gpus_and_not_the_end(
    sampler: subprocess.Popen[bytes], driver: FakeDriver, tmp_path: Path
) -> None:
    until(lambda: read(tmp_path, contract.NODE_GPUS))
    driver.say("hang=nvmlDeviceGetPowerUsage")

    def behind() -> float:
        """Seconds of the GPUs, which are written last, behind the processes."""
        gpus = float(read(tmp_path, contract.NODE_GPUS)["monotonic"])
        return float(read(tmp_path, contract.NODE_PROCESSES).get("monotonic", 0.0)) - gpus

    until(lambda: behind() > 2.5)  # both would be written once a second
    sampler.kill()
    sampler.wait(60)
