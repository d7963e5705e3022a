# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The fencing token: one owner for each number, and what a late wrapper may do."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from mwatch_trainer.attempt import fencing
from mwatch_trainer.attempt.fencing import newer_attempt
from mwatch_trainer.checkpoint.timeline import TimelineFile, to_text
from support.builders.attempt import act, contents, decide, megatron, ran, saved, timeline_of


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    save = str(saved(tmp_path / "ck", 10, 20))
    return ["torchrun", megatron(tmp_path / "w"), "--save", save, "--load", save]


def take(save: Path, number: int, seen: int | None = None) -> None:
    def text(timeline: TimelineFile) -> str:
        return to_text(timeline._replace(attempt=number))

    fencing.claim(str(save), number, number - 1 if seen is None else seen, text)


def _race(save: str, barrier: Barrier, won: multiprocessing.Queue[int], name: int) -> None:
    barrier.wait()
    try:
        take(Path(save), 1)
    except fencing.NumberTaken:
        return
    won.put(name)


def test_of_wrappers_that_come_at_once_one_gets_the_number(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, won = context.Barrier(4), context.Queue()
    racers = [
        context.Process(target=_race, args=(str(tmp_path), barrier, won, name)) for name in range(4)
    ]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
        assert racer.exitcode == 0
    won.get(timeout=60)
    assert won.empty() and fencing.current(str(tmp_path))[1] == 1


def test_a_number_is_taken_once(tmp_path: Path) -> None:
    take(tmp_path, 1)
    take(tmp_path, 2)
    with pytest.raises(fencing.NumberTaken):
        take(tmp_path, 2)
    with pytest.raises(fencing.NumberTaken):
        take(tmp_path, 1)
    with pytest.raises(fencing.NumberTaken):
        take(tmp_path, 5, seen=1)
    assert timeline_of(tmp_path)["attempt"] == 2


def test_a_claim_whose_owner_died_before_it_was_published_still_counts(tmp_path: Path) -> None:
    take(tmp_path, 1)
    before = (tmp_path / ".mwatch" / "timeline.json").read_bytes()
    take(tmp_path, 2)
    (tmp_path / ".mwatch" / "timeline.json").write_bytes(before)
    timeline, top = fencing.current(str(tmp_path))
    assert (timeline.attempt, top) == (2, 2)
    take(tmp_path, 3)


def test_half_a_claim_takes_its_number_and_says_nothing(tmp_path: Path) -> None:
    take(tmp_path, 1)
    (tmp_path / ".mwatch" / "claims" / "attempt-2.json").write_text('{"ver')
    timeline, top = fencing.current(str(tmp_path))
    assert (timeline.attempt, top) == (1, 2)


def test_old_claims_go(tmp_path: Path) -> None:
    for number in range(1, 40):
        take(tmp_path, number)
    names = {path.name for path in (tmp_path / ".mwatch" / "claims").iterdir()}
    assert len(names) == fencing.KEPT and "attempt-39.json" in names


def test_the_fence_sees_a_newer_attempt(tmp_path: Path) -> None:
    save = str(tmp_path)
    assert newer_attempt(save, 1) is None
    take(tmp_path, 1)
    assert newer_attempt(save, 1) is None
    take(tmp_path, 2)
    said = newer_attempt(save, 1)
    assert said is not None and "attempt 2" in said
    assert newer_attempt(str(tmp_path), 2) is None


def test_what_cannot_be_read_stops_no_training(tmp_path: Path) -> None:
    (tmp_path / ".mwatch").mkdir()
    (tmp_path / ".mwatch" / "timeline.json").write_text('{"attempt": "9"')
    (tmp_path / ".mwatch" / "claims").write_text("no folder")
    assert newer_attempt(str(tmp_path), 1) is None
    assert newer_attempt(str(tmp_path / "missing"), 1) is None
    assert newer_attempt(None, 1) is None


def test_a_wrapper_that_comes_back_late_writes_nothing(tmp_path: Path, run: list[str]) -> None:
    """It was held up between its choice and its claim, and another began meanwhile."""
    save = tmp_path / "ck"
    act(run, tmp_path / "v")
    after: list[dict[str, bytes | None]] = []

    def held_up(_: float) -> None:
        if not after:
            (save / "iter_0000030.hidden").rename(save / "iter_0000030")
            assert act(run, tmp_path / "other").number == 2
            after.append(contents(save))

    saved(save, 30)
    (save / "iter_0000030").rename(save / "iter_0000030.hidden")
    ran(tmp_path / "v", 1)
    decide(tmp_path / "v", 2, resume_from=30)
    plan = act(run, tmp_path / "v", wait=5.0, sleep=held_up)
    assert plan.refused is not None and plan.exit_code == 203 and not plan.is_permanent
    assert contents(save) == after[0]


def test_an_order_for_an_attempt_that_has_passed_writes_nothing(
    tmp_path: Path, run: list[str]
) -> None:
    save = tmp_path / "ck"
    act(run, tmp_path / "v")
    ran(tmp_path / "v", 1)
    act(run, tmp_path / "other")
    act(run, tmp_path / "other")
    before = contents(save)
    decide(tmp_path / "v", 2, resume_from=10)
    plan = act(run, tmp_path / "v")
    assert plan.exit_code == 203 and contents(save) == before
    assert newer_attempt(str(save), 1) is not None
    assert contents(save) == before
