# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`story.json` keeps all of a story, and a file that is none is refused in one line."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mwatch.engine.engine import Engine
from mwatch.errors import InputError
from mwatch.report import story_json
from mwatch.report.model import ReportClock
from mwatch.report.recorder import ReportRecorder
from mwatch.report.run_report import RunReport
from mwatch.report.series import Bucket, ValueRange
from support.builders.story import by_chance, replayed
from support.runs.recorded import RunLog

OLD = Path(__file__).parents[1] / "data" / "story-v1.json"


@pytest.fixture
def story(tmp_path: Path) -> RunReport:
    log = RunLog(total=40).start().steps(1, 20).save(20).steps(21, 30).killed()
    return replayed(tmp_path, str(log))


def test_what_is_written_is_read(story: RunReport, tmp_path: Path) -> None:
    file = tmp_path / "story.json"
    story_json.write(story, file)
    again = story_json.read(file)
    assert (again.incidents, again.attempts, again.notes) == (
        story.incidents, story.attempts, story.notes,
    )  # fmt: skip
    assert story_json.to_json(again) == story_json.to_json(story)


def test_an_old_file_is_still_read() -> None:
    old = story_json.read(OLD)
    assert (old.run, old.verdict.cause, len(old.incidents)) == ("trainer", "finished", 1)
    assert old.incidents[0].cause == "killed"
    assert old.series[0].loss is not None


def test_writing_replaces_the_file_at_once_and_leaves_nothing_else(
    story: RunReport, tmp_path: Path
) -> None:
    file = tmp_path / "runs" / "story.json"
    file.parent.mkdir()
    for _ in range(3):
        story_json.write(story, file)
    assert [each.name for each in file.parent.iterdir()] == ["story.json"]
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_failed_write_leaves_the_old_file(
    story: RunReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "story.json"
    story_json.write(story, file)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        story_json.write(ReportRecorder(Engine("other", {})).report(), file)
    assert story_json.read(file).run == "trainer"
    assert len(list(tmp_path.glob(".story*"))) == 0


@pytest.mark.parametrize("seed", range(30))
def test_any_story_survives(seed: int) -> None:
    text = story_json.to_json(by_chance(seed))
    assert story_json.to_json(story_json.from_json(text)) == text


def test_no_number_of_a_story_is_nan(story: RunReport) -> None:
    data = story_json.to_json(replace(story, goodput=float("nan")))
    assert json.loads(data)["story"]["goodput"] is None


def test_whatever_was_printed_can_be_read_again(story: RunReport) -> None:
    huge = ValueRange(-1.7e308, 1.7e308, 1.7e308, 3)
    wild = replace(
        story, run="x" * 5000, wall_seconds=1.7e308, series=(Bucket(1, 1, 9, 0.0, 1.0, huge),)
    )
    again = story_json.from_json(story_json.to_json(wild))
    assert again.series[0].loss == ValueRange(-1e300, 1e300, 1e300, 3)
    assert len(again.run) == 2000


def broken(story: RunReport, change: dict[str, Any]) -> bytes:
    data = json.loads(story_json.to_json(story))
    data["story"] |= change
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run": 7}, "story.run: Expected `str`, got `int`"),
        ({"run": "x" * 3000}, "story.run has more than 2000 characters"),
        ({"iteration": 1.5}, "story.iteration: Expected `int"),
        ({"iteration": True}, "story.iteration: Expected `int"),
        ({"is_over": 1}, "story.is_over: Expected `bool`"),
        ({"wall_seconds": "1"}, "story.wall_seconds: Expected `float`"),
        ({"wall_seconds": 1e308}, "story.wall_seconds is too large a number"),
        ({"clock": []}, "story.clock: Expected `object`"),
        ({"attempts": {}}, "story.attempts: Expected `array`"),
        ({"attempts": [{}]}, "story.attempts[0]: Object missing required field `number`"),
        ({"notes": ["a"] * 5000}, "story.notes has more than 4096 items"),
        ({"series": [[1, 2]]}, "story.series[0] is not a row of 11 values"),
        (
            {"series": [[1, 1, 1, 0, 0, 0, 0, [1, 2], None, None, None]]},
            "story.series[0].loss: Expected `array` of length 4",
        ),
    ],
)
def test_what_is_not_of_the_right_shape_is_named(
    story: RunReport, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as caught:
        story_json.from_json(broken(story, change), "runs/a/story.json")
    assert str(caught.value).startswith("runs/a/story.json: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "no version"),
        (b'{"version": "1"}', "no version"),
        (b'{"version": 9}', "needs a newer mwatch"),
        (b'{"version": 1}', "story is not an object"),
        (b" " * (17 << 20), "larger than 16 MiB"),
    ],
)
def test_what_is_no_story_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        story_json.from_json(data)


def test_a_key_and_a_cause_of_a_later_mwatch_are_passed_over(story: RunReport) -> None:
    assert story_json.from_json(broken(story, {"colour": "red"})).run == "trainer"
    verdict = {"cause": "gremlins", "summary": "they are back"}
    assert story_json.from_json(broken(story, {"verdict": verdict})).verdict.cause == "unknown"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        story_json.read(tmp_path / "story.json")


def test_a_clock_is_kept(story: RunReport) -> None:
    moved = replace(story, clock=ReportClock(False, "CET", 3600.0))
    assert story_json.from_json(story_json.to_json(moved)).clock == ReportClock(
        False, "CET", 3600.0
    )
