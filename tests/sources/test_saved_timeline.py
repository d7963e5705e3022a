# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The timeline of a folder as the core knows it: the same words as the wrapper's."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from mwatch.model.timeline import MAX_ROLLBACKS, Rollback, Timeline
from mwatch.sources.checkpoint_dir import find, to_model, to_text
from mwatch_trainer.checkpoint import timeline as file

FIRST_VERSION = Path(__file__).parents[1] / "data" / "timeline-v1.json"
COUNTS = st.integers(0, 20)
TIMES = st.integers(0, 20).map(float)
ROLLBACKS = st.builds(
    file.TimelineRollback, TIMES, COUNTS, st.none() | COUNTS, st.just("x"),
    st.lists(st.tuples(COUNTS, TIMES), max_size=3).map(tuple),
)  # fmt: skip


def put(save: Path, data: bytes) -> str:
    (save / ".mwatch").mkdir()
    (save / ".mwatch" / "timeline.json").write_bytes(data)
    return str(save)


def test_no_timeline_is_no_problem(tmp_path: Path) -> None:
    assert find(str(tmp_path)) == (None, None, False)


def test_a_timeline_is_read_and_written_without_loss(tmp_path: Path) -> None:
    found = find(put(tmp_path, FIRST_VERSION.read_bytes()))
    assert found.timeline is not None
    assert (found.problem, found.is_broken, found.timeline.attempt) == (None, False, 3)
    assert found.timeline.is_suspect(480)
    assert to_model(file.parse(to_text(found.timeline).encode())) == found.timeline
    assert to_model(file.parse(to_text(Timeline()).encode())) == Timeline()


def test_a_broken_one_is_distinguished_from_none(tmp_path: Path) -> None:
    found = find(put(tmp_path, b"{"))
    assert (found.timeline, found.is_broken) == (None, True)
    assert found.problem is not None
    assert found.problem.startswith(".mwatch/timeline.json does not parse")


def test_one_of_a_newer_mwatch_is_used_and_reported(tmp_path: Path) -> None:
    text = FIRST_VERSION.read_text().replace('"version": 1', '"version": 9')
    found = find(put(tmp_path, text.encode()))
    assert found.timeline is not None
    assert "newer mwatch" in (found.problem or "")


def test_more_rollbacks_than_are_kept_forget_nothing() -> None:
    many = [file.TimelineRollback(float(number), 10 * number, None, "") for number in range(1, 200)]
    timeline = to_model(file.TimelineFile(rollbacks=tuple(many)))
    assert len(timeline.rollbacks) == MAX_ROLLBACKS
    assert timeline.is_abandoned(11, 1.0)


@given(st.lists(ROLLBACKS, max_size=4), st.none() | COUNTS, COUNTS, st.none() | TIMES)
def test_the_core_and_the_wrapper_judge_alike(
    rollbacks: list[file.TimelineRollback],
    first_bad: int | None,
    iteration: int,
    written: float | None,
) -> None:
    quarantine = None if first_bad is None else file.TimelineQuarantine(1.0, first_bad, "")
    shared = file.TimelineFile(1, (), tuple(rollbacks), quarantine)
    expected = file.standing(shared, iteration, written)
    assert to_model(shared).standing(iteration, written).value == expected


def test_the_fields_of_both_are_the_same() -> None:
    assert Rollback.__struct_fields__ == file.TimelineRollback._fields
