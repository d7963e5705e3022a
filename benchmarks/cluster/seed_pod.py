# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the volume of a pod that trains, then waits for another one, or is stopped.

`python -m benchmarks.cluster.seed_pod FOLDER KIND SECONDS`: it trains for so long, and is of that
kind from then on, until it is killed. See `benchmarks.pod`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.cluster.training import Kind
from benchmarks.pod import Pod
from mwatch_trainer import contract
from mwatch_trainer.gpu.sampler import put


class SeedPod:
    def __init__(self, folder: Path, kind: Kind) -> None:
        self._node = folder / contract.NODE_FOLDER
        self._kind = kind
        self._pod = Pod(folder)
        self._last = 0
        self._spun = 0.0

    def train(self, step: int) -> None:
        self._last = step
        self._pod.second(step)
        self._pod.say(1, step)

    def rest(self) -> None:
        """A second in which it gets no further."""
        if self._kind is Kind.MOVING:
            self.train(self._last + 1)
            return
        if self._kind is Kind.WAITING:
            self._pod.second(self._last)
            self._spin()
        else:
            self._change(contract.NODE_PROCESSES, "processes", {"state": "T"})
        self._change(contract.NODE_GPUS, "gpus", {"tensor_active": 0.0, "power_watts": 250.0})

    def _spin(self) -> None:
        """Who waits in a collective does so with all of a core."""
        self._spun += 1.0
        seconds = self._last * 0.9 + self._spun
        self._change(contract.NODE_PROCESSES, "processes", {"cpu_seconds": seconds})

    def _change(self, name: str, members: str, values: dict[str, Any]) -> None:
        path = self._node / name
        body = json.loads(path.read_bytes())
        body.update(at=time.time(), monotonic=time.monotonic())
        body[members] = [{**each, **values} for each in body[members]]
        put(str(path), body)


def main() -> None:
    pod = SeedPod(Path(sys.argv[1]), Kind(sys.argv[2]))
    began, seconds = time.monotonic(), float(sys.argv[3])
    step, parent = 0, os.getppid()
    while os.getppid() == parent:
        step += 1
        if step <= seconds:
            pod.train(step)
        else:
            pod.rest()
        time.sleep(max(0.0, began + step - time.monotonic()))


if __name__ == "__main__":
    main()
