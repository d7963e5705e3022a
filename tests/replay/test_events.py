# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Files in, event lines out: whole files, and files that grow."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mwatch.config.catalogue import load
from mwatch.errors import InputError
from mwatch.model.event import Exit
from mwatch.replay.events import (
    EventWriter,
    Summary,
    encode,
    follow_files,
    parse_files,
)
from support.builders.events import grammar, log, megatron_line


def parsed(*files: Path, since_line: int = 1) -> tuple[list[dict[str, Any]], Summary]:
    out, summary = io.BytesIO(), Summary()
    writer = EventWriter(out, summary, since_line)
    parse_files([str(file) for file in files], grammar(), writer, summary)
    return [json.loads(line) for line in out.getvalue().splitlines()], summary


def test_each_event_is_one_json_line(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text(log("training ...", megatron_line(1), megatron_line(2)))
    records, summary = parsed(file)
    assert [(r["iteration"], r["line"]) for r in records if r["event"] == "iteration"] == [
        (1, 2), (2, 3),
    ]  # fmt: skip
    assert {record["file"] for record in records} == {str(file)}
    assert (summary.lines, summary.events["iteration"], summary.problems) == (3, 2, [])


def test_the_last_line_needs_no_newline_and_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text(log(megatron_line(1)) + megatron_line(2))
    records, summary = parsed(file)
    assert [record["line"] for record in records] == [1, 2]
    assert summary.lines == 2


def test_files_are_read_in_turn_and_counted_from_one_each(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(log(megatron_line(10), megatron_line(20)))
    records, summary = parsed(tmp_path / "a", tmp_path / "b")
    assert [(Path(r["file"]).name, r["line"], r["covers"]) for r in records] == [
        ("a", 1, None), ("a", 2, 10), ("b", 1, None), ("b", 2, 10),
    ]  # fmt: skip
    assert summary.lines == 4


def test_since_line_hides_events_and_keeps_their_meaning(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text(log(*(megatron_line(number) for number in (10, 20, 30))))
    records, summary = parsed(file, since_line=2)
    assert [(record["line"], record["covers"]) for record in records] == [(2, 10), (3, 10)]
    assert summary.events["iteration"] == 2


def test_a_file_that_cannot_be_read_does_not_stop_the_others(tmp_path: Path) -> None:
    good = tmp_path / "good.log"
    good.write_text(log(megatron_line(1)))
    records, summary = parsed(tmp_path / "missing.log", good)
    assert len(records) == 1
    assert len(summary.problems) == 1
    assert "missing.log" in summary.problems[0]


def test_a_catalogue_that_is_no_toml_is_bad_input(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("this is = = no toml")
    with pytest.raises(InputError, match=r"own\.toml"):
        load([file])


def test_an_event_with_an_odd_file_name_can_be_written() -> None:
    event = Exit("signal", None, "bye", None, None, "trainer-\udcff.log", 1)
    assert json.loads(encode(event))["reason"] == "signal"


class World:
    """What happens to the files between two polls; then the user ends it."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = list(steps)

    def wait(self, _seconds: float) -> None:
        if not self._steps:
            raise KeyboardInterrupt
        self._steps.pop(0)()


def followed(files: list[Path], world: World) -> tuple[list[dict[str, Any]], Summary]:
    out, summary = io.BytesIO(), Summary()
    names = [str(file) for file in files]
    with pytest.raises(KeyboardInterrupt):
        follow_files(names, grammar(), EventWriter(out, summary, 1), summary, world.wait)
    return [json.loads(line) for line in out.getvalue().splitlines()], summary


def append(path: Path, *lines: str) -> Callable[[], object]:
    def write() -> None:
        with path.open("a") as file:
            file.write(log(*lines))

    return write


def nothing() -> None:
    pass


def test_following_goes_through_growth_rotation_and_truncation(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    world = World(
        append(path, megatron_line(10)),
        append(path, megatron_line(20)),
        lambda: path.rename(tmp_path / "a.log.1"),
        append(path, megatron_line(30)),
        lambda: path.write_text(""),
        append(path, megatron_line(40), megatron_line(50)),
        nothing,
        nothing,
    )
    records, summary = followed([path], world)
    assert [(r["iteration"], r["line"], r["covers"]) for r in records] == [
        (10, 1, None), (20, 2, 10), (30, 1, 10), (40, 1, 10), (50, 2, 10),
    ]  # fmt: skip
    assert summary.lines == 5


def test_following_two_files_keeps_them_apart(tmp_path: Path) -> None:
    a, b = tmp_path / "a.log", tmp_path / "b.log"
    world = World(append(a, megatron_line(10)), append(b, megatron_line(700)),
                  append(a, megatron_line(20)), nothing, nothing)  # fmt: skip
    records, _ = followed([a, b], world)
    assert [(Path(r["file"]).name, r["iteration"], r["covers"]) for r in records] == [
        ("a.log", 10, None), ("b.log", 700, None), ("a.log", 20, 10),
    ]  # fmt: skip


def test_an_open_block_is_given_when_the_file_rests(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    trace = ("Traceback (most recent call last):", '  File "x.py", line 3, in f', "ValueError: no")
    seen: list[int] = []
    out, summary = io.BytesIO(), Summary()
    steps = [append(path, *trace)] + [nothing] * 30
    world = World(*steps, lambda: seen.append(len(out.getvalue())), nothing)
    with pytest.raises(KeyboardInterrupt):
        follow_files([str(path)], grammar(), EventWriter(out, summary, 1), summary, world.wait)
    assert seen[0] > 0
    assert summary.events["error"] == 1
