# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The timeline file: its shape, its bounds, and what a damaged one is worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwatch_trainer.checkpoint.timeline import (
    MAX_ATTEMPTS,
    MAX_BYTES,
    MAX_MARKED,
    BrokenTimeline,
    TimelineAttempt,
    TimelineFile,
    TimelineQuarantine,
    TimelineRollback,
    is_abandoned,
    parse,
    read,
    standing,
    to_text,
)

FIRST_VERSION = Path(__file__).parents[2] / "data" / "timeline-v1.json"


def put(save: Path, data: bytes) -> Path:
    (save / ".mwatch").mkdir(exist_ok=True)
    (save / ".mwatch" / "timeline.json").write_bytes(data)
    return save


def changed(**values: Any) -> bytes:
    return json.dumps(json.loads(FIRST_VERSION.read_bytes()) | values).encode()


def test_a_file_of_the_first_version_is_read() -> None:
    timeline = parse(FIRST_VERSION.read_bytes())
    assert timeline.attempt == 3
    assert timeline.attempts[1] == TimelineAttempt(2, 1700003600.0, 400)
    (rollback,) = timeline.rollbacks
    assert (rollback.to_iteration, rollback.first_bad) == (400, 551)
    assert timeline.quarantine == TimelineQuarantine(1700005900.0, 480, "grad norm is inf")


def test_it_says_what_a_checkpoint_is_worth() -> None:
    timeline = parse(FIRST_VERSION.read_bytes())
    worth = [
        standing(timeline, iteration, 1700000000.0 + at)
        for iteration, at in ((400, 1000), (500, 2500), (600, 3510), (450, 5500), (500, 5800))
    ]
    assert worth == ["good", "abandoned", "abandoned", "good", "suspect"]
    assert is_abandoned(timeline, 401, None)


def test_where_there_is_none_there_is_none(tmp_path: Path) -> None:
    assert read(str(tmp_path)) is None
    (tmp_path / ".mwatch").write_text("a file")
    assert read(str(tmp_path)) is None


def test_what_is_written_is_read(tmp_path: Path) -> None:
    timeline = parse(FIRST_VERSION.read_bytes())
    assert read(str(put(tmp_path, to_text(timeline).encode()))) == timeline
    assert parse(to_text(TimelineFile()).encode()) == TimelineFile()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "does not parse: it is empty"), (b"{", "does not parse"), (b"\xff", "does not parse"),
        (b"[" * 100_000, "does not parse"), (b"[]", "holds no object"), (b"{}", "has no version"),
        (changed(version="1"), "has no version"), (changed(version=0), "has no version"),
        (changed(attempt=-1), "strange number"), (changed(attempts={}), "no list of attempts"),
        (changed(rollbacks=None), "no list of rollbacks"),
        (changed(rollbacks=[7]), "not an object"),
        (changed(rollbacks=[{"at": 1.0}]), "without a time or a point"),
        (changed(rollbacks=[{"at": None, "to_iteration": 5}]), "without a time or a point"),
        (changed(rollbacks=[{"at": 1, "to_iteration": True}]), "without a time or a point"),
        (changed(rollbacks=[{"at": 1, "to_iteration": 5, "first_bad": "x"}]), "first bad"),
        (changed(rollbacks=[{"at": 1, "to_iteration": 5, "marked": [[1]]}]), "strange marks"),
        (changed(quarantine={"at": 1.0}), "quarantine without"), (changed(quarantine=4), "without"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_broken_and_says_why(data: bytes, why: str) -> None:
    with pytest.raises(BrokenTimeline, match=why):
        parse(data)


def test_a_file_that_cannot_be_read_is_broken(tmp_path: Path) -> None:
    with pytest.raises(BrokenTimeline, match="larger than"):
        read(str(put(tmp_path, b" " * (MAX_BYTES + 1))))
    (tmp_path / ".mwatch" / "timeline.json").unlink()
    (tmp_path / ".mwatch" / "timeline.json").mkdir()
    with pytest.raises(BrokenTimeline, match="cannot be read"):
        read(str(tmp_path))


def test_a_damaged_attempt_is_left_out() -> None:
    strange = [7, {}, {"number": "x"}, {"number": 1, "started_at": "x"}]
    strange += [{"number": 1, "resumed_from": -4}, {"number": 2}]
    assert parse(changed(attempts=strange)).attempts == (TimelineAttempt(2, None, None),)


def test_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    timeline = parse(changed(version=2, more={"x": 1}))
    assert (timeline.version, len(timeline.rollbacks)) == (2, 1)


def test_reasons_attempts_and_marks_are_bounded() -> None:
    marked = tuple((number, 1.0) for number in range(2 * MAX_MARKED))
    timeline = TimelineFile(
        7,
        tuple(TimelineAttempt(number, 1.0, None) for number in range(1000)),
        (TimelineRollback(1.0, 0, None, "x" * 9999, marked),),
        TimelineQuarantine(1.0, 1, "y" * 9999),
    )
    back = parse(to_text(timeline).encode())
    assert len(back.attempts) == MAX_ATTEMPTS
    assert back.attempts[-1].number == 999
    assert len(back.rollbacks[0].marked) == MAX_MARKED
    assert len(to_text(timeline)) < 20_000


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(st.sampled_from(["version", "attempt", "attempts", "rollbacks", "quarantine"]), JSON)
def test_anything_is_read_or_broken(name: str, value: Any) -> None:
    try:
        timeline = parse(changed(**{name: value}))
    except BrokenTimeline:
        return
    assert parse(to_text(timeline).encode())._replace(version=0) == timeline._replace(version=0)
