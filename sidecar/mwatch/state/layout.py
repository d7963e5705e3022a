# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The argument block: shape and schedule of the job."""

from __future__ import annotations

from mwatch.model.event import Arguments
from mwatch.model.job import Job, Stream
from mwatch.model.layout import Layout
from mwatch.state import attempts, markers


def fold(job: Job, stream: Stream, at: float, said: Arguments) -> None:
    if markers.is_new_process(job, stream, at):
        attempts.start(job, stream, at)
    if not attempts.is_current(job, stream, at):
        return
    before = job.layout
    length = said.extra.get("seq_length")
    job.layout = Layout(
        world_size=said.world_size or before.world_size,
        tensor=said.tensor_parallel,
        pipeline=said.pipeline_parallel,
        context=said.context_parallel,
        expert=said.expert_parallel,
        log_interval=said.log_interval,
        save_interval=said.save_interval,
        eval_interval=said.eval_interval,
        exit_interval=said.exit_interval,
        total_iterations=said.train_iters or before.total_iterations,
        precision=said.precision,
        is_dynamic_scale=_is_dynamic(said),
        async_save=said.async_save,
        save_folder=said.save,
        load_folder=said.load,
        sequence_length=length if isinstance(length, int) else before.sequence_length,
    )
    job.calibration = job.calibration.in_layout(job.layout.key)


def _is_dynamic(said: Arguments) -> bool | None:
    if said.precision is None:
        return None
    return said.precision == "fp16" and said.extra.get("loss_scale") in (None, "None")
