# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Incidents of a watched run: one trouble each, and a record that tells it to its end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from mwatch.engine.engine import Engine, Incident
from mwatch.evidence.collector import EvidenceCollector
from mwatch.evidence.incident_store import IncidentFiles
from mwatch.model.decision import Action
from mwatch.model.finding import Cause, Finding, Severity
from mwatch.model.observation import AttemptStart, ProcessExit
from mwatch.watch.incidents import IncidentTracker, OpenIncident
from support.builders.fold import READY, WORLD, line
from support.builders.run import Told, gone_bad, good, until
from support.builders.volume import write_attempt


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


def incident(engine: Engine, at: float, **change: Any) -> Incident:
    """Found by hand, as the engine would."""
    usual: dict[str, Any] = {"detector": "slow", "cause": Cause.SLOW, "severity": Severity.WARNING}
    finding = Finding(**(usual | {"summary": "slow"} | change))
    found = Incident(engine.job.attempt.number, finding.cause, finding, at)
    engine.incidents.append(found)
    return found


def find_all(keeper: IncidentTracker, engine: Engine) -> list[OpenIncident]:
    return [new for each in engine.incidents if (new := keeper.found(each)) is not None]


def test_what_several_detectors_find_is_one_trouble(tmp_path: Path) -> None:
    told = gone_bad()
    assert len(told.engine.incidents) > 1, "the loss is gone, and the norm is nan"
    with keeping(told, tmp_path) as kept:
        assert len(find_all(kept.keeper, told.engine)) == 1
        (record,) = kept.records()
    assert record["cause"] == "nan"
    assert record["first_bad_iteration"] == 7
    assert record["is_carried_out"] is False


def test_a_trouble_is_told_from_the_fault_to_the_first_new_iteration(tmp_path: Path) -> None:
    write_attempt(tmp_path)
    told = gone_bad()
    with keeping(told, tmp_path) as kept:
        find_all(kept.keeper, told.engine)
        decision = told.waits(1).decision
        folder = kept.keeper.before_the_kill(decision)
        assert folder is not None
        assert (folder / "manifest.json").exists(), "evidence comes before the kill"
        told.enacts(decision)
        kept.keeper.acted(decision)
        told.sees(ProcessExit(None, "SIGKILL", None))
        told.sees(AttemptStart(2, 6, None))
        told.says(READY, *good(7, 8, 9))
        kept.keeper.looked()
        assert kept.records()[0]["times"]["first_new_iteration"] is None, "it has been at 9 before"
        told.says(*good(10))
        kept.keeper.looked()
        (record,) = kept.records()
    assert record["action"] == "restart"
    assert record["is_carried_out"] is True
    assert record["checkpoint"]["iteration"] == 6
    assert record["cost"]["lost_iterations"] == 3
    assert record["times"]["first_new_iteration"] == told.clock.now()
    assert record["evidence"]["files"]


def test_what_was_recovered_stays_so_whatever_closes_after_it(tmp_path: Path) -> None:
    told = gone_bad()
    with keeping(told, tmp_path) as kept:
        (trouble,) = find_all(kept.keeper, told.engine)
        decision = told.waits(1).decision
        told.enacts(decision)
        kept.keeper.acted(decision)
        told.sees(AttemptStart(2, 6, None))
        told.says(READY, *good(7, 8, 9, 10))
        kept.keeper.looked()
        recovered = trouble.record.times.first_new_iteration
        assert recovered is not None
        kept.keeper.close(trouble)
        assert trouble.record.times.first_new_iteration == recovered


def test_the_detector_that_was_acted_on_speaks_for_all(tmp_path: Path) -> None:
    """The one that found it first may have fallen silent before anything was done."""
    told = gone_bad()
    with keeping(told, tmp_path) as kept:
        (trouble,) = find_all(kept.keeper, told.engine)
        decision = told.waits(1).decision
        told.enacts(decision)
        first = told.engine.incidents[0]
        first.acted_at, first.closed_at = None, told.clock.now()
        kept.keeper.acted(decision)
    assert trouble.record.is_carried_out
    assert trouble.record.action is Action.RESTART


def test_when_only_observing_nothing_is_called_carried_out(tmp_path: Path) -> None:
    told = gone_bad()
    with keeping(told, tmp_path, is_act=False) as kept:
        find_all(kept.keeper, told.engine)
        decision = told.waits(1).decision
        kept.keeper.before_the_kill(decision)
        told.enacts(decision)
        kept.keeper.acted(decision)
        (record,) = kept.records()
    assert (record["action"], record["is_carried_out"]) == ("restart", False)


