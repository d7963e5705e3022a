# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Incidents of a watched run: one record, one bundle and few announcements for each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from mwatch.evidence.collector import EvidenceCollector
from mwatch.evidence.incident_store import IncidentFiles
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.finding import Finding, Severity
from mwatch.model.observation import AttemptStart, ProcessExit
from mwatch.watch.incidents import IncidentTracker
from support.builders.fold import READY, WORLD, line
from support.builders.run import Told, gone_bad, good
from support.builders.volume import write_attempt
from support.waiting import until


class Kept(NamedTuple):
    keeper: IncidentTracker
    root: Path

    def records(self) -> list[dict[str, Any]]:
        files = sorted(self.root.glob("*/incident.json"))
        return [json.loads(each.read_text("utf-8")) for each in files]


@contextmanager
def keeping(told: Told, folder: Path, *, is_act: bool = True) -> Iterator[Kept]:
    engine, root = told.engine, folder / "incidents"
    evidence = EvidenceCollector(folder, "local", told.clock.now, lambda: engine.job.attempt.number)
    try:
        keeper = IncidentTracker(IncidentFiles(root), engine, evidence, is_act=is_act)
        yield Kept(keeper, root)
    finally:
        evidence.close()


def starting() -> Told:
    """A job of which no detector finds anything."""
    told = Told()
    told.sees(AttemptStart(1, None, None))
    told.says(WORLD)
    return told


def find(told: Told, at: float, **change: Any) -> None:
    """A finding by hand at `at`, and no longer a second later."""
    usual: dict[str, Any] = {"detector": "slow", "cause": Cause.SLOW, "severity": Severity.WARNING}
    found = Finding(**(usual | {"summary": "slow"} | change))
    told.clock.monotonic += at - told.clock.now()
    told.engine.evaluate(at, [found])


def test_what_several_detectors_find_is_one_record(tmp_path: Path) -> None:
    told = gone_bad()
    with keeping(told, tmp_path) as kept:
        assert [each.cause for each in kept.keeper.update().found] == [Cause.NAN]
        assert kept.keeper.update().found == [], "announced once"
        (record,) = kept.records()
    assert record["cause"] == "nan"
    assert record["first_bad_iteration"] == 7
    assert record["is_carried_out"] is False


def test_a_record_runs_from_the_fault_to_the_first_new_iteration(tmp_path: Path) -> None:
    write_attempt(tmp_path)
    told = gone_bad()
    with keeping(told, tmp_path) as kept:
        kept.keeper.update()
        decision = told.waits(1).decision
        folder = kept.keeper.collect_evidence_before_restart(decision)
        assert folder is not None
        assert (folder / "manifest.json").exists(), "evidence comes before the kill"
        told.enacts(decision)
        kept.keeper.acted(decision)
        told.sees(ProcessExit(None, "SIGKILL", None))
        told.sees(AttemptStart(2, 6, None))
        told.says(READY, *good(7, 8, 9))
        kept.keeper.update()
        assert kept.records()[0]["times"]["first_new_iteration"] is None, "it has been at 9 before"
        told.says(*good(10))
        kept.keeper.update()
        (record,) = kept.records()
    assert record["action"] == "restart"
    assert record["is_carried_out"] is True
    assert record["checkpoint"]["iteration"] == 6
    assert record["cost"]["lost_iterations"] == 3
    assert record["times"]["first_new_iteration"] == told.clock.now()
    assert record["evidence"]["files"]


def test_what_was_recovered_stays_so_whatever_comes_after_it(tmp_path: Path) -> None:
    told = gone_bad()
    with keeping(told, tmp_path) as kept:
        told.enacts(told.waits(1).decision)
        told.sees(AttemptStart(2, 6, None))
        told.says(READY, *good(7, 8, 9, 10))
        kept.keeper.update()
        (tracked,) = kept.keeper.tracked
        recovered = tracked.record.times.first_new_iteration
        assert recovered is not None
        told.says(*good(11, 12))
        kept.keeper.update()
        assert tracked.record.times.first_new_iteration == recovered


def test_when_only_observing_nothing_is_called_carried_out(tmp_path: Path) -> None:
    told = gone_bad()
    with keeping(told, tmp_path, is_act=False) as kept:
        kept.keeper.update()
        decision = told.waits(1).decision
        kept.keeper.collect_evidence_before_restart(decision)
        told.engine.record_action(decision, told.clock.now(), is_carried_out=False)
        kept.keeper.acted(decision)
        (record,) = kept.records()
    assert (record["action"], record["is_carried_out"]) == ("restart", False)


