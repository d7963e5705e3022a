# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What wrappers are told: who may start, who waits, and who is left to its own rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from mwatch.model.kube.gang import GangStep, Method
from mwatch.model.kube.job import JobKind
from mwatch.model.kube.ledger import JobEntry
from mwatch.model.kube.next_start import NextStart, RestartRequest
from mwatch.model.kube.restart_state import RULES, RestartState, WrapperAnswer
from mwatch.model.timeline import Rollback
from mwatch.remediate.attempt_server import (
    PATIENCE_SECONDS,
    PENDING_SECONDS,
    WAITING_SECONDS,
    AttemptServer,
    Highest,
    JobStanding,
)
from mwatch.remediate.case import next_start, requested_decision
from mwatch.remediate.status import number_is_taken, reissue
from support.runs.job_monitor_runs import Fleet

START = NextStart(4, 450, False, "the newest complete one", not_before=110.0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock) -> AttemptServer:
    return AttemptServer(clock, lambda: True)


def standing(token: str | None = "secret", **more: object) -> JobStanding:
    return JobStanding("ns", "gpt", token, **more)  # type: ignore[arg-type]


def written(start: NextStart, state: RestartState = RestartState.RELEASED) -> JobEntry:
    """The ledger's entry of a restart in that state."""
    uids = ("uid-0", "uid-1")
    step = GangStep(
        "i1", Method.DELETE_PODS, JobKind.JOB, "ns", "gpt", "u", uids, 1.0, 2, state=state
    )
    return JobEntry(step=step, start=start, attempt=start.attempt)


def test_an_order_is_asked_to_each_pod_that_knows_of_none_as_high(
    server: AttemptServer, clock: Clock
) -> None:
    server.post({"Job.gpt": standing(start=START, begun=3)})
    told = server.answer("ns", "gpt", "secret", after=3)
    assert told is not None
    assert (told["attempt"], told["resume_from"], told["in_seconds"]) == (4, 450, 10.0)
    clock.now = 130.0
    late = server.answer("ns", "gpt", "secret", after=0)
    assert late is not None and (late["attempt"], late["in_seconds"]) == (4, 0.0)


@pytest.mark.parametrize("state", [each for each in RestartState if RULES[each].must_finish])
def test_nobody_starts_before_the_old_gang_is_gone(
    server: AttemptServer, state: RestartState
) -> None:
    server.post({"Job.gpt": standing(begun=3, pods=600, answer=RULES[state].wrappers)})
    told = server.answer("ns", "gpt", "secret", after=0)
    assert told is not None and told["wait"] is True and "resume_from" not in told
    assert told["again_seconds"] == 3.0  # 600 wrappers ask 200 times a second


def test_a_first_start_is_left_to_the_rule(server: AttemptServer) -> None:
    server.post({"Job.gpt": standing()})
    told = server.answer("ns", "gpt", "", after=0)
    assert told is not None and told["by_rule"] is True and told["attempt"] == 1


def test_a_second_start_waits_until_its_job_is_judged_and_not_for_ever(
    server: AttemptServer, clock: Clock
) -> None:
    server.post({"Job.gpt": standing(begun=2)})
    told = server.answer("ns", "gpt", "", after=2)
    assert told is not None and told["wait"] is True
    server.post({"Job.gpt": standing(begun=2, answer=WrapperAnswer.WAIT_PENDING)})
    clock.now += 3 * PATIENCE_SECONDS
    told = server.answer("ns", "gpt", "", after=2)
    assert told is not None and told["wait"] is True
    server.post({"Job.gpt": standing(begun=2)})
    told = server.answer("ns", "gpt", "", after=2)
    assert told is not None and told["by_rule"] is True


def test_where_nobody_will_act_nobody_waits(server: AttemptServer) -> None:
    server.post({"Job.gpt": standing(begun=2, answer=WrapperAnswer.OWN_RULE)})
    told = server.answer("ns", "gpt", "", after=2)
    assert told is not None and told["by_rule"] is True


def test_a_pod_of_the_old_attempt_cannot_start_with_the_old_order(server: AttemptServer) -> None:
    server.post({"Job.gpt": standing(start=START, begun=4)})
    told = server.answer("ns", "gpt", "", after=4)
    assert told is not None and told.get("wait") is True


