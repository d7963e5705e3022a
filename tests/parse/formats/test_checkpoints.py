# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoint lines of every release, and `progress.txt`."""

from __future__ import annotations

import pytest

from mwatch.model.event import Checkpoint, Phase
from support.builders.events import arguments_block, log, many, none, one

NEW = "[2026-11-15 00:42:27.910584]"
WHEN = "2026-11-15T00:42:27.910584"
LAYOUT = "[ t 1/8, gtp_remat 1/1, p 1/4 ]"


@pytest.mark.parametrize(
    ("line", "path", "timestamp"),
    [
        (f"{NEW} saving checkpoint at iteration     163 to /ck in torch_dist format", "/ck", WHEN),
        ("saving checkpoint at iteration     163 to /ck in torch_dist format", "/ck", None),
        ("saving checkpoint at iteration     163 to /ck in torch format", "/ck", None),
        ("saving checkpoint at iteration     163 to /ck", "/ck", None),
        (
            "saving checkpoint at iteration     163 to /my runs/a in torch format",
            "/my runs/a",
            None,
        ),
        (f"{NEW} saving checkpoint at iteration     163 to None in torch_dist format", None, WHEN),
        ("saving checkpoint at iteration 12345678 to s3://b/ck in zarr format", "s3://b/ck", None),
    ],
)
def test_a_save_begins(line: str, path: str | None, timestamp: str | None) -> None:
    event = one(log(line), Checkpoint)
    assert (event.op, event.edge, event.path, event.timestamp) == ("save", "begin", path, timestamp)
    assert event.iteration == (12345678 if "s3" in line else 163)


@pytest.mark.parametrize(
    ("line", "timestamp"),
    [
        (f"  {NEW} successfully saved checkpoint from iteration     163 to /ck {LAYOUT}", WHEN),
        ("  successfully saved checkpoint from iteration     163 to /ck [ t 1/8, p 1/4 ]", None),
        ("  successfully saved checkpoint from iteration     163 to /ck", None),
        ("  successfully saved checkpoint at iteration     163 to /ck", None),
    ],
)
def test_a_save_ends(line: str, timestamp: str | None) -> None:
    event = one(log(line), Checkpoint)
    assert (event.op, event.edge, event.iteration, event.path) == ("save", "end", 163, "/ck")
    assert event.timestamp == timestamp


@pytest.mark.parametrize("stamp", [f"{NEW} ", ""])
def test_an_async_save_is_begun_queued_and_ended_later(stamp: str) -> None:
    text = log(
        arguments_block(async_save=True, log_interval=1),
        f"{stamp}saving checkpoint at iteration      20 to /ck in torch_dist format",
        f"  {stamp}scheduled an async checkpoint save at iteration      20 to /ck",
        " iteration       21/     100 | consumed samples:           80 |",
        f"  {stamp}successfully saved checkpoint from iteration      20 to /ck {LAYOUT}",
    )
    found = many(text, Checkpoint)
    assert [(event.edge, event.iteration, event.path, event.is_async) for event in found] == [
        ("begin", 20, "/ck", True),
        ("mark", 20, "/ck", True),
        ("end", 20, "/ck", True),
    ]


def test_a_save_that_was_not_queued_is_not_async() -> None:
    text = log(
        arguments_block(async_save=False, log_interval=1),
        "saving checkpoint at iteration      20 to /ck in torch_dist format",
        "  successfully saved checkpoint from iteration      20 to /ck",
    )
    assert [event.is_async for event in many(text, Checkpoint)] == [False, False]


@pytest.mark.parametrize("stamp", [f"{NEW} ", ""])
def test_a_local_save_has_no_path(stamp: str) -> None:
    line = f"  {stamp}successfully saved local checkpoint from iteration     163"
    event = one(log(line), Checkpoint)
    assert (event.op, event.edge, event.iteration, event.path) == ("save", "end", 163, None)


def test_the_warning_about_overlapping_saves_is_no_save() -> None:
    none(
        "WARNING: Starting a checkpoint save before previous has finished. Consider increasing"
        " the checkpoint interval.\n",
        Checkpoint,
    )


def test_a_deleted_checkpoint_is_reported() -> None:
    event = one("  successfully deleted checkpoint from iteration      10\n", Checkpoint)
    assert (event.op, event.edge, event.iteration) == ("delete", "end", 10)