def test_evidence_that_comes_late_is_added(tmp_path: Path) -> None:
    told = gone_bad()
    with keeping(told, tmp_path) as kept:
        recorded = kept.keeper.update().recorded
        (tracked,) = kept.keeper.tracked
        assert tracked.case is not None
        until(tracked.case.done.is_set)
        recorded += kept.keeper.update().recorded
        assert recorded == [tracked, tracked], "without its evidence, and with it"
        assert tracked.record.evidence is not None
        assert kept.keeper.update().recorded == []


def test_a_warning_asks_nobody_for_a_dump(tmp_path: Path) -> None:
    told = starting()
    with keeping(told, tmp_path) as kept:
        find(told, told.clock.now())
        kept.keeper.update()
        assert [each.case for each in kept.keeper.tracked] == [None]
        find(told, told.clock.now() + 1, severity=Severity.CRITICAL)
        kept.keeper.update()
        assert kept.keeper.tracked[0].case is not None


def test_what_comes_and_goes_is_announced_a_few_times_only(tmp_path: Path) -> None:
    told = starting()
    with keeping(told, tmp_path) as kept:
        found = closed = 0
        for _ in range(50):
            find(told, told.clock.now())
            found += len(kept.keeper.update().found)
            told.waits(1)
            closed += len(kept.keeper.update().closed)
        assert found == closed == 3
        assert len(kept.records()) == 1


def test_after_a_minute_of_quiet_there_is_another_record(tmp_path: Path) -> None:
    told = starting()
    with keeping(told, tmp_path) as kept:
        find(told, told.clock.now())
        told.waits(1)
        find(told, told.clock.now() + 61)
        assert len(kept.keeper.update().found) == 1
        assert [each["cause"] for each in kept.records()] == ["slow", "slow"]


def test_a_silence_that_turns_out_to_be_a_death_is_announced_again(tmp_path: Path) -> None:
    told = Told()
    told.sees(AttemptStart(1, None, None))
    told.says(WORLD, READY, *good(*range(1, 30)))
    told.waits(20)
    with keeping(told, tmp_path) as kept:
        (silence,) = kept.keeper.update().found
        assert silence.cause is Cause.HANG, "nothing was printed for 20 times as long as usual"
        detected = silence.detected_at
        told.sees(ProcessExit(None, "SIGKILL", None))
        assert [each.cause for each in kept.keeper.update().found] == [Cause.KILLED]
        (record,) = kept.records()
    assert record["cause"] == "killed"
    assert record["times"]["detected"] == detected


def test_what_is_kept_has_a_bound(tmp_path: Path) -> None:
    told = Told()
    with keeping(told, tmp_path) as kept:
        for number in range(1, 301):
            told.sees(AttemptStart(number, None, None))
            find(told, told.clock.now() + 1)
            kept.keeper.update()
        assert len(kept.keeper.tracked) == 256
        assert len(kept.records()) <= 64


def test_a_folder_that_cannot_be_written_to_is_reported_once_and_changes_nothing(
    tmp_path: Path,
) -> None:
    told = gone_bad()
    (tmp_path / "incidents").write_text("a file, where the folder should be")
    with keeping(told, tmp_path) as kept:
        kept.keeper.update()
        told.enacts(told.waits(1).decision)
        kept.keeper.update()
        (problem,) = kept.keeper.problems
        assert "cannot write incidents" in problem


def test_a_record_holds_no_secret_of_the_log(tmp_path: Path) -> None:
    told = starting()
    with keeping(told, tmp_path) as kept:
        find(told, told.clock.now(), summary="HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz123")
        kept.keeper.update()
        assert kept.records()
        assert "abcdefghij" not in json.dumps(kept.records())


def test_iterations_are_not_needed(tmp_path: Path) -> None:
    """It died before its first line, and the next attempt prints one."""
    told = Told()
    told.sees(AttemptStart(1, None, None))
    told.says(WORLD)
    told.sees(ProcessExit(None, "SIGKILL", None))
    with keeping(told, tmp_path) as kept:
        kept.keeper.update()
        decision = told.waits(60).decision
        assert decision.action is Action.RESTART
        told.enacts(decision)
        kept.keeper.acted(decision)
        told.sees(AttemptStart(2, None, None))
        told.says(READY, line(1))
        kept.keeper.update()
        assert kept.records()[0]["times"]["first_new_iteration"] is not None