def test_only_the_leader_answers_and_only_about_jobs_it_watches(clock: Clock) -> None:
    leads = [False]
    server = AttemptServer(clock, lambda: leads[0])
    server.post({"Job.gpt": standing()})
    assert server.answer("ns", "gpt", "secret") is None
    leads[0] = True
    assert server.answer("ns", "gpt", "secret") is not None
    assert server.answer("ns", "other", "secret") is None
    assert server.answer("elsewhere", "gpt", "secret") is None


def test_a_wrong_token_learns_nothing_and_the_right_one_distinguishes_jobs_of_one_name(
    server: AttemptServer,
) -> None:
    server.post(
        {
            "TrainJob.gpt": standing("one", start=START),
            "JobSet.gpt": standing("two", start=structs.replace(START, attempt=9)),
        }
    )
    assert server.answer("ns", "gpt", "three") is None
    first, second = server.answer("ns", "gpt", "one"), server.answer("ns", "gpt", "two")
    assert first is not None and second is not None
    assert (first["attempt"], second["attempt"]) == (4, 9)
    unnamed = server.answer("ns", "gpt", "")
    assert unnamed is not None and unnamed["attempt"] == 4
    server.post({"Job.gpt": standing(None)})
    assert server.answer("ns", "gpt", "any") is not None


def test_a_new_pod_that_was_asked_to_wait_is_waiting_and_unused_until_it_is_asked_otherwise(
    server: AttemptServer, clock: Clock
) -> None:
    server.post({"Job.gpt": standing(begun=3, answer=WrapperAnswer.WAIT_PENDING)})
    for pod, after in (("gpt-0", 3), ("gpt-1", 0)):
        server.answer("ns", "gpt", "secret", pod=pod, after=after)
    server.answer("ns", "gpt", "", pod="gpt-2", after=0)  # without the token nobody is believed
    assert server.waiting("Job.gpt", 3) == {"gpt-0", "gpt-1"}
    assert server.unused("Job.gpt", 3) == {"gpt-1"}
    server.post({"Job.gpt": standing(begun=3, start=START)})
    server.answer("ns", "gpt", "secret", pod="gpt-1", after=0)
    assert server.waiting("Job.gpt", 3) == {"gpt-0"} and not server.unused("Job.gpt", 3)


def test_who_waits_is_known_for_a_while(server: AttemptServer, clock: Clock) -> None:
    server.post({"Job.gpt": standing(begun=3, answer=WrapperAnswer.WAIT_PENDING)})
    server.answer("ns", "gpt", "secret", pod="gpt-0", after=3)
    server.answer("ns", "gpt", "secret", pod="", after=3)
    assert server.waiting("Job.gpt", 3) == {"gpt-0"}
    assert server.waiting("Job.gpt", 4) == {"gpt-0"}, "told to wait, it starts nothing"
    clock.now += WAITING_SECONDS + 1
    assert server.waiting("Job.gpt", 3) == set()
    assert server.waiting("Job.other", 3) == set()


def test_who_does_not_have_the_token_is_answered_and_not_believed(server: AttemptServer) -> None:
    """Anybody on the pod network can say that a trainer has ended."""
    server.post({"Job.gpt": standing(begun=3)})
    assert server.answer("ns", "gpt", "", pod="gpt-1", after=99) is not None
    assert server.answer("ns", "gpt", "wrong", pod="gpt-1", after=99) is None
    server.post({"Job.gpt": standing(None, begun=3)})
    assert server.answer("ns", "gpt", "any", pod="gpt-1", after=99) is not None
    assert server.waiting("Job.gpt", 3) == set()
    assert server.highest("Job.gpt") == Highest()


def test_a_trainer_does_not_wait_for_ever_for_what_is_decided_and_never_done(
    server: AttemptServer, clock: Clock
) -> None:
    """A plan may be refused for good; kubelet has started the trainer again long ago."""
    server.post({"Job.gpt": standing(begun=3, answer=WrapperAnswer.WAIT_PENDING)})
    first = server.answer("ns", "gpt", "secret", after=3)
    assert first is not None and first["wait"] is True
    clock.now += PENDING_SECONDS + 1
    server.post({"Job.gpt": standing(begun=3, answer=WrapperAnswer.WAIT_PENDING)})
    told = server.answer("ns", "gpt", "secret", after=3)
    assert told is not None and told.get("by_rule") is True


def test_while_it_is_being_done_a_trainer_waits(server: AttemptServer, clock: Clock) -> None:
    for _ in range(3):
        server.post({"Job.gpt": standing(begun=3, answer=WrapperAnswer.WAIT)})
        told = server.answer("ns", "gpt", "secret", after=3)
        assert told is not None and told["wait"] is True
        clock.now += PENDING_SECONDS + 1


