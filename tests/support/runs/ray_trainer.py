# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer of `torch_trainer.py` in two Ray actors, which get their rank as verl gives it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ray

TESTS = str(Path(__file__).resolve().parents[2])
WORLD = 2


class Worker:
    def train(self, rank: int, words: list[str]) -> None:
        sys.path.insert(0, TESTS)  # an actor is a process of its own
        from support.runs import torch_trainer

        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
        torch_trainer.train(rank, WORLD, torch_trainer.arguments(words))


def main() -> None:
    ray.init(num_cpus=WORLD, include_dashboard=False, log_to_driver=True)
    actor = ray.remote(num_cpus=0.5)(Worker)
    workers = [actor.remote() for _ in range(WORLD)]
    ray.get([each.train.remote(rank, sys.argv[1:]) for rank, each in enumerate(workers)])


if __name__ == "__main__":
    main()
