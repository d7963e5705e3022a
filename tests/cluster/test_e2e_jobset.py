# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A JobSet that really trains: a rank is stopped, and JobSet's own failure policy brings the gang
back, because mwatch lets one pod fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.test_diagnose_live import follow, reported, shown
from cluster.training_job import Wanted, jobset
from cluster.yard import Yard

pytestmark = pytest.mark.timeout(1800)


def test_a_stopped_rank_of_a_jobset_is_restarted_by_its_own_policy(
    jobsets: None, yard: Yard, tmp_path: Path
) -> None:
    yard.restart_by_pods()
    job = yard.start(jobset(yard.trainer, Wanted("set")))
    try:
        pods, attempt = job.trains_well()
        job.wait_for_token()
        kept = yard.evidence()
        last = job.stop("node-0-1")
        job.wait_for_attempt(attempt + 1)
        assert job.resumed() == last.checkpoint
        job.resumes(last.checkpoint, past=last.iteration)
        assert not set(job.pods().values()) & set(pods.values())
        assert job.object()["status"]["restarts"] == 1
        assert yard.evidence() > kept
        # The controller's, which knows both attempts; a sidecar's where that is too busy to answer.
        page = reported(
            yard.cluster, "set", tmp_path, yard.namespace, lambda text: "history:" not in text
        )
        words, path = ("jobset/set", "-n", yard.namespace), f"/jobs/{yard.namespace}/set"
        with shown(yard.cluster, *words, path=path) as address:
            assert path in address
            follow(address, seconds=2.0)
    finally:
        yard.end(job)
    assert "history:" not in page, "the controller's, which knows both attempts"
    assert "Incident 1: Hang" in page
