# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A job that mwatch only observes: a rank stands still, nothing is done about it, and the record
says what would have been."""

from __future__ import annotations

import pytest

from cluster.training_job import Wanted, pytorchjob
from cluster.yard import Yard

pytestmark = pytest.mark.timeout(600)
WOULD = "MwatchWould"
OURS = "mwatch.dev/"


def test_nothing_happens_to_a_job_that_is_only_observed(yard: Yard) -> None:
    wanted = Wanted("looked-at", launcher="python")
    job = yard.start(pytorchjob(yard.trainer, wanted), mode="observe")
    try:
        job.wait_past(60)
        pods, before = job.pods(), job.object()
        last = job.stop("worker")
        job.wait(lambda: WOULD in job.events(), "word of what would have been done", 180)
        said = next(text for reason, text in job.event_texts() if reason == WOULD)
        assert f"restart the gang from checkpoint {last.checkpoint}" in said
        assert "would restart" in job.ledger()

        assert job.pods() == pods and set(job.restarts().values()) == {0}
        after = job.object()
        assert after["spec"] == before["spec"]
        assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
        assert not job.look("ls -A /checkpoints/looked-at/.mwatch")
        job.signal(job.pod("worker"), "CONT")
        assert job.wait_past(last.iteration) and job.runs()[-1][0] == 1, "the same process goes on"
    finally:
        yard.end(job)