def test_an_order_has_a_larger_number_than_any_that_the_volume_knows(server: AttemptServer) -> None:
    """The ledger was lost, or a new job has taken the name and the checkpoints of an old one."""
    fleet = Fleet(2)
    server.post({"Job.gpt": standing()})
    server.answer("ns", "gpt", "secret", pod="gpt-0", after=7)
    server.answer("ns", "gpt", "secret", pod="gpt-1", after=0)
    decision = requested_decision(fleet.watch, RestartRequest("id", 0.0, "ann", "why"))
    start = next_start(fleet.watch, decision, JobEntry(), server.highest("Job.gpt").attempt)
    assert start.attempt == 8
    server.post({"Job.gpt": standing(start=structs.replace(start, not_before=0.0))})
    for after in (7, 0):
        told = server.answer("ns", "gpt", "secret", after=after)
        assert told is not None and told["attempt"] == 8


def test_who_knows_of_more_than_was_ordered_waits_until_the_order_is_renewed(
    server: AttemptServer, clock: Clock
) -> None:
    """Had node 0 gone by its rule, the others would have followed an order for the past."""
    server.post({"Job.gpt": standing(start=START)})
    told = server.answer("ns", "gpt", "secret", pod="gpt-0", after=9)
    assert told is not None and told["wait"] is True
    clock.now += PATIENCE_SECONDS
    assert server.answer("ns", "gpt", "secret", pod="gpt-0", after=9) == {
        "attempt": 10, "by_rule": True, "reason": "nothing was decided about it",
    }  # fmt: skip


def test_an_order_whose_number_is_taken_is_renewed_or_left_to_the_rule() -> None:
    """A person asks for a restart while the pods are Pending; then node 0 sees the volume."""
    fleet = Fleet(2).run(8)
    entry = written(structs.replace(START, attempt=3))
    watch, now = fleet.watch, fleet.now
    assert number_is_taken(watch, entry, Highest(9), now)
    assert not number_is_taken(watch, entry, Highest(2), now), "the number is free"
    just_now = Highest(9, now - 2.0)
    assert not number_is_taken(watch, entry, just_now, now), "what the pods told is older than that"
    going = written(structs.replace(START, attempt=3), RestartState.CLEARED)
    assert not number_is_taken(watch, going, Highest(9), now), "the old gang is not gone yet"
    plain = reissue(entry, 9)
    assert plain.start is None and plain.attempt == 9
    assert entry.start is not None
    back = structs.replace(entry.start, rollbacks=(Rollback(1.0, 450, 451, "nan"),))
    strict = reissue(replace(entry, start=back), 9)
    assert strict.start is not None and (strict.start.attempt, strict.attempt) == (10, 10)
    assert strict.start.resume_from == 450 and strict.start.rollbacks
    assert reissue(plain, 9) == plain, "once"


@pytest.mark.parametrize("unseen", [True, False])
def test_an_order_that_may_have_been_followed_is_not_renewed(unseen: bool) -> None:
    fleet = Fleet(2, attempt=1 if unseen else 3)
    fleet.pods[1].answers = not unseen
    fleet.run(12)
    entry = written(structs.replace(START, attempt=3))
    assert not number_is_taken(fleet.watch, entry, Highest(9), fleet.now)


def test_node_0_gets_the_answers_of_the_others_that_asked_with_the_token(
    server: AttemptServer, clock: Clock
) -> None:
    server.post({"Job.gpt": standing(start=START, begun=3)})
    server.answer("ns", "gpt", "secret", pod="old-1", after=3, word="1 older")
    clock.now += 1
    server.answer("ns", "gpt", "secret", pod="gpt-1", after=3, word="1 abc")
    server.answer("ns", "gpt", "", pod="gpt-2", after=3, word="2 forged")
    server.answer("ns", "gpt", "secret", pod="gpt-3", after=3, word="nonsense")
    told = server.answer("ns", "gpt", "secret", pod="gpt-0", after=3, word="0 def")
    assert told is not None and told["heard"] == {"1": "abc"}
    other = server.answer("ns", "gpt", "secret", pod="gpt-1", after=3, word="1 abc")
    assert other is not None and "heard" not in other
    clock.now += WAITING_SECONDS + 1
    told = server.answer("ns", "gpt", "secret", pod="gpt-0", after=3, word="0 def")
    assert told is not None and told["heard"] == {}
