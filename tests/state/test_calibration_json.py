# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What was learnt survives as JSON, and a file that is not ours teaches nothing."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwatch.model.calibration import MAX_SHAPES, Calibration
from mwatch.model.phase import DeadlineSlot
from mwatch.model.settings import Settings
from mwatch.state.calibration import VERSION, from_json, to_json

FIRST_VERSION = """
{"version": 1, "layouts": [
  {"key": "world=4 tp=1", "batch_size": null, "log_interval": null, "best_step": null,
   "best_spread": 0.0, "durations": {}, "steps": [2.0], "rises": [], "recomputed": [],
   "recent": []},
  {"key": "world=8 tp=2", "batch_size": 256, "log_interval": 100, "best_step": 0.98,
   "best_spread": 0.02,
   "durations": {"saving": [8.0, 9.0], "first-save": [18.0]},
   "steps": [1.0, 1.1], "rises": [1.5], "recomputed": [300.0], "recent": [1.0, 1.1]}]}
"""


def learnt() -> Calibration:
    known = Calibration().in_layout("world=8")
    known.resize_batch(32)
    known.space_lines(10)
    for number in range(40):
        known.learn_step(1.0 + number / 300, 10)
        known.learn(DeadlineSlot.TRAINING, 10.0 + number)
    for slot in DeadlineSlot:
        known.learn(slot, 12.345)
    known.recomputed.append(77.0)
    known.rises.append(1.25)
    return known


def through_json(known: Calibration) -> Calibration:
    return from_json(json.loads(json.dumps(to_json(known))))


def test_what_was_learnt_comes_back() -> None:
    known = learnt()
    back = through_json(known)
    for slot in DeadlineSlot:
        assert back.deadline(slot, Settings()) == pytest.approx(known.deadline(slot, Settings()))
    for name in ("step_median", "step_p99", "usual_step"):
        assert getattr(back, name)() == pytest.approx(getattr(known, name)(), rel=1e-5)
    assert back.restart_cost(Settings()) == pytest.approx(known.restart_cost(Settings()))
    assert (back.key, back.batch_size, back.log_interval) == ("world=8", 32, 10)


def test_a_file_of_the_first_version_is_read() -> None:
    known = from_json(json.loads(FIRST_VERSION))
    assert (known.key, known.batch_size, known.best_step) == ("world=8 tp=2", 256, 0.98)
    assert known.durations[DeadlineSlot.FIRST_SAVE].median() == 18.0
    assert known.others["world=4 tp=1"].step_median() == 2.0
    assert to_json(known) == json.loads(FIRST_VERSION)


def test_several_layouts_are_kept_in_one_file_and_no_more_than_a_few() -> None:
    known = learnt()
    for number in range(9, 30):
        known = known.in_layout(f"world={number}")
    document = to_json(known)
    assert len(document["layouts"]) == MAX_SHAPES
    document["layouts"] *= 3
    assert len(from_json(document).others) == MAX_SHAPES - 1
    assert through_json(known).key == "world=29"


def test_a_layout_without_a_key_is_not_kept() -> None:
    assert to_json(Calibration()) == {"version": VERSION, "layouts": []}


@pytest.mark.parametrize(
    "document",
    [None, 7, "x", [], {}, {"version": 2, "layouts": []}, {"version": 1},
     {"version": 1, "layouts": {}}, {"version": 1, "layouts": [None, 3, []]}],
)  # fmt: skip
def test_what_is_not_ours_teaches_nothing(document: Any) -> None:
    assert from_json(document) == Calibration()


@pytest.mark.parametrize(
    "change",
    [{"key": ""}, {"key": 5}, {"key": "x" * 300}, {"durations": []}, {"durations": {"saving": 7}},
     {"durations": {"saving": [-1]}}, {"steps": ["1"]}, {"steps": [True]}, {"steps": [1e99]},
     {"steps": [float("nan")]}, {"recent": None}, {"best_step": "fast"}, {"best_step": -1},
     {"best_spread": None}],
)  # fmt: skip
def test_a_damaged_layout_is_left_out_and_the_others_are_read(change: dict[str, Any]) -> None:
    document = json.loads(FIRST_VERSION)
    document["layouts"][1] |= change
    assert from_json(document).key == "world=4 tp=1"


def test_more_than_there_should_be_is_cut_and_the_unknown_is_passed_over() -> None:
    document = json.loads(FIRST_VERSION)
    document["layouts"][1] |= {"steps": [3.0] * 5000 + [1.0] * 512, "new": 1, "batch_size": -3}
    document["layouts"][1]["durations"]["dancing"] = [1]
    known = from_json(document)
    assert (len(known.steps), known.step_median(), known.batch_size) == (512, 1.0, None)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(st.sampled_from(["key", "durations", "steps", "best_step", "batch_size", "recent"]), JSON)
def test_no_value_anywhere_does_harm(name: str, value: Any) -> None:
    document = json.loads(FIRST_VERSION)
    document["layouts"][1][name] = value
    before = copy.deepcopy(document)
    known = from_json(document)
    assert document == before or value != value
    json.dumps(to_json(known))
