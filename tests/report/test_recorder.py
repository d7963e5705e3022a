# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What is told to the engine becomes the story of the run, live and replayed alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwatch.engine.engine import Engine
from mwatch.model.event import Validation
from mwatch.model.observation import AttemptStart, ProcessExit
from mwatch.report.conclusion import MAX_ATTEMPTS
from mwatch.report.model import EvidenceFile, ReportClock
from mwatch.report.recorder import ReportRecorder
from support.builders.fold import READY, WORLD, line, loaded, loading, saved, saving
from support.builders.story import START, Watch, replayed
from support.runs.recorded import RunLog, moment


def healthy(*iterations: int) -> list[str]:
    return [line(n, losses=f" lm loss: {6 - n / 100:.6E} |") for n in iterations]


def sick(*iterations: int) -> list[str]:
    return [line(each, losses="", change={"grad norm": "nan"}) for each in iterations]


def rolled_back() -> Watch:
    """NaN from 7 on, restarted by mwatch from 6, and past the place where it was lost."""
    watch = Watch()
    watch.says(WORLD, READY, *healthy(1, 2, 3), saving(3), saved(3), *healthy(4, 5, 6))
    watch.says(saving(6), saved(6), *sick(7, 8, 9))
    watch.sees(ProcessExit(143, "SIGTERM", None))
    watch.at += 5
    watch.sees(AttemptStart(2, 6, 8))
    watch.says(WORLD, loading(6), loaded(6), READY, *healthy(7, 8, 9, 10))
    return watch


def test_a_recorder_that_was_reported_nothing_says_so() -> None:
    story = ReportRecorder(Engine("run", {})).report()
    assert (story.verdict.cause, story.attempts, story.started_at) == ("blind", (), None)
    assert (story.verdict.summary, story.exit_code) == ("no data yet", 3)


def test_a_healthy_run_has_curves_and_no_incidents() -> None:
    watch = Watch()
    watch.says(WORLD, READY, *healthy(1, 2, 3))
    story = watch.story()
    assert [each.last for each in story.series] == [1, 2, 3]
    assert (story.verdict.cause, story.incidents, story.is_over) == ("healthy", (), False)
    assert (story.iteration, story.mode, story.run) == (3, "act", "run")
    assert story.command == "torchrun pretrain_gpt.py"


def test_an_incident_shows_what_was_done_and_what_it_cost() -> None:
    (incident,) = rolled_back().story().incidents
    assert (incident.cause, incident.severity, incident.attempt) == ("nan", "critical", 1)
    assert (incident.since_iteration, incident.action) == (7, "restart")
    assert (incident.resume_from, incident.resumed_from, incident.lost_steps) == (6, 6, 3)
    assert incident.acted_at is not None and incident.detected_at <= incident.acted_at
    assert "before the first bad iteration" in incident.resume_reason
    assert {each.detector for each in incident.voices} >= {"loss_missing"}
    assert incident.voices[0].evidence[0].text
    assert incident.runbook == "numerics"


def test_an_incident_is_recovered_from_when_a_later_attempt_gets_further() -> None:
    watch = rolled_back()
    (incident,) = watch.story().incidents
    assert incident.recovered_at == watch.at


def test_the_same_iteration_with_bad_numbers_makes_nothing_good() -> None:
    watch = Watch()
    watch.says(WORLD, READY, *healthy(1, 2, 3), saving(3), saved(3), *sick(4, 5, 6))
    watch.sees(AttemptStart(2, 3, 8))
    watch.says(WORLD, loading(3), loaded(3), READY, *sick(4, 5, 6, 7))
    assert all(each.recovered_at is None for each in watch.story().incidents)


def test_attempts_show_what_was_done_again_and_why_they_ended() -> None:
    first, second = rolled_back().story().attempts
    assert (first.cause, first.first_iteration, first.last_iteration) == ("nan", 1, 9)
    assert (second.resumed_from, second.recomputed, second.last_iteration) == (6, 3, 10)
    assert (second.cause, second.ended_at) == ("healthy", None)


def test_a_action_that_was_done_is_not_reported_as_one_that_would_have_been() -> None:
    done = {each.text for each in rolled_back().story().timeline if each.kind == "action"}
    assert done == {"restarted from checkpoint 6"}


