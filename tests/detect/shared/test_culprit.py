# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The culprit of a stall: by proof first, then by the probes, and never by a guess."""

from __future__ import annotations

import pytest

from mwatch.detect.shared.stall import GIVEN_UP, STUCK_HERE
from mwatch.detect.stalled import DETECTOR
from mwatch.model.finding import Culprit, CulpritState, Finding
from mwatch.model.job import Job, Layout
from mwatch.model.observation import SignSource, SignState, Source
from mwatch.model.phase import JobPhase
from support.builders.job import START, add_sign, entries, fault, found, job, rank, steps

LAYOUT = Layout(world_size=8, tensor=2, pipeline=2, log_interval=1, total_iterations=1000)


def hung(phase: str = "collective") -> Job:
    """Eight ranks of 30 iterations each, all in the same place, and silent for 20 s."""
    built = job(steps([2.0] * 30), sights=[Source.LOG, Source.PROBE], layout=LAYOUT)
    last = built.now
    built.now += 20
    built.attempt.ranks = {
        i: rank(i, 30, at=built.now, progressed_at=last, moved_at=last, phase=phase)
        for i in range(8)
    }
    return built


def verdict(built: Job) -> Finding:
    (finding,) = found(DETECTOR, built)
    return finding


def named(built: Job) -> tuple[int | None, CulpritState | None]:
    culprit = verdict(built).culprit
    assert culprit is not None
    return culprit.rank, culprit.state


def test_nobody_stands_out() -> None:
    built = hung()
    assert named(built) == (None, CulpritState.ALL_EQUAL)
    assert "fabric or the storage" in verdict(built).summary


def test_a_rank_with_fewer_iterations_is_behind() -> None:
    built = hung()
    built.attempt.ranks[5].iteration = 29
    finding = verdict(built)
    assert finding.culprit == Culprit(
        rank=5, state=CulpritState.BEHIND, coordinates={"tp": 1, "pp": 1, "dp": 0}, pod="pod-5"
    )
    assert "rank 5 is behind" in finding.summary


def test_of_several_behind_the_one_that_does_not_wait_is_named() -> None:
    built = hung()
    for i in (2, 3, 4):
        built.attempt.ranks[i].iteration = 29
    built.attempt.ranks[4].phase = "compute"
    assert named(built) == (4, CulpritState.BEHIND)


@pytest.mark.parametrize("phase", ["data", "compute", "saving"])
def test_one_that_is_not_where_all_others_wait_is_behind(phase: str) -> None:
    built = hung()
    built.attempt.ranks[3].phase = phase
    if phase == "saving":
        built.now += 3600
        for each in built.attempt.ranks.values():
            each.at = built.now
    assert named(built) == (3, CulpritState.BEHIND)


def test_one_ahead_does_not_make_the_others_guilty() -> None:
    built = hung()
    built.attempt.ranks[7].iteration = 31
    built.attempt.ranks[2].phase = "data"
    assert named(built) == (2, CulpritState.BEHIND)


def test_most_in_the_data_loader_is_the_storage() -> None:
    built = hung("data")
    built.attempt.ranks[0].phase = "collective"
    assert named(built) == (None, CulpritState.ALL_EQUAL)


def test_while_most_compute_the_one_without_data_is_waited_for() -> None:
    built = hung("compute")
    built.attempt.ranks[0].phase = "collective"
    built.attempt.ranks[6].phase = "data"
    assert named(built) == (6, CulpritState.BEHIND)


def test_a_rank_that_stopped_writing_is_silent() -> None:
    built = hung()
    built.attempt.ranks[2].at -= 18
    assert named(built) == (2, CulpritState.SILENT)
    assert not verdict(built).cannot_heal, "a rank may hold the GIL and let it go"


def test_a_rank_that_never_wrote_never_joined() -> None:
    built = hung()
    built.attempt.phase = JobPhase.STARTING
    del built.attempt.ranks[6]
    built.now += 4000
    for each in built.attempt.ranks.values():
        each.at = built.now
    assert named(built) == (6, CulpritState.NEVER_JOINED)


def test_a_watcher_of_one_pod_does_not_say_all_are_equal() -> None:
    built = hung()
    built.attempt.ranks = {i: built.attempt.ranks[i] for i in range(4)}
    assert verdict(built).culprit is None
    built.attempt.phase = JobPhase.STARTING
    built.now += 4000
    for each in built.attempt.ranks.values():
        each.at = built.now
    assert verdict(built).culprit is None, "four of eight never wrote: they are of another pod"


def test_the_only_rank_is_stuck() -> None:
    built = hung()
    built.layout = Layout(world_size=1, log_interval=1)
    built.attempt.ranks = {0: built.attempt.ranks[0]}
    assert named(built) == (0, CulpritState.STUCK)


SIGNS = [
    (SignState.DEAD, CulpritState.SILENT, True),
    (SignState.STOPPED, CulpritState.SILENT, True),
    (SignState.NEVER_JOINED, CulpritState.NEVER_JOINED, True),
    (SignState.OUT_OF_STEP, CulpritState.OUT_OF_STEP, True),
    (SignState.BEHIND, CulpritState.BEHIND, False),
    (SignState.STUCK, CulpritState.STUCK, False),
]


