# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Observations as JSON and back: nothing is lost on the way."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwatch import json_codec
from mwatch.model.event import Event, Iteration
from mwatch.model.observation import (
    AttemptStart,
    Beat,
    Observed,
    ProcessExit,
    Sign,
    SignSource,
    SignState,
    Source,
    SourceStatusChange,
    StoredCheckpoint,
    StoredCheckpoints,
)
from mwatch.model.snapshot.observed_wire import from_wire, to_wire
from support.builders.events import events, megatron_line

NUMBERS = st.integers(0, 1 << 40)
MAYBE = st.none() | NUMBERS
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
MOMENTS = st.floats(0, 4e9)
OBSERVATIONS = st.one_of(
    st.builds(Beat, NUMBERS, MAYBE, MAYBE, TEXTS, TEXTS, MAYBE, MAYBE),
    st.builds(Sign, st.sampled_from(SignSource), st.sampled_from(SignState), MAYBE, TEXTS),
    st.builds(ProcessExit, MAYBE, st.none() | TEXTS, st.none() | TEXTS),
    st.builds(AttemptStart, MAYBE, MAYBE, MAYBE, st.none() | st.floats(0, 1e9)),
    st.builds(SourceStatusChange, st.sampled_from(Source), st.booleans(), TEXTS),
    st.builds(
        StoredCheckpoints,
        TEXTS,
        st.lists(
            st.builds(StoredCheckpoint, NUMBERS, TEXTS, st.none() | TEXTS, MAYBE, st.none()),
            max_size=4,
        ).map(tuple),
    ),
)
LOG = """
[before the start of training step] datetime: 2026-11-15 09:00:00
{line}
saving checkpoint at iteration       5 to /ckpt in torch_dist format
RuntimeError: CUDA error: an illegal memory access was encountered
"""


def over_the_wire(observed: Observed) -> Observed:
    """As JSON text."""
    record: dict[str, Any] = json_codec.decode(json_codec.encode(to_wire(observed)))
    return from_wire(record)


@given(MOMENTS, TEXTS, OBSERVATIONS)
def test_every_observation_comes_back_as_it_was(at: float, stream: str, what: Any) -> None:
    observed = Observed(at, stream, what)
    assert over_the_wire(observed) == observed


def log_events() -> list[Event]:
    return events(LOG.format(line=megatron_line(5)), faults=True)


@pytest.mark.parametrize("event", log_events(), ids=lambda event: type(event).__name__)
def test_every_event_of_a_log_comes_back_as_it_was(event: Event) -> None:
    observed = Observed(5.0, "pod-0", event)
    assert over_the_wire(observed) == observed


def test_numbers_that_are_none_survive() -> None:
    (line,) = [each for each in log_events() if isinstance(each, Iteration)]
    bad = line._replace(losses={"lm loss": math.nan}, grad_norm=math.inf)
    found = over_the_wire(Observed(5.0, "pod-0", bad)).what
    assert isinstance(found, Iteration)
    assert math.isnan(found.losses["lm loss"])
    assert found.grad_norm == math.inf


def test_what_a_newer_release_adds_is_left_out() -> None:
    record = to_wire(Observed(1.0, "p", AttemptStart(3, None, 8))) | {"colour": "red"}
    assert from_wire(record).what == AttemptStart(3, None, 8)


def test_the_stream_may_be_reported_beside_it() -> None:
    record = to_wire(Observed(1.0, "p", AttemptStart(3, None, 8)))
    del record["stream"]
    assert from_wire(record, "q").stream == "q"


@pytest.mark.parametrize(
    "record",
    [
        {"at": 1.0, "stream": "p", "seen": "dream"},
        {"at": 1.0, "stream": "p"},
        {"at": None, "stream": "p", "seen": "attempt"},
        {"at": True, "stream": "p", "seen": "attempt"},
        {"at": 1.0, "seen": "attempt"},
        {"at": 1.0, "stream": "p", "seen": "sign", "source": "stars", "state": "flat"},
        {"at": 1.0, "stream": "p", "event": "omen"},
    ],
)
def test_what_is_no_observation_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        from_wire(record)
