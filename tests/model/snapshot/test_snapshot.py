# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A snapshot holds what is known at one moment, and keeps it."""

from __future__ import annotations

from mwatch.model.job import MAX_RANKS, Job
from mwatch.model.snapshot.snapshot import MAX_RANKS as SHOWN
from mwatch.model.snapshot.snapshot import Inputs, Snapshot, take
from mwatch.model.timeline import Quarantine
from support.builders.job import START, add_checkpoints, rank, step
from support.builders.job import job as build
from support.builders.snapshot import busy_job, empty_snapshot


def shot(job: Job) -> Snapshot:
    return take(job, Inputs(), at=START)


def test_it_does_not_change_with_the_job() -> None:
    job = busy_job()
    before = shot(job)
    job.attempt.iteration = 99
    job.attempt.ranks.clear()
    job.checkpoints.clear()
    after = before
    assert after.iteration == 10
    assert len(after.ranks) == 2
    assert after.good_checkpoint is not None


def test_of_a_job_that_was_never_seen_nothing_is_known() -> None:
    found = empty_snapshot()
    assert (found.phase, found.progress_at, found.attempt_started_at) == (None, None, None)
    assert (found.iteration, found.latest_checkpoint, found.goodput) == (None, None, None)


def test_a_loss_that_is_no_longer_printed_is_gone() -> None:
    assert shot(build([step(1), step(2, loss=None)])).numbers.losses == {}


def test_tokens_need_a_length_a_batch_and_a_time() -> None:
    job = busy_job()
    assert shot(job).numbers.tokens_per_second == 32 * 4096
    assert shot(build([step(1)])).numbers.tokens_per_second is None
    job.attempt.steps.append(step(11, seconds=None))
    assert shot(job).numbers.tokens_per_second is None


def test_a_good_checkpoint_is_whole_trusted_and_of_this_line() -> None:
    job = build([step(50)])
    add_checkpoints(job, 10, 20, 30, 40, 50)
    job.checkpoints[50].stored = "missing"
    job.checkpoints[40].load_failed = True
    job.checkpoints[30].is_abandoned = True
    job.timeline.quarantine = Quarantine(START, 20, "nan")
    found = shot(job)
    assert found.latest_checkpoint is not None
    assert found.good_checkpoint is not None
    assert (found.latest_checkpoint.iteration, found.good_checkpoint.iteration) == (40, 10)


def test_what_the_folder_says_beats_the_log() -> None:
    job = build([step(50)])
    add_checkpoints(job, 10, stored="complete", written_at=5.0)
    add_checkpoints(job, 20, stored="unverified")
    found = shot(job)
    assert found.good_checkpoint is not None
    assert (found.good_checkpoint.iteration, found.good_checkpoint.written_at) == (10, 5.0)


def test_ranks_are_bounded() -> None:
    job = build([step(1)])
    job.attempt.ranks = {number: rank(number, 1, at=START) for number in range(SHOWN + 10)}
    assert SHOWN < MAX_RANKS
    assert [each.rank for each in shot(job).ranks] == list(range(SHOWN))
