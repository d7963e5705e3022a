# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Snapshots of other releases: what an old sidecar wrote is read, a newer one as far as known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mwatch.model.cause import Cause
from mwatch.model.event import Iteration
from mwatch.model.observation import AttemptStart, Beat, Sign, SignState, StoredCheckpoints
from mwatch.model.snapshot.snapshot_wire import decode, from_wire

OLD = Path(__file__).resolve().parents[2] / "data" / "snapshot-v1.json"


def old() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(OLD.read_text("utf-8"))
    return found


def test_a_snapshot_of_the_first_version_is_read() -> None:
    found = from_wire(old())
    assert (found.who.run, found.who.pod, found.cursor) == ("gpt", "gpt-worker-1", "5f3c9a1e2b7d.9")
    assert [type(each.what) for each in found.events] == [AttemptStart, Iteration]
    assert [each.what.rank for each in found.beats if isinstance(each.what, Beat)] == [8, 9]
    assert [each.what.state for each in found.signs if isinstance(each.what, Sign)] == [
        SignState.FLAT
    ]
    assert found.findings[0].cause is Cause.HANG
    assert found.gpus[0].uuid == "GPU-0"
    assert found.gpus[0].throttle == ()
    assert found.nccl is not None
    assert found.wrapper is not None
    assert found.wrapper.attempt == 3
    assert found.stored is not None
    assert isinstance(found.stored.what, StoredCheckpoints)
    assert found.pod is not None
    assert found.pod.data[0].is_unobservable
    assert found.unread == 0
    at = found.at
    assert found.observed(at + found.age)[0].at == found.events[0].at, "clocks that agree"


def test_what_a_newer_release_adds_is_counted_or_left_out() -> None:
    body = old() | {"weather": "fine"}
    body["events"] = [*body["events"], {"at": 1.0, "seen": "dream"}, {"at": 1.0, "event": "omen"}]
    body["signs"] = [*body["signs"], ["stars", "bright", None, "", 1.0]]
    body["findings"] = [*body["findings"], {"detector": "x", "cause": "new", "severity": "info"}]
    body["view"]["mood"] = "good"
    body["gpus"][0]["colour"] = "green"
    body["beats"][0].append("more")
    found = from_wire(body)
    assert found.unread == 3
    assert len(found.events) == 2
    assert len(found.findings) == 1


def test_a_snapshot_without_the_parts_that_did_not_change_is_whole() -> None:
    body = {
        name: value for name, value in old().items() if name not in ("wrapper", "stored", "pod")
    }
    found = from_wire(body)
    assert (found.wrapper, found.stored, found.pod) == (None, None, None)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"version": 2},
        {"version": 1},
        old() | {"who": None},
        old() | {"beats": [[1]]},
        old() | {"beats": 5},
        old() | {"at": "now"},
        old() | {"gpus": [5]},
    ],
)
def test_what_is_no_snapshot_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        from_wire(body)


def test_text_and_decoded_json_read_the_same() -> None:
    assert decode(OLD.read_bytes()) == from_wire(old())


@pytest.mark.parametrize(
    "data",
    [b"", b"[", b"\xff", b"[]", b'{"version":1,"events":' + b"[" * 100_000],
    ids=["empty", "cut", "no text", "a list", "nested"],
)
def test_what_is_no_json_or_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


def test_a_newer_version_is_named_whatever_else_it_holds() -> None:
    with pytest.raises(ValueError, match="version 2 cannot be read; this is 1"):
        decode(b'{"version":2,"who":"nobody"}')


def test_a_value_of_another_type_never_reaches_the_engine() -> None:
    body = old()
    body["events"][1]["iteration"] = [1200]
    del body["events"][0]["at"]
    assert from_wire(body).unread == 2
    body["gpus"][0]["power_watts"] = {"watts": 600}
    with pytest.raises(ValueError, match="power_watts"):
        from_wire(body)
