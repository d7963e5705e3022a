# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A recording is looked at in the right moments, and acted on only in words."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mwatch.engine.engine import Engine
from mwatch.engine.incidents import Incident
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.observation import Observed
from mwatch.replay.event_times import EventTimestamper
from mwatch.replay.player import Player
from support.builders.events import events
from support.builders.job import entries
from support.runs.recorded import RunLog, moment

NO_LOSS = ""


def observed(text: str) -> list[Observed]:
    moments = EventTimestamper("pod-0")
    return [*moments.observe(events(text, faults=True)), *moments.rest()]


def played(text: str, until: float | None = None) -> Player:
    player = Player(Engine("run", entries()))
    player.play(observed(text))
    player.finish(None if until is None else moment(until))
    return player


def incidents(player: Player, cause: Cause) -> list[Incident]:
    return [each for each in player.engine.incidents if each.cause is cause]


def test_a_healthy_run_is_looked_at_seldom() -> None:
    player = played(str(RunLog().start().steps(1, 1000).done()))
    assert player.looks < 200
    assert list(player.engine.incidents) == []


def test_a_nan_is_found_at_its_line() -> None:
    log = RunLog().start().steps(1, 300).save(300).steps(301, 400)
    bad = log.at + 1.0
    log.steps(401, 420, loss=NO_LOSS, change={"grad norm": "nan"})
    found = incidents(played(str(log)), Cause.NAN)
    assert found
    assert all(each.detected_at == pytest.approx(moment(bad), abs=1.1) for each in found)


def test_what_would_be_done_is_done_once_and_only_in_words() -> None:
    log = RunLog().start().steps(1, 100).save(100).steps(101, 150)
    log.steps(151, 400, loss=NO_LOSS, change={"grad norm": "nan"}).done()
    player = played(str(log))
    (done,) = player.recorder.conclusions.actions.values()
    assert (done[0].action, done[0].resume_from) == (Action.RESTART, 100)
    assert len(player.engine.record.acts) == 1
    assert player.engine.job.attempt.iteration == 400


@pytest.mark.parametrize("silence", [60.0, 600.0, 7200.0])
def test_a_hang_is_found_within_a_second_or_a_fiftieth(silence: float) -> None:
    """However long the silence is: the moment of detection is that of a live watcher."""
    log = RunLog().start().steps(1, 250)
    player = played(str(log), until=log.at + silence)
    (hang,) = incidents(player, Cause.HANG)
    after = hang.detected_at - moment(log.at)
    assert 2.0 <= after <= 8.0
    assert player.looks < 200


def test_a_hang_that_heals_is_reported_and_closed() -> None:
    log = RunLog().start().steps(1, 250).wait(600.0)
    back = log.at
    player = played(str(log.steps(251, 260)))
    (hang,) = incidents(player, Cause.HANG)
    assert hang.closed_at == pytest.approx(moment(back), abs=3.0)
    assert player.engine.job.attempt.iteration == 260


def test_the_end_of_the_input_is_no_silence() -> None:
    player = played(str(RunLog().start().steps(1, 300)))
    assert list(player.engine.incidents) == []


def test_a_usual_gap_between_lines_costs_no_look() -> None:
    player = played(str(RunLog(interval=100, total=10**6).start().steps(1, 30_000)))
    assert player.looks < 150


def test_a_death_at_the_end_is_acted_on_though_the_log_says_no_more() -> None:
    log = RunLog().start().steps(1, 100).save(100).steps(101, 150).killed()
    player = played(str(log))
    (decision, at) = player.recorder.conclusions.actions[1]
    assert (decision.action, decision.resume_from, decision.cause) == (
        Action.RESTART, 100, Cause.KILLED,
    )  # fmt: skip
    assert at >= moment(log.at)


def test_how_an_attempt_stood_is_kept_when_the_next_begins_at_once() -> None:
    log = RunLog().start().steps(1, 100).save(100).steps(101, 150).killed()
    log.start(load=100).steps(101, 300).done()
    player = played(str(log))
    assert player.engine.job.attempt.number == 2
    assert [each.cause for each in player.recorder.report().attempts][:1] == [Cause.KILLED]


def test_time_that_stands_still_is_no_trouble() -> None:
    lines: Iterable[Observed] = [each._replace(at=5.0) for each in observed(
        str(RunLog().start().steps(1, 100))
    )]  # fmt: skip
    player = Player(Engine("run", entries()))
    player.play(lines)
    player.finish()
    assert player.engine.job.attempt.iteration == 100


def test_nothing_played_gives_no_assessment() -> None:
    assert played("").last is None
