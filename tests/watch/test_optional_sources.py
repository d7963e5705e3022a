# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What is seen besides the volume: wired to the job, under the names that metrics show."""

from __future__ import annotations

import time
from pathlib import Path

from mwatch.model.cause import Cause
from mwatch.model.observation import Source, SourceStatusChange
from mwatch.model.phase import JobPhase
from mwatch.model.reading import Ok
from mwatch.watch.collector import PodSources, VolumeCollector
from support.builders.events import grammar
from support.builders.job import START, entries, rank
from support.builders.run import Told, good
from support.fakes.tensorboard_files import scalar, write

NO_PROBES = ("127.0.0.1", 9)


def eyes(told: Told, root: Path, tensorboard: Path | None = None) -> PodSources:
    return PodSources(
        "p", told.engine, sys_root=str(root), ras_address=NO_PROBES, tensorboard=tensorboard
    )


def test_every_source_has_its_name_and_none_is_up_where_there_is_nothing(tmp_path: Path) -> None:
    told = Told()
    more = eyes(told, tmp_path, tmp_path / "tensorboard")
    live = VolumeCollector(
        tmp_path, "p", grammar(), entries(), told.clock, tmp_path / "ckpt", more=more
    )
    assert live.read() == []
    assert set(live.sources) == {
        "log", "wrapper", "probe", "processes", "gpus", "nvml", "checkpoints", "nccl", "fabric",
        "tensorboard",
    }  # fmt: skip
    assert not any(each.is_up for each in live.sources.values())
    assert (more.nccl, more.ports, more.tensorboard_iteration) == (None, (), None)
    live.close()


def test_nccl_is_asked_only_once_the_job_has_made_its_first_steps(tmp_path: Path) -> None:
    told = Told()
    more = eyes(told, tmp_path)
    assert not more._is_settled()
    told.says(*good(1, 2, 3))
    assert told.engine.job.attempt.phase is JobPhase.TRAINING
    assert more._is_settled()


def test_a_stall_that_is_open_is_a_silent_job(tmp_path: Path) -> None:
    told = Told()
    more = eyes(told, tmp_path)
    told.says(*good(*range(1, 9)))
    assert not more._is_silent()
    told.waits(3600)
    assert more._is_silent()
    told.says(*good(9, 10))
    assert not more._is_silent()


def test_only_the_pod_of_rank_0_asks_for_the_whole_job(tmp_path: Path) -> None:
    told = Told()
    more = eyes(told, tmp_path)
    assert not more._is_asker()
    told.engine.job.attempt.ranks[8] = rank(8, 10, at=START)
    assert not more._is_asker()
    told.engine.job.attempt.ranks[0] = rank(0, 10, at=START)
    assert more._is_asker()


def test_without_a_log_iteration_and_loss_come_from_tensorboard_and_no_hang_is_claimed(
    tmp_path: Path,
) -> None:
    told = Told()
    told.sees(SourceStatusChange(Source.LOG, False, "permission denied"))
    source = eyes(told, tmp_path, tmp_path)._events
    assert source is not None
    source.read_now(15.0)
    for step in range(1, 31):
        write(tmp_path / "events.out.tfevents.1.host", scalar(step, time.time()))
    reading = source.read_now(15.0)
    assert isinstance(reading, Ok)
    for observed in reading.value:
        told.engine.observe(observed)
    job = told.engine.job
    assert (job.attempt.iteration, job.attempt.phase) == (29, JobPhase.TRAINING)
    assert job.attempt.steps[-1].losses == {"lm loss": 2.5}
    assert not job.sees(Source.LOG)
    found = told.engine.evaluate(time.time() + 86400.0).findings
    assert {each.cause for each in found} == {Cause.BLIND}
