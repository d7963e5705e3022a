# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""An interrupted run and an uninterrupted one compute the same, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpt.launch import Job

Train = Callable[..., Job]


def numbers(job: Job) -> dict[int, str]:
    """Iteration lines without what the clock says."""
    return {
        number: line.partition("elapsed")[0] + line.partition("| learning")[2]
        for number, line in job.lines.items()
    }


def shards(folder: Path, iteration: int) -> dict[str, bytes]:
    found = (folder / "ck" / f"iter_{iteration:07d}").glob("*.distcp")
    return {path.name: path.read_bytes() for path in found}


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--fp16 --initial-loss-scale 1048576 --loss-scale-window 3",
        "--tensor-model-parallel-size 2 --bf16 --global-batch-size 4",
        "--num-workers 1 --eval-interval 3 --async-save",
    ],
    ids=["data-parallel", "fp16", "tensor-parallel", "workers"],
)
def test_a_resumed_run_is_the_uninterrupted_one(train: Train, tmp_path: Path, flags: str) -> None:
    common = f"--train-iters 8 --save-interval 4 {flags}"
    whole = train(common, folder=tmp_path / "whole")
    broken = train(f"{common} --fault kill@7", folder=tmp_path / "broken")
    assert whole.wait() == [0, 0], whole.log(0)
    assert -9 in broken.wait()
    resumed = train(f"{common} --fault kill@7", folder=tmp_path / "broken")
    assert resumed.wait() == [0, 0], resumed.log(0)
    assert "at iteration 4\n" in resumed.log(0)
    # The second line of a process repeats the first iteration in its means.
    assert numbers(whole)[8] == numbers(resumed)[8]
    assert numbers(whole)[7] == numbers(resumed)[7]
    assert shards(tmp_path / "whole", 8) == shards(tmp_path / "broken", 8) != {}


def test_another_checkpoint_can_be_asked_for(train: Train, tmp_path: Path) -> None:
    first = train("--train-iters 4 --save-interval 2")
    assert first.wait() == [0, 0]
    again = train("--train-iters 4 --save-interval 2 --ckpt-step 2")
    assert again.wait() == [0, 0]
    assert " loading distributed checkpoint from " in again.log(0)
    assert min(again.lines) == 3


def test_finetune_takes_the_weights_and_begins_again(train: Train) -> None:
    assert train("--train-iters 3").wait() == [0, 0]
    again = train("--train-iters 3 --finetune")
    assert again.wait() == [0, 0]
    assert "at iteration 0\n" in again.log(0)
    assert list(again.lines) == [1, 2, 3]
    assert "consumed samples:            4" in again.lines[1]


def test_without_the_optimizer_a_resumed_run_goes_another_way(train: Train) -> None:
    assert train("--train-iters 4 --save-interval 2").wait() == [0, 0]
    straight = train("--train-iters 4 --ckpt-step 2 --no-load-rng")
    assert straight.wait() == [0, 0]
    lost = train("--train-iters 4 --ckpt-step 2 --no-load-optim --no-load-rng")
    assert lost.wait() == [0, 0]
    assert numbers(straight)[4] != numbers(lost)[4]
    assert list(lost.lines) == [3, 4]
