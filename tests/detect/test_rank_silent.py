# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A rank whose probe stops writing while others go on."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.detect.rank_silent import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.finding import CulpritState, Severity
from mwatch.model.job import Job, ProcessGone, SignSeen, Stream
from mwatch.model.observation import ProcessExit, Sign, SignSource, SignState, Source
from mwatch.model.phase import JobPhase
from support.builders.job import add_sign, fault, found, job, rank, steps


def beating(**attempt: Any) -> Job:
    """Eight ranks in two pods, all of which have just written."""
    built = job(steps([2.0] * 30), sights=[Source.LOG, Source.PROBE], **attempt)
    built.attempt.ranks = {
        i: rank(i, 30, at=built.now, phase="collective", stream=f"pod-{i // 4}") for i in range(8)
    }
    built.streams = {name: Stream(name, last_at=built.now) for name in ("pod-0", "pod-1")}
    return built


def silence(built: Job, seconds: float, *silent: int) -> Job:
    """Time passes; the named ranks write no more."""
    built.now += seconds
    for each in built.attempt.ranks.values():
        if each.rank not in silent:
            each.at = built.now
            built.streams[each.stream].last_at = built.now
    return built


def test_a_rank_that_stopped_writing_is_named() -> None:
    built = beating()
    last = built.now
    (finding,) = found(DETECTOR, silence(built, 10.0, 5))
    assert finding.cause is Cause.HANG
    assert finding.severity is Severity.CRITICAL
    assert finding.since_time == last
    assert finding.since_iteration == 31
    assert finding.culprit is not None
    assert finding.culprit.rank == 5
    assert finding.culprit.state is CulpritState.SILENT
    assert finding.culprit.pod == "pod-1"
    assert not finding.cannot_heal


def test_a_late_beat_is_no_silence() -> None:
    assert found(DETECTOR, silence(beating(), 4.0, 5)) == []


def test_all_probes_silent_at_once_is_another_matter() -> None:
    assert found(DETECTOR, silence(beating(), 60.0, *range(8))) == []


def test_without_the_probe_there_is_no_verdict() -> None:
    built = silence(beating(), 60.0, 5)
    built.sources.pop(Source.PROBE)
    assert found(DETECTOR, built) == []


@pytest.mark.parametrize("phase", [JobPhase.STOPPING, JobPhase.ENDED])
def test_ranks_that_leave_are_not_silent(phase: JobPhase) -> None:
    assert found(DETECTOR, silence(beating(phase=phase), 60.0, 5)) == []


def test_after_the_last_iteration_ranks_may_leave() -> None:
    assert found(DETECTOR, silence(beating(is_done=True), 60.0, 5)) == []


def test_a_process_that_is_known_to_be_stopped_cannot_heal() -> None:
    built = silence(beating(), 10.0, 5)
    add_sign(built, SignSource.PROCESS, SignState.STOPPED, rank=5)
    (finding,) = found(DETECTOR, built)
    assert finding.cannot_heal
    assert "process" in finding.evidence[0].text


def test_a_rank_that_a_watchdog_took_down_is_a_victim() -> None:
    built = silence(beating(), 600.0)
    built.attempt.faults = [fault("collective-timeout", at=built.now - 1, rank=5)]
    assert found(DETECTOR, silence(built, 10.0, 5)) == []


def test_a_sign_of_another_rank_proves_nothing() -> None:
    built = silence(beating(), 10.0, 5)
    add_sign(built, SignSource.PROCESS, SignState.STOPPED, rank=1)
    (finding,) = found(DETECTOR, built)
    assert not finding.cannot_heal


@pytest.mark.parametrize("phase", [JobPhase.STARTING, JobPhase.LOADING, JobPhase.SAVING])
def test_a_rank_that_builds_an_index_or_writes_may_hold_the_gil(phase: JobPhase) -> None:
    built = silence(beating(phase=phase), 50.0, 0)
    assert found(DETECTOR, built) == []
    (finding,) = found(DETECTOR, silence(built, 11.0, 0))
    assert finding.severity is Severity.WARNING


def test_a_job_that_goes_on_without_it_has_only_a_broken_probe() -> None:
    built = silence(beating(), 60.0, 5)
    for i in (0, 1, 2, 3, 4, 6, 7):
        built.attempt.ranks[i].iteration = 80
        built.attempt.ranks[i].progressed_at = built.now
    (finding,) = found(DETECTOR, built)
    assert finding.cause is Cause.BLIND
    assert finding.severity is Severity.WARNING


def test_a_whole_pod_that_falls_silent_is_lost() -> None:
    (finding,) = found(DETECTOR, silence(beating(), 10.0, 4, 5, 6, 7))
    assert finding.cause is Cause.LOST_POD
    assert finding.culprit is not None
    assert (finding.culprit.rank, finding.culprit.pod) == (4, "pod-1")
    assert "and 3 more" in finding.summary


