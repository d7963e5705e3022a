# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A job that mwatch only observes: a rank stands still, nothing is done about it, and the record
says what would have been. A person checks it before, and stops it afterwards."""

from __future__ import annotations

import json

import pytest

from cluster.training import SECONDS, Training
from cluster.training_job import Wanted, pytorchjob
from cluster.yard import Yard

pytestmark = pytest.mark.timeout(2400)
WOULD = "MwatchWould"
WELL = {
    "cluster", "kinds", "clock", "rights to read", "rights to act", "controller", "lease",
    "controller's rights", "network", "sidecars", "clocks of pods", "probe", "flight recorder",
    "checkpoint volume", "mwatch volume",
}  # fmt: skip


def test_nothing_happens_to_a_job_that_is_only_observed(yard: Yard) -> None:
    wanted = Wanted("looked-at", launcher="python", saves_at_end=True)
    job = yard.start(pytorchjob(yard.trainer, wanted), mode="observe")
    try:
        job.wait_past(60)
        job.wait(lambda: is_well(yard), "the doctor finds nothing wrong", SECONDS)
        pods, before = job.pods(), job.object()
        last = job.stop("worker")
        # Event and ledger are written by two threads.
        job.wait(
            lambda: WOULD in job.events() and "would restart" in job.ledger(),
            "word of what would have been done",
            SECONDS,
        )
        said = next(text for reason, text in job.event_texts() if reason == WOULD)
        assert f"restart the gang from checkpoint {last.checkpoint}" in said
        assert "would restart" in job.ledger()

        assert job.pods() == pods and set(job.restarts().values()) == {0}
        after = job.object()
        assert after["spec"] == before["spec"]
        assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
        assert not job.look("ls -A /checkpoints/looked-at/.mwatch")
        job.signal(job.pod("worker"), "CONT")
        reached = job.wait_past(last.iteration)
        assert reached and job.runs()[-1][0] == 1, "the same process goes on"
        is_stopped_with_a_save(yard, job, reached)
    finally:
        yard.end(job)


def is_well(yard: Yard) -> bool:
    """What has not been asked yet, such as a sidecar by the controller, is a problem until then."""
    done = yard.mwatch("doctor", "looked-at", "--json")
    states = {each["name"]: each["state"] for each in json.loads(done.stdout)["checks"]}
    return states["token"] in ("ok", "skipped") and all(states[name] == "ok" for name in WELL)


def is_stopped_with_a_save(yard: Yard, job: Training, reached: int) -> None:
    done = yard.mwatch("stop", "looked-at", "--yes", "--json", seconds=400)
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert body["pods_left"] == 0 and not job.pods()
    assert max(job.checkpoints()) >= reached, "it saved on the way out"
    assert job.object()["spec"]["runPolicy"]["suspend"] is True
    assert yard.mwatch("resume", "looked-at").returncode == 0
    assert job.object()["spec"]["runPolicy"]["suspend"] is False
