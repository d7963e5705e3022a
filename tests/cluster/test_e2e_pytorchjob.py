# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A PyTorchJob that really trains, hurt in one way after the other, and brought back by mwatch.

One job for all tests, in the order of this file, so that it is started once. What mwatch does is
shown by the iterations that the trainer itself printed before and after, and by what lies in the
folder of checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.node import Node
from cluster.pod_processes import Lost, cut_off, join_again
from cluster.training import SECONDS, File, Training, at_rest
from cluster.training_job import Wanted, pytorchjob
from cluster.yard import Yard

pytestmark = pytest.mark.timeout(1800)
INTERVAL = 20
BAD = 79
"""The step at which a weight becomes NaN: just before one that saves."""
GOOD = BAD // INTERVAL * INTERVAL


@pytest.fixture(scope="module")
def job(yard: Yard) -> Iterator[Training]:
    wanted = Wanted("gpt", save_interval=INTERVAL, faults=(f"nan@{BAD}",))
    started = yard.start(pytorchjob(yard.trainer, wanted))
    yield started
    yard.end(started)


def test_nan_goes_back_to_the_last_good_checkpoint_and_not_to_the_latest(
    job: Training, yard: Yard
) -> None:
    yard.restart_in_place()
    job.wait_for_attempt(2, first=True)
    job.resumes(GOOD, past=BAD + INTERVAL)
    attempt, rollback = job.timeline()["attempts"][-1], job.timeline()["rollbacks"][-1]
    assert attempt["resumed_from"] == rollback["to_iteration"] == GOOD
    assert max(rollback["marked"])[0] > GOOD, "there was a newer checkpoint, and it is not used"


def test_a_stopped_rank_is_restarted_in_place(job: Training, yard: Yard) -> None:
    yard.restart_in_place()
    pods, attempt = job.trains_well()
    job.wait_for_token()
    kept = yard.evidence()
    last = job.stop("worker")
    job.wait_for_attempt(attempt + 1)
    assert job.resumed() == last.checkpoint
    job.resumes(last.checkpoint, past=last.iteration)
    assert job.pods() == pods and set(job.restarts().values()) == {0}
    assert job.timeline()["attempt"] == attempt + 1
    assert yard.evidence() > kept, "what the ranks did was kept before they were ended"


def test_a_deleted_pod_brings_the_gang_back_from_the_newest_checkpoint(job: Training) -> None:
    pods, attempt = job.trains_well()
    name = job.pod("worker")
    iteration = job.iteration()
    job.kubectl("delete", "pod", name, "--wait=false")
    job.wait(lambda: job.pods().get(name, pods[name]) != pods[name], "another pod", SECONDS)
    new = job.pods()[name]
    job.wait_for_attempt(attempt + 1)
    resumed = job.resumed()
    assert resumed > iteration - 2 * INTERVAL
    job.resumes(resumed, past=iteration)
    assert job.pods()[name] == new, "a pod that never trained need not go"
    (act,) = (each for each in job.acts() if each["attempt"] == attempt)
    assert (act["cause"], act["spends_budget"]) == ("deleted_by_user", False)


def test_a_stopped_rank_is_restarted_by_new_pods_though_the_controller_is_killed_meanwhile(
    job: Training, yard: Yard
) -> None:
    yard.restart_by_pods()
    pods, attempt = job.trains_well()
    job.wait_for_token()
    kept = yard.evidence()
    last = job.stop("master")
    job.wait(lambda: job.pods() != pods, "the first pod on its way out", SECONDS)
    yard.controller.kill()
    job.wait_for_attempt(attempt + 1)
    assert job.resumed() == last.checkpoint
    job.resumes(last.checkpoint, past=last.iteration)
    yard.controller.wait()
    new, _ = job.trains_well()
    assert not set(new.values()) & set(pods.values()), "all pods are new"
    assert job.timeline()["attempt"] == attempt + 1, "one restart, by two controllers"
    assert len(job.timeline()["rollbacks"]) == 1, "a restart is no rollback"
    assert yard.evidence() > kept


def test_a_pod_that_comes_back_late_writes_nothing(job: Training, yard: Yard, node: Node) -> None:
    """Cut off with its node's agent: nothing there ends it when the API server forgets it."""
    yard.restart_by_pods()
    _, attempt = job.trains_well()
    name = job.pod("worker")
    lost = cut_off_between_saves(job, name)
    job.kubectl("delete", "pod", name, "--grace-period=0", "--force")
    job.wait_for_attempt(attempt + 1)
    job.wait_past(job.resumed() + INTERVAL)
    assert lost.ranks(), "it is still there, and knows nothing"
    yard.controller.scale(0)
    both = [job.pod(each) for each in ("master", "worker")]
    own = f"-a{attempt + 1}-"  # the pods of the new attempt keep evidence of the stop made here

    def files() -> set[File]:
        return {each for each in job.settled_files() if own not in each.path}

    try:
        for pod in both:
            job.signal(pod, "STOP")
        before = files()
        with join_again(lost):
            job.wait(lambda: not lost.ranks(), "the end of the late rank", SECONDS)
            assert files() == before
    finally:
        for pod in both:
            job.signal(pod, "CONT")
        yard.controller.scale(1)
    job.wait_past(job.iteration())


def cut_off_between_saves(job: Training, name: str) -> Lost:
    """A write that was under way goes on where it stood: nobody can take it back."""
    while True:
        lost = cut_off(job.containers(name))
        text = at_rest(lambda: job.log(job.pod("master")))  # it goes on to the next collective
        if text.rfind("saving checkpoint at") < text.rfind("successfully saved checkpoint"):
            return lost
        with join_again(lost):
            pass