def test_a_pod_that_still_says_something_is_not_lost() -> None:
    built = silence(beating(), 10.0, 4, 5, 6, 7)
    built.streams["pod-1"].last_at = built.now
    (finding,) = found(DETECTOR, built)
    assert finding.cause is Cause.HANG


def test_the_only_rank_of_a_pod_may_just_be_stopped() -> None:
    built = beating()
    built.attempt.ranks[7].stream = "pod-7"
    built.streams["pod-7"] = Stream("pod-7", last_at=built.now)
    (finding,) = found(DETECTOR, silence(built, 67.0, 7))
    assert finding.cause is Cause.HANG


def test_a_pod_that_was_never_seen_is_not_lost() -> None:
    built = silence(beating(), 10.0, 4, 5, 6, 7)
    built.streams.clear()
    (finding,) = found(DETECTOR, built)
    assert finding.cause is Cause.HANG


@pytest.mark.parametrize("skew", [-4.0, 4.0])
def test_a_pod_whose_clock_differs_is_not_silent(skew: float) -> None:
    built = beating()
    for each in built.attempt.ranks.values():
        if each.stream == "pod-1":
            each.at += skew
            each.progressed_at += skew
    built.now += 4.0
    for i in range(4):
        built.attempt.ranks[i].at = built.now
        built.attempt.ranks[i + 4].at = built.now + skew
    assert found(DETECTOR, built) == []


def test_by_its_own_clock_a_rank_is_silent_however_wrong_that_is() -> None:
    built = beating()
    for each in built.attempt.ranks.values():
        each.stream = f"pod-{each.rank}"
    alone = built.attempt.ranks[5]
    alone.at += 6
    alone.progressed_at += 6
    built.streams = {f"pod-{i}": Stream(f"pod-{i}", last_at=built.now) for i in range(8)}
    (finding,) = found(DETECTOR, silence(built, 12.0, 5))
    assert finding.culprit is not None
    assert finding.culprit.rank == 5


def test_ranks_that_came_up_one_after_the_other_are_not_silent() -> None:
    """Before the first iteration the probe's times tell of when a rank came."""
    built = beating(phase=JobPhase.LOADING, first_iteration=None)
    for each in built.attempt.ranks.values():
        each.stream = f"pod-{each.rank}"
        each.iteration = 0
        each.progressed_at = built.now - 60 + 5 * each.rank
        each.at = built.now - each.rank / 4
    assert found(DETECTOR, built) == []


def test_a_pod_whose_command_has_ended_is_not_silent() -> None:
    built = silence(beating(), 10.0, 4, 5, 6, 7)
    gone = ProcessGone(built.now, "pod-1", ProcessExit(1, None, None))
    built.attempt.gone["pod-1"] = gone
    assert found(DETECTOR, built) == []


def stopped(built: Job, *ranks: int, since: float, looks: int = 2) -> Job:
    """The kernel has shown these ranks to be stopped, once a second."""
    for number in ranks:
        pod = f"pod-{number // 4}"
        sign = Sign(SignSource.PROCESS, SignState.STOPPED, number, "state T")
        seen = SignSeen(since + looks - 1, pod, sign, since)
        built.attempt.signs[SignSource.PROCESS, number, pod] = seen
    return built


def test_a_process_stopped_at_two_looks_is_named_without_waiting_for_its_probe() -> None:
    built = beating()
    last = built.now
    (finding,) = found(DETECTOR, stopped(silence(built, 2.0, 5), 5, since=last + 0.8))
    assert finding.cause is Cause.HANG
    assert finding.severity is Severity.CRITICAL
    assert finding.since_time == last
    assert finding.culprit is not None
    assert finding.culprit.rank == 5
    assert "rank 5 silent for 2 s" in finding.summary
    assert "state T" in finding.evidence[0].text


def test_one_look_at_a_stopped_process_is_not_enough() -> None:
    built = beating()
    stop = built.now + 0.8
    assert found(DETECTOR, stopped(silence(built, 1.5, 5), 5, since=stop, looks=1)) == []


def test_a_rank_that_has_written_since_it_was_stopped_goes_on() -> None:
    built = beating()
    assert found(DETECTOR, stopped(silence(built, 3.0), 5, since=built.now - 2.0)) == []


def test_a_job_that_is_stopped_as_a_whole_is_suspended_not_hung() -> None:
    built = beating()
    stop = built.now + 0.8
    assert found(DETECTOR, stopped(silence(built, 3.0, *range(8)), *range(8), since=stop)) == []
