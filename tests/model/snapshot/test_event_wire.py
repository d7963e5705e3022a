# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Events as JSON: the contract of DESIGN 4."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mwatch import json_codec
from mwatch.model.event import EVENT_TYPES, Batch, Checkpoint, Event, Iteration, event_name
from mwatch.model.snapshot.event_wire import from_wire, to_wire
from support.builders.events import events, log, megatron_line

CONTRACT = (
    '{"event":"iteration","iteration":610,"total_iterations":500000,'
    '"timestamp":"2025-09-07T23:58:47","consumed_samples":19520,"elapsed_ms":436.7,'
    '"learning_rate":5.999998e-05,"global_batch_size":32,"losses":{"lm loss":6.002230},'
    '"loss_scale":131072.0,"grad_norm":0.791,"num_zeros":null,"params_norm":null,'
    '"throughput_tflops":null,"skipped":0,"nan":0,"covers":1,"first_of_process":false,'
    '"extra":{},"rank":null,"file":"trainer.log","line":17,"flavour":"megatron"}'
)
NAMES = {
    "iteration", "batch", "validation", "phase", "checkpoint", "fault", "error", "overflow",
    "timers", "straggler", "exit", "arguments",
}  # fmt: skip


def test_an_iteration_has_the_keys_of_the_contract_in_their_order() -> None:
    lines = log(*(megatron_line(number) for number in range(594, 611)))
    record = to_wire(events(lines)[-1])
    assert list(record) == list(json_codec.decode(CONTRACT))
    assert json_codec.decode(json_codec.encode(record)) == json_codec.decode(CONTRACT)


def test_every_event_of_the_contract_has_its_name() -> None:
    assert {event_name(kind) for kind in EVENT_TYPES} == NAMES


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_every_event_has_file_line_and_rank(kind: type[Event]) -> None:
    assert {"file", "line", "rank"} <= set(kind._fields)


def test_a_checkpoint_says_async() -> None:
    record = to_wire(Checkpoint("save", "end", 20, "/ck", True, "t", None, None, "f", 1))
    assert record["async"] is True
    assert "is_async" not in record
    assert {"event", "op", "edge", "iteration", "path", "async"} <= set(record)


@pytest.mark.parametrize(
    ("value", "text"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
def test_numbers_that_json_cannot_hold_are_strings(value: float, text: str) -> None:
    line = megatron_line(change={"grad norm": text}, losses=f" lm loss: {text.upper()} |")
    record = to_wire(events(line + "\n")[0])
    assert (record["grad_norm"], record["losses"]) == (text, {"lm loss": text})
    back = from_wire(record)
    assert isinstance(back, Iteration)
    assert str(back.grad_norm) == str(value)


def test_opposite_infinities_do_not_cancel() -> None:
    line = megatron_line(change={"grad norm": "-inf"}, losses=" lm loss: INF |")
    record = to_wire(events(line + "\n")[0])
    assert (record["grad_norm"], record["losses"]) == ("-inf", {"lm loss": "inf"})


def test_large_numbers_stay_numbers() -> None:
    line = megatron_line(change={"grad norm": "1e308", "loss scale": "1.7e308"})
    record = to_wire(events(line + "\n")[0])
    assert (record["grad_norm"], record["loss_scale"]) == (1e308, 1.7e308)


def test_a_record_of_an_older_release_reads_with_missing_keys_as_null() -> None:
    event = from_wire({"event": "iteration", "iteration": 5, "file": "f", "line": 1})
    assert isinstance(event, Iteration)
    assert (event.iteration, event.covers, event.losses, event.extra) == (5, None, {}, {})


def test_a_record_of_a_newer_release_reads_without_its_unknown_keys() -> None:
    record = json_codec.decode(CONTRACT) | {"colour": "blue"}
    assert to_wire(from_wire(record)) == json_codec.decode(CONTRACT)


def test_a_choice_of_a_newer_release_is_read_as_its_text() -> None:
    record = json_codec.decode(CONTRACT) | {"flavour": "nanotron"}
    assert from_wire(record).flavour == "nanotron"  # type: ignore[union-attr]


def test_an_extra_number_that_json_cannot_hold_is_a_number_again() -> None:
    record = json_codec.decode(CONTRACT) | {"extra": {"mfu": "nan", "name": "x", "n": 1}}
    extra = from_wire(record).extra  # type: ignore[union-attr]
    assert str(extra["mfu"]) == "nan" and isinstance(extra["mfu"], float)
    assert (extra["name"], extra["n"]) == ("x", 1)


@pytest.mark.parametrize(
    "change", [{"iteration": None}, {"line": "seven"}, {"losses": [1]}, {"grad_norm": {}}]
)
def test_a_value_of_another_type_is_a_value_error(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        from_wire(json_codec.decode(CONTRACT) | change)


@pytest.mark.parametrize("record", [{"event": "earthquake"}, {}, {"event": None}, {"event": 7}])
def test_an_unknown_event_is_a_value_error(record: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no such event"):
        from_wire(record)


whole = st.integers(0, 10**18)
real = st.floats()
text = st.text(st.characters(codec="utf-8"), max_size=20).filter(
    lambda value: value not in {"nan", "inf", "-inf"}
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: whole, float: real, str: text, bool: st.booleans(), type(None): st.none(),
}  # fmt: skip


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    if hint in PLAIN:
        return PLAIN[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(inner)
    if origin in (Union, types.UnionType):
        return st.one_of([of_type(part) for part in inner])
    if origin is tuple:
        return st.tuples(*(of_type(part) for part in inner))
    assert origin is Mapping, hint
    return st.dictionaries(text, of_type(inner[1]), max_size=3)


def of_kind(kind: type[Event]) -> st.SearchStrategy[Event]:
    # A subclass of a named tuple has its fields annotated in the base.
    hints = get_type_hints(Iteration if kind is Batch else kind)
    return st.builds(
        lambda *values: kind(*values), *(of_type(hints[name]) for name in kind._fields)
    )


@settings(max_examples=300, deadline=None)
@given(st.one_of([of_kind(kind) for kind in EVENT_TYPES]))
def test_every_event_survives_the_way_through_json(event: Event) -> None:
    back = from_wire(json_codec.decode(json_codec.encode(to_wire(event))))
    assert type(back) is type(event)
    assert to_wire(back) == to_wire(event)
