# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One nursery for all tests of the trainer, and a way to start jobs that leaves none behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpt.launch import Job, Nursery, start_job
from mwatch_gpt.data import conversion, corpus


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def train(nursery: Nursery, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """`train("--train-iters 5 --fault ...", ranks=2)` in a folder of its own, or in `folder`."""
    jobs: list[Job] = []

    def start(arguments: str = "", *, ranks: int = 2, folder: Path = tmp_path) -> Job:
        folder.mkdir(exist_ok=True)
        jobs.append(start_job(nursery, folder, arguments, ranks))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some ten lines each, so that a small input has many places to stop at."""
    whole = corpus.blocks
    monkeypatch.setattr(conversion, "blocks", lambda paths, start: whole(paths, start, 700))
