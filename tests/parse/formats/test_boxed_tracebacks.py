# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Tracebacks that the library rich draws as boxes, drawn here by rich itself."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

import pytest
from rich.console import Console

from mwatch.model.event import Error
from support.builders.events import log, many, none, one

CODE = """
def save_checkpoint(path):
    raise OSError(5, "Input/output error")

def fit():
    save_checkpoint("ep0-ba20")

def chained():
    try:
        fit()
    except OSError as error:
        raise RuntimeError("could not save") from error
"""


def boxed(folder: Path, function: str, *, width: int = 80, has_locals: bool = False) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "loop.py"
    file.write_text(CODE)
    spec = importlib.util.spec_from_file_location("loop", file)
    assert spec is not None and spec.loader is not None
    loop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loop)
    drawn = io.StringIO()
    try:
        getattr(loop, function)()
    except Exception:
        Console(file=drawn, width=width).print_exception(show_locals=has_locals)
    return drawn.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("prefix", ["", "[rank2]: "])
@pytest.mark.parametrize("has_locals", [False, True])
def test_a_box_is_read_like_the_traceback_that_python_prints(
    width: int, prefix: str, has_locals: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "a-folder-with-a-name-that-is-so-long-that-its-row-has-to-go-on" / "below"
    drawn = boxed(folder, "fit", width=width, has_locals=has_locals)
    event = one(log("before", *(prefix + line for line in drawn), "after"), Error)
    assert (event.kind, event.error) == ("traceback", "OSError")
    assert (event.message, event.during) == ("[Errno 5] Input/output error", "save")
    assert event.where == f"{folder}/loop.py:3 in save_checkpoint"
    assert (event.line, event.rank) == (2, 2 if prefix else None)
    # The evidence is the row itself, which can be found in the log.
    assert event.frame is not None and event.where_line is not None
    assert event.frame in drawn[event.where_line - 2]


def test_a_path_of_any_length_is_joined_again(tmp_path: Path) -> None:
    for length in range(1, 80):  # so that each part of the row is once the first of the next row
        folder = tmp_path / ("a" * length)
        event = one(log(*boxed(folder, "fit")), Error)
        assert event.where == f"{folder}/loop.py:3 in save_checkpoint"


def test_the_first_box_of_a_chain_is_the_cause(tmp_path: Path) -> None:
    event = one(log(*boxed(tmp_path, "chained")), Error)
    assert (event.error, event.where) == ("OSError", f"{tmp_path}/loop.py:3 in save_checkpoint")


def test_boxes_one_after_the_other_are_two_errors(tmp_path: Path) -> None:
    found = many(log(*boxed(tmp_path, "fit"), *boxed(tmp_path, "fit")), Error)
    assert [event.error for event in found] == ["OSError", "OSError"]


def test_a_box_whose_end_was_cut_off_still_shows_where(tmp_path: Path) -> None:
    whole = boxed(tmp_path, "fit")
    end = next(place for place, line in enumerate(whole) if line.startswith("╰"))
    event = one(log(*whole[:end]), Error)
    assert (event.error, event.where) == (None, f"{tmp_path}/loop.py:3 in save_checkpoint")


def test_a_box_around_something_else_is_no_traceback() -> None:
    none(log("╭──── Options ────╮", "│ --load PATH     │", "╰─────────────────╯"), Error)


def test_a_row_that_never_ends_is_read_in_linear_time(tmp_path: Path) -> None:
    whole = boxed(tmp_path, "fit")
    for filling in (" " * 250_000, "│ " * 100_000, "/" * 250_000, "/a:1 in" * 30_000):
        event = one(log(*whole[:2], f"│ {filling}x", *whole[2:]), Error)
        assert event.where == f"{tmp_path}/loop.py:3 in save_checkpoint"
