# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The eyes of a local run: a real volume in, and everybody told."""

from __future__ import annotations

from pathlib import Path

from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.observation import ProcessExit
from mwatch.report import story_json
from mwatch_trainer import contract
from support.builders.fold import READY, WORLD
from support.builders.run import bad, good
from support.runs.watched_runs import records, watching
from support.waiting import until


def test_an_attempt_is_reported_with_what_its_wrapper_chose(tmp_path: Path) -> None:
    with watching(tmp_path) as watched:
        watched.start(4, resume_from=40, resume_reason="the newest")
        watched.watch.look()
        watched.watch.look()
    assert watched.view.of("began") == [(4, 40, "the newest")]


def test_when_observing_nothing_was_chosen(tmp_path: Path) -> None:
    with watching(tmp_path, is_act=False) as watched:
        watched.start(1, resume_from=40, resume_reason="observe: as it was given")
        watched.watch.look()
    assert watched.view.of("began") == [(1, None, "")]


def test_bad_numbers_are_found_once_reported_and_decided_on(tmp_path: Path) -> None:
    with watching(tmp_path) as watched:
        watched.start(1)
        watched.say(WORLD, READY, *good(*range(1, 61)), *bad(61, 62))
        assert [each.cause for each in watched.view.of("found")] == [Cause.NAN]
        decision = watched.watch.look_closely().decision
        assert decision.action is Action.RESTART
        watched.say(*bad(*range(63, 75)))
        assert watched.watch.is_due(watched.watch.look().decision)
    (record,) = records(watched)
    assert record["first_bad_iteration"] == 61


def test_what_is_found_after_an_action_is_its_echo(tmp_path: Path) -> None:
    with watching(tmp_path) as watched:
        watched.start(1)
        watched.say(WORLD, READY, *good(*range(1, 7)), *bad(*range(7, 21)))
        decision = watched.watch.look().decision
        watched.watch.enacted(decision)
        assert not watched.watch.is_due(watched.watch.look().decision), "an attempt has one"
        watched.clock.monotonic += 1
        watched.watch.attempt_ended(ProcessExit(None, "SIGKILL", None))
        watched.watch.look()
        assert [each.cause for each in watched.view.of("found")] == [Cause.NAN]
    assert [each["cause"] for each in records(watched)] == ["nan"]


def test_an_end_that_no_wrapper_wrote_is_reported_all_the_same(tmp_path: Path) -> None:
    with watching(tmp_path) as watched:
        watched.start(1)
        watched.say(WORLD, READY, *good(1, 2, 3))
        watched.watch.attempt_ended(ProcessExit(None, "SIGKILL", None))
        watched.watch.look()
        assert [each.cause for each in watched.view.of("found")] == [Cause.KILLED]


def test_an_incident_counts_once_and_is_in_the_story_with_its_evidence(tmp_path: Path) -> None:
    with watching(tmp_path) as watched:
        watched.start(1)
        watched.say(WORLD, READY, *good(*range(1, 61)), *bad(*range(61, 75)))
        decision = watched.watch.look().decision
        watched.watch.keeper.collect_evidence_before_restart(decision)
        watched.watch.enacted(decision)
        watched.start(2, resume_from=60)
        watched.say(READY, *good(*range(61, 77)))
        (snapshot,) = watched.metrics.snapshots()
        counts = {
            (cause.value, action.value): n for (cause, action), n in snapshot.incidents.items()
        }
        assert counts == {("nan", "restart"): 1}
    story = story_json.read(watched.folder.story)
    assert story.is_over
    (incident,) = story.incidents
    printed = {each.strip() for each in (*good(60), *bad(*range(61, 75)))}
    quoted = [each.text for each in incident.voices[0].evidence]
    assert quoted and printed.issuperset(quoted), "as they were printed"
    assert any(each.path.endswith("/attempt.json") for each in incident.files)
    (record,) = records(watched)
    assert record["times"]["first_new_iteration"] is not None


def test_what_lies_beside_the_checkpoints_is_recalled(tmp_path: Path) -> None:
    with watching(tmp_path) as watched:
        folder = watched.save / ".mwatch"
        folder.mkdir()
        rollback = {"at": 5.0, "to_iteration": 40, "first_bad": 45, "reason": "nan"}
        body = {"attempt": 3, "attempts": [], "quarantine": None, "rollbacks": [rollback]}
        contract.write_json(str(folder / "timeline.json"), body)
        watched.start(4)
        until(lambda: watched.watch.look() and watched.watch.recalled)
        assert watched.watch.recalled[0].to_iteration == 40
        assert watched.engine.job.timeline.is_abandoned(45, 1.0)


def test_a_problem_is_reported_once(tmp_path: Path) -> None:
    with watching(tmp_path) as watched:
        (watched.save / ".mwatch").mkdir()
        (watched.save / ".mwatch" / "timeline.json").write_text("{")
        watched.start(1)
        until(lambda: watched.watch.look() and watched.view.of("noted"))
        watched.watch.look()
        assert len(watched.view.of("noted")) == 1


def test_a_story_that_cannot_be_written_takes_no_verdict_away(tmp_path: Path) -> None:
    with watching(tmp_path) as watched:
        watched.folder.story.mkdir()
        (watched.folder.story / "in the way").touch()
        watched.start(1)
        watched.say(WORLD, READY, *good(*range(1, 7)), *bad(7, 8))
        assert watched.watch.look().decision.cause is Cause.NAN
        assert any("story" in each for each in watched.view.of("noted"))
