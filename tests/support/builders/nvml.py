# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A fake libnvidia-ml.so.1 with eight GPUs, built from `fake_nvml/fake_nvml.c` where there is a
C compiler, and the file of words by which a test breaks it while it is being read.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from mwatch_trainer.gpu.sampler import GpuSampler
from support.builders.volume import ManualClock

SOURCE = Path(__file__).parents[2] / "fake_nvml" / "fake_nvml.c"
NAME = "libnvidia-ml.so.1"


@functools.cache
def fake_library() -> Path:
    """Its file, named as the real one; skips the test where it cannot be built."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler to build the fake NVML with")
    folder = Path(tempfile.mkdtemp(prefix="mwatch-fake-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    built = folder / NAME
    flags = ["-shared", "-fPIC", "-O1", f"-Wl,-soname,{NAME}"]
    subprocess.run([compiler, *flags, "-o", built, SOURCE], check=True, timeout=60)
    return built


class FakeDriver:
    """Loaded as the machine's own: whoever asks for NVML by its name finds it. Its words are
    read at each call, so that it breaks in the middle of a sample."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.library = fake_library()
        ctypes.CDLL(str(self.library), mode=ctypes.RTLD_GLOBAL)
        self.file = folder / "fake-nvml-words"
        self._words: list[str] = []
        self._events = 0
        patch.setenv("FAKE_NVML", str(self.file))
        self.say()

    def say(self, *words: str) -> None:
        self._words += words
        self._write()

    def unsay(self, *words: str) -> None:
        self._words = [each for each in self._words if each not in words]
        self._write()

    def event(self, gpu: int, kind: int, data: int = 0) -> None:
        self._events += 1
        self.say(f"event={self._events}:{gpu}:{kind:x}:{data}")

    def xid(self, gpu: int, number: int) -> None:
        self.event(gpu, 0x8, number)

    def unload(self) -> None:
        """From now on there is no driver."""
        self.file.unlink()

    def _write(self) -> None:
        temporary = self.file.with_suffix(".tmp")
        temporary.write_text(" ".join(self._words))
        os.replace(temporary, self.file)


class SamplerBench:
    """The sampler over the fake driver."""

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver
        self.clock = ManualClock()
        self.gpus = GpuSampler(tensor_seconds=1.0, clock=self.clock)

    def sample(self, later: float = 1.0) -> dict[str, Any]:
        self.clock.now += later
        return self.gpus.sample()

    def gpu(self, index: int = 3, later: float = 1.0) -> dict[str, Any]:
        return dict(self.sample(later)["gpus"][index])

    def close(self) -> None:
        self.driver.say("over")
        self.gpus.close()
