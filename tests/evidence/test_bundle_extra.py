# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the caller adds to a bundle, and how it is brought off the pod."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mwatch.evidence.bundle import Content, Missing, OffloadResult
from mwatch_trainer.evidence.incidents import MANIFEST
from support.builders.evidence import ID, SECRET, Wrapper, filled_volume, missing, refuse, save


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    return filled_volume(tmp_path)


def test_what_the_caller_sees_is_saved_too_and_made_while_the_ranks_write(volume: Path) -> None:
    began = threading.Event()

    def extra() -> Iterator[Content | Missing]:
        began.set()
        yield Content("ras-1.txt", b"comm 1 " + SECRET.encode() + b"\n")
        yield Missing("ras-2.txt", "nobody listens")
        yield Content("../odd", b"x")

    class Slow(Wrapper):
        def __call__(self, request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
            assert began.wait(60)
            return super().__call__(request, seconds)

    bundle = save(volume, Slow(volume), extra=extra)
    assert SECRET not in (bundle.folder / "ras-1.txt").read_text()
    assert missing(bundle) == {"ras-2.txt": "nobody listens", "'../odd'": "it has an unsafe name"}
    assert not (bundle.folder.parent / "odd").exists()


def test_an_extra_part_that_hangs_or_breaks_costs_only_itself(volume: Path) -> None:
    gate = threading.Event()

    def hangs() -> Iterator[Content]:
        yield Content("first.txt", b"x")
        gate.wait(120)

    bundle = save(volume, extra=hangs, seconds=4.0)
    gate.set()
    assert missing(bundle) == {
        "a part of the state of mwatch": "it was not ready in time"
    } or "the rest" in missing(bundle)
    assert (bundle.folder / "trainer.log").exists()

    def breaks() -> Iterator[Content]:
        raise ZeroDivisionError("ours")
        yield Content("never", b"")

    again = save(volume, refuse, extra=breaks)
    assert missing(again)["a part of the state of mwatch"] == "ZeroDivisionError: ours"


def test_an_extra_part_that_is_too_large_is_cut_or_left_out(volume: Path) -> None:
    def extra() -> list[Content]:
        return [
            Content("text.txt", b"x" * (9 << 20)),
            Content("data.bin", b"x" * (9 << 20), is_binary=True),
        ]

    bundle = save(volume, extra=extra)
    assert {file.name: file.is_cut for file in bundle.files}["text.txt"]
    assert missing(bundle) == {"data.bin": "it is too large"}


def test_it_is_brought_off_the_pod_and_the_manifest_says_where(volume: Path) -> None:
    seen: list[tuple[Path, str, bool]] = []

    def keep(folder: Path, id: str, seconds: float) -> OffloadResult:
        assert 0 < seconds <= 20
        seen.append((folder, id, (folder / MANIFEST).exists()))
        return OffloadResult("/durable/x")

    bundle = save(volume, keep=keep)
    assert seen == [(bundle.folder, ID, True)]
    assert bundle.stored == OffloadResult("/durable/x")
    manifest = json.loads((bundle.folder / MANIFEST).read_bytes())
    assert manifest["kept"] == {"folder": "/durable/x", "why": ""}


def test_what_takes_too_long_to_collect_leaves_time_to_bring_it_away(volume: Path) -> None:
    def slow() -> Iterator[Content]:
        gate.wait(120)
        yield Content("late.txt", b"")

    gate = threading.Event()
    kept: list[float] = []

    def keep(folder: Path, id: str, seconds: float) -> OffloadResult:
        kept.append(seconds)
        return OffloadResult("/durable/x")

    bundle = save(volume, extra=slow, keep=keep, seconds=22.0, keep_seconds=20.0)
    gate.set()
    assert kept[0] > 10.0
    assert bundle.stored is not None
    assert bundle.seconds < 60


def test_a_way_off_the_pod_that_hangs_costs_the_time_limit_and_no_more(volume: Path) -> None:
    gate = threading.Event()

    def keep(folder: Path, id: str, seconds: float) -> OffloadResult:
        gate.wait(120)
        return OffloadResult(None, "late")

    bundle = save(volume, keep=keep, seconds=6.0, keep_seconds=2.0)
    gate.set()
    assert bundle.seconds < 60
    assert bundle.stored is None
    assert list(missing(bundle)) == ["a copy off the pod"]
    assert (bundle.folder / MANIFEST).exists()
