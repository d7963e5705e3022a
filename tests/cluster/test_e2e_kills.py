# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""SIGKILL to a part of mwatch or of the training, at random moments, in the pods of a real node.

A few rounds; `MWATCH_KILL_ROUNDS=50 MWATCH_KILL_SEED=1` in the environment makes more. Whatever is
killed, the job goes on or resumes, no attempt is left out or comes twice, one fault is acted on
once, and the parts of mwatch come back by themselves.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from cluster.controller_deployment import FLEET, POLICY
from cluster.pod_processes import processes_of, read
from cluster.training import SECONDS, Training
from cluster.training_job import Wanted, pytorchjob
from cluster.yard import Yard

ROUNDS = int(os.environ.get("MWATCH_KILL_ROUNDS", "3"))
SEED = int(os.environ.get("MWATCH_KILL_SEED", "1"))
pytestmark = pytest.mark.timeout(2400)
INTERVAL = 20
PARTS = {
    "pump": rb"output\.pump",
    "node facts": rb"gpu\.sampler",
    "sidecar": rb"sidecar_process|mwatch\0sidecar\0",
    "controller": rb"mwatch\0controller\0",
    "wrapper": rb"\.pyz\0",
    "launcher": rb"\0torch\.distributed\.run\0",
    "rank": rb"\0-m\0mwatch_gpt\0",
}
"""By the command line, in this order: that of a wrapper or a launcher holds what it starts."""
ENDING = {"rank", "launcher", "wrapper"}
"""The attempt ends with it."""
BACK_OFF_SECONDS = 300.0
"""So long the kubelet waits at most before it starts a container once more."""


@pytest.fixture(scope="module")
def job(yard: Yard) -> Iterator[Training]:
    unlimited = POLICY.replace("restarts_per_window = 50", "restarts_per_window = 1000")
    unlimited = unlimited.replace("max_same_fingerprint = 5", "max_same_fingerprint = 1000")
    yard.controller.use(FLEET, unlimited)
    started = yard.start(pytorchjob(yard.trainer, Wanted("kills", save_interval=INTERVAL)))
    yield started
    yard.end(started)
    yard.controller.use(FLEET)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_killed_part_costs_at_most_the_attempt(job: Training, yard: Yard, number: int) -> None:
    chosen = random.Random(1000 * SEED + number)
    # Both kinds in turn: what ends the attempt, and what must not.
    part = chosen.choice(sorted(ENDING if number % 2 else PARTS.keys() - ENDING))
    _, attempt = job.trains_well()
    acts = len(job.acts())
    time.sleep(chosen.uniform(0.0, 5.0))  # the moment is the point of it
    iteration, checkpoint = job.iteration(), job.checkpoints()[-1]
    killed = _kill(part, job, yard, chosen)
    if part in ENDING:
        job.wait_for_attempt(attempt + 1)
        assert job.resumed() >= checkpoint - INTERVAL, "the newest may have been half written"
        job.resumes(job.resumed(), past=iteration)
        done = job.acts()[acts:]
        assert len(done) <= 1, done
        assert job.timeline()["attempt"] == attempt + 1
    else:
        job.wait_past(iteration + INTERVAL)
        again = SECONDS + BACK_OFF_SECONDS
        job.wait(lambda: bool(_pids(part, job, yard) - killed), f"another {part}", again)
        assert job.timeline()["attempt"] == attempt
        assert len(job.acts()) == acts
    job.wait(lambda: _answering(yard) == 2, "both sidecars and the controller", SECONDS)


def _kill(part: str, job: Training, yard: Yard, chosen: random.Random) -> set[int]:
    """All that were of its kind. Some are started again by themselves, a moment later."""
    found: set[int] = set()

    def is_killed() -> bool:
        found.clear()
        found.update(_pids(part, job, yard))
        if found:
            with suppress(ProcessLookupError):  # it has just ended: another comes
                os.kill(chosen.choice(sorted(found)), signal.SIGKILL)
                return True
        return False

    job.wait(is_killed, f"a process that is a {part}", SECONDS)
    return found


def _pids(part: str, job: Training, yard: Yard) -> set[int]:
    pods = [yard.controller.pod()] if part == "controller" else sorted(job.pods())
    every = (pid for pod in pods for pid in processes_of(job.containers(pod)))
    return {pid for pid in every if _is(part, pid)}


def _is(part: str, pid: int) -> bool:
    words = read(pid, "cmdline")
    return next((name for name, mark in PARTS.items() if re.search(mark, words)), "") == part


def _answering(yard: Yard) -> int:
    jobs = yard.controller.jobs().get("jobs", [])
    mine = [each["pods"]["answering"] for each in jobs if each["name"] == "kills"]
    return int(mine[0]) if mine else 0