def test_checkpoints_of_the_abandoned_line_are_marked() -> None:
    watch = Watch()
    lines = [*healthy(1, 2, 3), saving(3), saved(3), *sick(4, 5), saving(5), saved(5), *sick(6)]
    watch.says(WORLD, READY, *lines)
    states = {each.iteration: each.state for each in watch.story().checkpoints}
    assert states == {3: "good", 5: "abandoned"}


def test_what_cannot_be_seen_is_reported() -> None:
    watch = Watch()
    watch.says(WORLD, READY, *healthy(1))
    watch.recorder.noted("the GPUs cannot be asked: no driver")
    watch.recorder.noted("the GPUs cannot be asked: no driver")
    story = watch.story()
    assert {each.name for each in story.source_states if each.is_up} == {"log"}
    assert {each.since for each in story.source_states if not each.is_up} == {None}
    assert story.notes == ("the GPUs cannot be asked: no driver",)


def test_evidence_files_are_kept_with_their_incident_once() -> None:
    watch = rolled_back()
    file = EvidenceFile("incidents/1/stacks.txt", "all stacks")
    for _ in range(3):
        watch.recorder.incident(watch.engine.incidents[0], [file])
    assert watch.story().incidents[0].files == (file,)


def test_the_time_since_the_last_word_is_part_of_a_story_that_goes_on() -> None:
    watch = Watch()
    watch.says(WORLD, READY, *healthy(1))
    assert watch.recorder.report(watch.at + 60).ended_at == watch.at + 60
    assert watch.recorder.report(watch.at + 60, is_over=True).ended_at == watch.at


def test_validations_are_kept_in_a_bounded_number() -> None:
    watch = Watch()
    watch.says(WORLD, READY, *healthy(1))
    for number in range(2000):
        said = Validation(number, None, {"lm loss": 2.0}, {}, None, None, "a", 1, "megatron")
        watch._tell(said)
    found = watch.story().validations
    assert 200 <= len(found) <= 512
    assert found[0].iteration == 0


def test_thousands_of_attempts_are_bounded_and_the_rest_is_counted() -> None:
    watch = Watch("observe")
    watch.says(WORLD, READY)
    for number in range(2, 400):
        watch.at += 1
        watch._tell(AttemptStart(number, None, 8))
    story = watch.story()
    numbers = [each.number for each in story.attempts]
    assert len(numbers) == MAX_ATTEMPTS
    assert (numbers[0], numbers[-1]) == (1, 399)
    assert story.left_out >= 399 - MAX_ATTEMPTS


def test_secrets_do_not_reach_the_story() -> None:
    watch = Watch()
    watch.recorder.command = "train --token hf_abcdefghijklmnopqrstuvwxyz0123456789"
    watch.says(WORLD, READY, *healthy(1))
    assert "hf_abcdef" not in watch.story().command


def test_a_watched_run_is_reported_in_the_time_of_its_machine() -> None:
    engine = Engine("run", {})
    assert ReportRecorder(engine, "observe").clock.zone
    assert ReportRecorder(engine, "replay").clock == ReportClock()


@pytest.fixture
def killed(tmp_path: Path) -> RunLog:
    log = RunLog(total=400).start().steps(1, 100).save(100).steps(101, 150).killed()
    return log.wait(5).start(load=100).steps(101, 400).done()


def test_a_replay_gives_a_story_with_its_own_conclusion(killed: RunLog, tmp_path: Path) -> None:
    story = replayed(tmp_path, str(killed))
    assert (story.mode, story.verdict.cause, story.is_over) == ("replay", "finished", True)
    (incident,) = story.incidents
    assert (incident.cause, incident.lost_steps, incident.resumed_from) == ("killed", 50, 100)
    assert [each.cause for each in story.attempts] == ["killed", "finished"]
    assert story.started_at == moment(5.0)
    assert story.files[0].endswith("trainer.log")
    assert 0 < (story.goodput or 0) < 1
    assert sum(each.seconds for each in story.spent) == pytest.approx(story.wall_seconds)
    assert {each.phase for each in story.phases} >= {"starting", "training", "saving", "loading"}


def test_a_log_without_a_known_line_is_a_story_of_nothing(tmp_path: Path) -> None:
    story = replayed(tmp_path, "hello\nworld\n")
    assert (story.verdict.cause, story.series) == ("unknown", ())
    assert "no line of a trainer" in story.verdict.summary


def test_times_are_those_of_the_engine(tmp_path: Path) -> None:
    story = rolled_back().story()
    assert START <= (story.started_at or 0) <= START + 2