@pytest.mark.parametrize(("output", "state", "is_final"), SIGNS)
def test_a_witness_names_the_rank(output: SignState, state: CulpritState, is_final: bool) -> None:
    built = hung()
    add_sign(built, SignSource.FLIGHT_RECORDER, output, rank=6)
    assert named(built) == (6, state)
    assert verdict(built).cannot_heal is is_final


def test_a_stopped_process_beats_what_the_collectives_say_of_it() -> None:
    built = hung()
    add_sign(built, SignSource.FLIGHT_RECORDER, SignState.NEVER_JOINED, rank=1)
    add_sign(built, SignSource.PROCESS, SignState.STOPPED, rank=4)
    assert named(built) == (4, CulpritState.SILENT)
    assert any("process" in each.text for each in verdict(built).evidence)


def test_a_dead_pod_stands_for_its_lowest_rank() -> None:
    built = hung()
    for i in (4, 5, 6, 7):
        built.attempt.ranks[i].stream = "pod-b"
    add_sign(built, SignSource.PROCESS, SignState.DEAD, stream="pod-b")
    culprit = verdict(built).culprit
    assert culprit is not None
    assert (culprit.rank, culprit.pod) == (4, "pod-b")


def test_a_dead_pod_without_ranks_is_still_named() -> None:
    built = hung()
    built.attempt.ranks = {}
    add_sign(built, SignSource.PROCESS, SignState.DEAD, stream="pod-b")
    culprit = verdict(built).culprit
    assert culprit is not None
    assert (culprit.rank, culprit.pod) == (None, "pod-b")
    assert "pod-b has stopped" in verdict(built).summary


def test_where_most_are_stuck_they_wait_for_another() -> None:
    built = hung()
    built.attempt.ranks[3].phase = "data"
    for i in (0, 1, 2, 4, 5, 6, 7):
        add_sign(built, SignSource.STACKS, SignState.STUCK, rank=i)
    assert named(built) == (3, CulpritState.BEHIND)


def test_equal_collectives_beat_a_difference_of_stacks() -> None:
    built = hung()
    built.attempt.ranks[3].phase = "compute"
    add_sign(built, SignSource.NCCL_RAS, SignState.ALL_EQUAL)
    assert named(built) == (None, CulpritState.ALL_EQUAL)


def test_old_words_of_a_witness_do_not_count() -> None:
    built = hung()
    add_sign(built, SignSource.PROCESS, SignState.DEAD, rank=1, at=START)
    add_sign(built, SignSource.STACKS, SignState.UNKNOWN, rank=1)
    assert not verdict(built).cannot_heal


STATUS = (
    "[rank{0}]:[E1115 00:35:56 ProcessGroupNCCL.cpp:2303] [PG ID 2 PG GUID 14(DP) Rank {0}] "
    "failure detected by watchdog at work sequence id: 1580 PG status: "
    "last enqueued work: {1}, last completed work: 1579"
)


def test_the_rank_that_enqueued_less_is_behind() -> None:
    built = hung()
    built.attempt.ranks = {}
    built.attempt.faults = [
        fault("watchdog-failure-status", at=built.now, rank=i, text=STATUS.format(i, work))
        for i, work in ((0, 1582), (1, 1582), (2, 1579))
    ]
    assert named(built) == (2, CulpritState.BEHIND)


def test_ranks_that_a_watchdog_took_down_are_victims() -> None:
    built = hung()
    built.attempt.ranks[7].phase = "data"
    built.attempt.faults = [fault("collective-timeout", at=built.now - 11, rank=2)]
    built.attempt.ranks[2].at -= 10
    add_sign(built, SignSource.PROCESS, SignState.DEAD, rank=2)
    assert named(built) == (7, CulpritState.BEHIND)


def test_equal_work_blames_nobody() -> None:
    built = hung()
    built.attempt.ranks = {}
    built.attempt.faults = [
        fault("watchdog-failure-status", at=built.now, rank=i, text=STATUS.format(i, 1582))
        for i in range(3)
    ]
    assert verdict(built).culprit is None


def test_ranks_all_over_the_place_blame_nobody() -> None:
    built = hung()
    for i, phase in enumerate(("data", "compute") * 4):
        built.attempt.ranks[i].phase = phase
    assert named(built) == (None, CulpritState.ALL_EQUAL)


def test_a_watchdog_that_is_stuck_itself_names_its_own_rank() -> None:
    built = hung()
    built.attempt.ranks = {}
    built.attempt.faults = [fault("watchdog-stuck", at=built.now, rank=6)]
    assert verdict(built).culprit is None, "an excerpt with one rank does not show the others"
    built.attempt.faults.append(fault("collective-timeout", at=built.now, rank=1))
    assert named(built) == (6, CulpritState.STUCK)
    assert verdict(built).cannot_heal


def test_the_catalogue_knows_the_watchdogs() -> None:
    assert entries().keys() >= (GIVEN_UP | STUCK_HERE)