def test_a_deletion_that_failed_is_reported() -> None:
    event = one(
        '  encountered exception "[Errno 39] Directory not empty" when trying to delete checkpoint'
        " from iteration      10\n",
        Checkpoint,
    )
    assert (event.op, event.edge) == ("delete", "failed")


@pytest.mark.parametrize("kind", ["", "release ", "distributed ", "release distributed "])
def test_a_load_begins(kind: str) -> None:
    event = one(f" loading {kind}checkpoint from /ck at iteration 163\n", Checkpoint)
    assert (event.op, event.edge, event.iteration, event.path) == ("load", "begin", 163, "/ck")


@pytest.mark.parametrize(
    "line",
    [
        "  successfully loaded checkpoint from /ck [ t 1/8, p 1/4 ] at iteration 163",
        f"  successfully loaded checkpoint from /ck {LAYOUT} at iteration 163",
        "  successfully loaded checkpoint from /ck at iteration 163",
    ],
)
def test_a_load_ends(line: str) -> None:
    event = one(log(line), Checkpoint)
    assert (event.op, event.edge, event.iteration, event.path) == ("load", "end", 163, "/ck")


def test_v1_0_names_the_loaded_file_only() -> None:
    path = "/ck/iter_0000100/mp_rank_00/model_optim_rng.pt"
    event = one(f"  successfully loaded {path}\n", Checkpoint)
    assert (event.op, event.edge, event.path) == ("load", "end", path)


@pytest.mark.parametrize("blank", ["", " "])
def test_no_checkpoint_was_found(blank: str) -> None:
    text = log(
        f"WARNING: could not find the metadata file /ck/latest_checkpointed_iteration.txt{blank}",
        f"    will not load any checkpoints and will start from random{blank}",
    )
    event = one(text, Checkpoint)
    assert (event.op, event.edge, event.iteration) == ("load", "failed", None)
    assert event.path == "/ck/latest_checkpointed_iteration.txt"


def test_a_checkpoint_that_cannot_be_loaded_is_a_failed_load() -> None:
    event = one("could not load the checkpoint\n", Checkpoint)
    assert (event.op, event.edge) == ("load", "failed")


def test_two_checkpoint_lines_glued_together_are_both_read() -> None:
    text = (
        "saving checkpoint at iteration      20 to /ck in torch_dist format"
        "  successfully saved checkpoint from iteration      20 to /ck [ t 1/1, p 1/1 ]\n\n"
    )
    assert [event.edge for event in many(text, Checkpoint)] == ["begin", "end"]


def test_the_text_is_the_line_as_printed() -> None:
    line = "saving checkpoint at iteration     163 to /ck in torch format"
    event = one(f"[default0]:{line}\n", Checkpoint)
    assert (event.text, event.line, event.file) == (line, 1, "trainer.log")


JOB = "2026-11-15 00:38:27\tJob ID: \t# GPUs: 8\t"
RATES = (
    "\tJob throughput: 123.4 TFLOP/s/GPU\tCumulative throughput: 120.1 TFLOP/s/GPU"
    "\tFloating-point operations: 1.23e+21\tTokens (in billions): 4.56"
)


@pytest.mark.parametrize(
    ("text", "op", "edge", "is_async"),
    [
        (f"Saved checkpoint\tIteration: 20{RATES}", "save", "end", False),
        (f"Saving async checkpoint\tIteration: 20{RATES}", "save", "mark", True),
        ("Saved async checkpoint\tIteration: 20", "save", "end", True),
        ("Saved async local checkpoint\tIteration: 20", "save", "end", True),
        ("Deleted checkpoint\tIteration: 20", "delete", "end", None),
        (
            f"Saved checkpoint\tIteration: 20{RATES}".replace("TFLOP", "MODEL_TFLOP"),
            "save", "end", False,
        ),
    ],
)  # fmt: skip
def test_progress_txt_shows_saves(text: str, op: str, edge: str, is_async: bool | None) -> None:
    event = one(f"{JOB}{text}\n", Checkpoint)
    assert (event.op, event.edge, event.iteration) == (op, edge, 20)
    assert (event.is_async, event.timestamp) == (is_async, "2026-11-15T00:38:27")


@pytest.mark.parametrize("job", ["", "1234567"])
def test_progress_txt_shows_starts(job: str) -> None:
    line = f"2026-11-15 00:38:27\tJob ID: {job}\t# GPUs: 8\tStarting job\n"
    event = one(line, Phase)
    assert (event.name, event.edge, event.timestamp) == ("starting", "begin", "2026-11-15T00:38:27")
