# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What pods tell becomes one story: logs of several pods, snapshots of several sidecars."""

from __future__ import annotations

from mwatch.decide.verdict import verdict
from mwatch.diagnose.pod_reports import PodReport
from mwatch.diagnose.timeline import JobHistory, build_history
from mwatch.model.cause import Cause
from mwatch.model.finding import Verdict
from mwatch.model.observation import AttemptStart, Observed
from mwatch.model.snapshot.pod import WrapperState
from support.builders.diagnose import (
    BEGAN,
    USUAL,
    answering,
    block,
    events_of,
    iteration,
    log,
    words,
)

SAVED = "successfully saved checkpoint from iteration      10 to /ckpt"
RANDOM = [
    "WARNING: could not find the metadata file /ckpt/latest_checkpointed_iteration.txt",
    "    will not load any checkpoints and will start from random",
]


def said(story: JobHistory) -> Verdict:
    seen = story.assessment
    return verdict(story.engine.job, seen.findings, seen.decision)


def first(*more: tuple[float, str]) -> PodReport:
    lines = [(0.0, line) for line in block(**USUAL)]
    return words("train-0", log("train-0", [*lines, *more]))


def last(until: int, **more: object) -> PodReport:
    return words("train-1", log("train-1", [(5.0 + n, iteration(n)) for n in range(1, until)]))


def test_a_run_that_goes_on_is_healthy_by_its_logs() -> None:
    story = build_history("gpt", [first(), last(20)], BEGAN + 25.0)
    assert said(story).cause is Cause.HEALTHY
    assert story.engine.job.attempt.iteration == 19
    assert story.engine.job.layout.total_iterations == 1000
    assert len(story.engine.job.past) == 0


def test_silence_of_all_pods_is_a_hang_since_the_next_iteration() -> None:
    story = build_history("gpt", [first((15.5, SAVED)), last(20)], BEGAN + 90.0)
    found = said(story)
    assert (found.cause, found.since_iteration) == (Cause.HANG, 20)
    assert found.since_time == BEGAN + 24.0


def test_evidence_names_the_pod_and_when_it_was_printed() -> None:
    story = build_history("gpt", [first(), last(20)], BEGAN + 90.0)
    line = story.assessment.findings[0].evidence[0]
    assert (line.file, line.text) == ("train-1", iteration(19).strip()), "as it was printed"
    assert story.time_of(line) == BEGAN + 24.0


def test_what_has_ended_is_not_waited_for() -> None:
    lines = [(n + 5.0, iteration(n, 19)) for n in range(1, 20)]
    done = words("train-1", log("train-1", [*lines, (25.0, "[after training is done] datetime: "
                 "2026-05-28 20:26:25")]), ended=(26.0, 0, "Completed"))  # fmt: skip
    story = build_history("gpt", [first(), done], BEGAN + 9000.0, is_up=False)
    assert said(story).cause is Cause.FINISHED


def test_the_reason_of_kubernetes_shows_a_kill_from_a_crash() -> None:
    gone = words(
        "train-1", log("train-1", [(n + 5.0, iteration(n)) for n in range(1, 20)]),
        ended=(25.0, 137, "OOMKilled"),
    )  # fmt: skip
    story = build_history("gpt", [first(), gone], BEGAN + 60.0)
    assert said(story).cause in (Cause.OOM, Cause.KILLED)
    assert "train-1" in str(story.assessment.findings[0])


def test_a_restart_that_starts_from_random_is_found_in_two_logs() -> None:
    before = [(0.0, line) for line in block(**USUAL)] + [(16.0, SAVED)]
    after = [(60.0, line) for line in (*block(**USUAL), *RANDOM)]
    zero = words("train-0", log("train-0", before, is_previous=True), log("train-0", after))
    one = words(
        "train-1",
        log("train-1", [(5.0 + n, iteration(n)) for n in range(1, 13)], is_previous=True),
        log("train-1", [(62.0 + n, iteration(n)) for n in range(1, 4)]),
    )
    story = build_history("gpt", [zero, one], BEGAN + 66.0)
    assert said(story).cause is Cause.STARTED_FROM_RANDOM
    assert len(story.engine.job.past) == 1


def test_the_middle_of_a_long_log_that_was_not_read_is_no_silence() -> None:
    lines = [(5.0 + n, iteration(n)) for n in range(1, 20)]
    later = [(9000.0 + n, iteration(9000 + n, 20_000)) for n in range(1, 20)]
    long = words("train-1", log("train-1", [*lines, *later], cut_at=19))
    story = build_history("gpt", [first(), long], BEGAN + 9020.0)
    assert said(story).cause is Cause.HEALTHY
    assert story.engine.job.attempt.iteration == 9019


def test_without_a_word_of_any_pod_nothing_is_claimed() -> None:
    story = build_history("gpt", [words("train-0"), words("train-1")], BEGAN)
    assert said(story).cause in (Cause.BLIND, Cause.UNKNOWN)


def wrapper(attempt: int) -> WrapperState:
    return WrapperState(
        attempt, "observe", BEGAN, 1, "a", 0, 2, (), None, None, "/ckpt", None, False, ()
    )


def test_snapshots_of_several_sidecars_are_one_attempt() -> None:
    begun = [Observed(0.1, "", AttemptStart(1, None, 2))]
    zero = answering(
        "train-0", events=[*begun, *events_of((1.0, line) for line in block(**USUAL))],
        wrapper=wrapper(1), at=25.0,
    )  # fmt: skip
    one = answering(
        "train-1", events=[*begun, *events_of((5.0 + n, iteration(n)) for n in range(1, 20))],
        wrapper=wrapper(1), at=25.0,
    )  # fmt: skip
    story = build_history("gpt", [zero, one], BEGAN + 25.0)
    job = story.engine.job
    assert (job.attempt.number, len(job.past), job.attempt.iteration) == (1, 0, 19)
    assert said(story).cause is Cause.HEALTHY


def test_the_number_of_the_attempt_is_the_wrappers() -> None:
    story = build_history("gpt", [answering("train-0", wrapper=wrapper(7), at=25.0)], BEGAN + 25.0)
    assert story.engine.job.attempt.number == 7