def test_evidence_that_comes_late_is_added(tmp_path: Path) -> None:
    told = gone_bad()
    with keeping(told, tmp_path) as kept:
        (trouble,) = find_all(kept.keeper, told.engine)
        assert trouble.case is not None
        until(trouble.case.done.is_set)
        kept.keeper.looked()
        assert trouble.record.evidence is not None
        assert kept.keeper.looked() == [], "told once"


def test_a_warning_asks_nobody_for_a_dump(tmp_path: Path) -> None:
    told = Told()
    with keeping(told, tmp_path) as kept:
        trouble = kept.keeper.found(incident(told.engine, told.clock.now()))
        assert trouble is not None
        assert trouble.case is None


def test_what_comes_and_goes_is_told_a_few_times_only(tmp_path: Path) -> None:
    told = Told()
    with keeping(told, tmp_path) as kept:
        tells = overs = 0
        for _ in range(50):
            found = incident(told.engine, told.clock.now())
            tells += kept.keeper.found(found) is not None
            found.closed_at = told.clock.now() + 1
            told.clock.monotonic += 2
            (trouble,) = kept.keeper.troubles
            overs += kept.keeper.close(trouble)
        assert tells == overs == 3
        assert len(kept.records()) == 1


def test_after_a_minute_of_quiet_it_is_another_trouble(tmp_path: Path) -> None:
    told = Told()
    with keeping(told, tmp_path) as kept:
        first = incident(told.engine, told.clock.now())
        kept.keeper.found(first)
        first.closed_at = told.clock.now()
        told.clock.monotonic += 61
        second = incident(told.engine, told.clock.now())
        assert kept.keeper.found(second) is not None
        assert len(kept.records()) == 2
        assert kept.keeper.of(first) is not kept.keeper.of(second)


def test_a_silence_that_was_the_first_sign_of_a_death_becomes_that_death(tmp_path: Path) -> None:
    told = Told()
    told.sees(AttemptStart(1, None, None))
    told.says(WORLD, READY, *good(*range(1, 30)))
    told.waits(20)
    silence = [each for each in told.engine.incidents if each.cause is Cause.HANG]
    assert silence, "nothing was printed for 20 times as long as usual"
    with keeping(told, tmp_path) as kept:
        find_all(kept.keeper, told.engine)
        told.sees(ProcessExit(None, "SIGKILL", None))
        assert not any(each is silence[0] for each in told.engine.incidents), "the engine knows"
        news = find_all(kept.keeper, told.engine)
        assert [each.record.cause for each in news] == [Cause.KILLED]
        (record,) = kept.records()
        assert kept.keeper.of(silence[0]) is None
    assert record["cause"] == "killed"
    assert record["times"]["detected"] == silence[0].detected_at


def test_two_troubles_of_one_second_have_two_names(tmp_path: Path) -> None:
    told = Told()
    with keeping(told, tmp_path) as kept:
        at = told.clock.now()
        for _ in range(2):
            found = incident(told.engine, at)
            found.closed_at = at - 100
            kept.keeper.found(found)
        assert len({each.record.id for each in kept.keeper.troubles}) == 2


def test_what_is_kept_has_a_bound(tmp_path: Path) -> None:
    told = Told()
    with keeping(told, tmp_path) as kept:
        for number in range(300):
            found = incident(told.engine, told.clock.now())
            found.attempt = number
            kept.keeper.found(found)
        assert len(kept.keeper.troubles) == 256
        assert len(kept.records()) <= 64


def test_a_folder_that_cannot_be_written_to_is_told_once_and_changes_nothing(
    tmp_path: Path,
) -> None:
    told = gone_bad()
    (tmp_path / "incidents").write_text("a file, where the folder should be")
    with keeping(told, tmp_path) as kept:
        (trouble,) = find_all(kept.keeper, told.engine)
        kept.keeper.close(trouble)
        (problem,) = kept.keeper.problems
        assert "incidents cannot be written" in problem


def test_a_record_holds_no_secret_of_the_log(tmp_path: Path) -> None:
    told = Told()
    with keeping(told, tmp_path) as kept:
        found = incident(told.engine, told.clock.now())
        found.finding = replace(found.finding, summary="HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz123")
        kept.keeper.found(found)
        assert "abcdefghij" not in json.dumps(kept.records())


def test_iterations_are_not_needed(tmp_path: Path) -> None:
    """It died before its first line, and the next attempt prints one."""
    told = Told()
    told.sees(AttemptStart(1, None, None))
    told.says(WORLD)
    told.sees(ProcessExit(None, "SIGKILL", None))
    with keeping(told, tmp_path) as kept:
        find_all(kept.keeper, told.engine)
        decision = told.waits(60).decision
        assert decision.action is Action.RESTART
        told.enacts(decision)
        kept.keeper.acted(decision)
        told.sees(AttemptStart(2, None, None))
        told.says(READY, line(1))
        kept.keeper.looked()
        assert kept.keeper.troubles[0].is_recovered
