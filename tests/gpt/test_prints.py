# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a healthy job prints, on which rank, and that mwatch reads it as it reads Megatron."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpt.launch import Job, Nursery, field, start_job
from mwatch.config.catalogue import load
from mwatch.model.event import Arguments, Checkpoint, Event, Iteration, Validation
from mwatch.parse.grammar import Grammar
from mwatch.parse.reader import Reader
from mwatch_trainer.checkpoint.files import CheckpointState
from mwatch_trainer.checkpoint.listing import list_checkpoints

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}"
FLAGS = (
    "--train-iters 8 --save-interval 4 --log-interval 4 --eval-interval 4 --log-throughput "
    "--log-params-norm --log-num-zeros-in-grad --log-progress --tensorboard-dir {}/tb"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("healthy")


@pytest.fixture(scope="module")
def job(nursery: Nursery, folder: Path) -> Iterator[Job]:
    job = start_job(nursery, folder, FLAGS.format(folder), 2)
    assert job.wait() == [0, 0], job.log(0)
    yield job
    job.close()


def events(job: Job) -> list[Event]:
    reader = Reader(Grammar(load([]), None), "trainer.log")
    text = job.log(0) + job.log(1)
    return [*reader.feed(text.encode()), *reader.close()]


def test_the_iteration_line_is_megatrons_and_comes_from_the_last_rank(job: Job) -> None:
    number = r"\d\.\d{6}E[+-]\d\d"
    line = (
        rf" \[{STAMP}\] iteration        4/       8 \| consumed samples:           16 \| "
        r"elapsed time per iteration \(ms\): \d+\.\d \| "
        r"throughput per GPU \(TFLOP/s/GPU\): \d\.\d \| "
        rf"learning rate: {number} \| global batch size:     4 \| lm loss: {number} \| "
        r"loss scale: 1\.0 \| grad norm: \d\.\d{3} \| num zeros: \d+\.0 \| "
        r"params norm: \d+\.\d{3} \| number of skipped iterations:   0 \| "
        r"number of nan iterations:   0 \|"
    )
    assert re.search(f"^{line}$", job.log(1), re.M), job.log(1)
    assert "elapsed time per iteration" not in job.log(0)


def test_the_first_iteration_is_printed_out_of_turn(job: Job) -> None:
    assert list(job.lines) == [1, 4, 8]


def test_rank_0_speaks_for_the_job(job: Job) -> None:
    order = [
        "------------------------ arguments ------------------------",
        "-------------------- end of arguments ---------------------",
        "> setting random seeds to 1234 ...",
        "[after megatron is initialized] datetime: ",
        "will not load any checkpoints and will start from random",
        "[after model, optimizer, and learning rate scheduler are built] datetime: ",
        "[after dataloaders are built] datetime: ",
        "training ...",
        "[before the start of training step] datetime: ",
        "saving checkpoint at iteration       4 to ",
        "successfully saved checkpoint from iteration       4 to ",
        "saving checkpoint at iteration       8 to ",
        "[after training is done] datetime: ",
        "Evaluating iter 1/1",
    ]
    places = [job.log(0).find(text) for text in order]
    assert -1 not in places
    assert places == sorted(places)
    assert not any(text in job.log(1) for text in order)


def test_the_validation_block_comes_from_the_last_rank(job: Job) -> None:
    block = r"^-+\n validation loss at iteration 4 \| lm loss value: .* \| lm loss PPL: .* \| \n-+$"
    assert re.search(block, job.log(1), re.M)
    assert " validation loss at iteration 8 on test set | " in job.log(1)
    assert "validation loss" not in job.log(0)


def test_mwatch_reads_it_all(job: Job) -> None:
    found = events(job)
    (arguments,) = [each for each in found if isinstance(each, Arguments)]
    assert (arguments.world_size, arguments.data_parallel, arguments.save_interval) == (2, 2, 4)
    steps = [each for each in found if isinstance(each, Iteration)]
    assert [each.iteration for each in steps] == [1, 4, 8]
    assert all(each.losses["lm loss"] for each in steps)
    marks = [each for each in found if isinstance(each, Checkpoint) and each.op == "save"]
    assert [(each.edge, each.iteration) for each in marks] == [
        ("begin", 4), ("end", 4), ("begin", 8), ("end", 8),
    ]  # fmt: skip
    assert len([each for each in found if isinstance(each, Validation)]) == 4


def test_the_checkpoints_are_complete_and_the_tracker_names_the_last(
    job: Job, folder: Path
) -> None:
    listing = list_checkpoints(str(folder / "ck"))
    assert [(each.iteration, each.state) for each in listing.checkpoints] == [
        (8, CheckpointState.COMPLETE),
        (4, CheckpointState.COMPLETE),
    ]
    assert (folder / "ck" / "latest_checkpointed_iteration.txt").read_text() == "8"
    names = {path.name for path in (folder / "ck" / "iter_0000008").iterdir()}
    assert names >= {"metadata.json", ".metadata", "common.pt", "__0_0.distcp", "__1_0.distcp"}


def test_progress_is_kept_beside_the_checkpoints(job: Job, folder: Path) -> None:
    lines = (folder / "ck" / "progress.txt").read_text().splitlines()
    assert [line.split("\t")[3] for line in lines] == [
        "Starting job",
        "Saved checkpoint",
        "Saved checkpoint",
    ]
    assert lines[1].split("\t")[4] == "Iteration: 4"
    assert "TFLOP/s/GPU\tFloating-point operations: " in lines[1]


def test_tensorboard_has_the_numbers_of_every_iteration(job: Job, folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    store = EventAccumulator(str(folder / "tb"))
    store.Reload()
    assert [each.step for each in store.Scalars("lm loss")] == list(range(1, 9))
    tags = store.Tags()["scalars"]
    assert {"grad-norm", "learning-rate", "lm loss validation", "loss-scale"} <= set(tags)


def test_a_step_can_be_held_to_a_length(train: Callable[..., Job]) -> None:
    job = train("--train-iters 3 --log-interval 1 --min-step-seconds 0.3", ranks=1)
    assert job.wait() == [0], job.log(0)
    lengths = [
        float(field(each, "elapsed time per iteration (ms)") or 0) for each in job.lines.values()
    ]
    assert len(lengths) == 3 and min(lengths) >= 300.0, lengths
