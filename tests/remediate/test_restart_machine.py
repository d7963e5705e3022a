# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Restarts through any order of faults, refusals, people and killed controllers.

The real remediation runs over a cluster in memory. A controller is killed before or after any call
to the API server; the next one has the ledger alone. Each change is judged before it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mwatch.config.fleet import FleetSettings
from mwatch.gang.suspend import SUSPENDED_BY
from mwatch.kube.ledger import NAME, Ledger
from mwatch.kube.resources import CONFIG_MAPS, PYTORCH_JOBS, QUOTAS
from mwatch.model.kube import ledger as ledger_model
from mwatch.model.kube.gang import Method
from mwatch.model.kube.ledger import Halt, JobEntry, LedgerData, from_data
from mwatch.model.kube.next_start import RestartRequest
from mwatch.model.kube.restart_state import (
    RULES,
    TRANSITIONS,
    RestartEvent,
    RestartState,
    after,
    can,
)
from mwatch.remediate import case as case_module
from support.fakes.kube_cluster import (
    JOB,
    JOB_PATH,
    JOB_UID,
    NAMESPACE,
    POD_PATHS,
    ClusterAccess,
    Crash,
)
from support.runs.remediation_runs import KEY, SimulatedController, World, one_thread

LEDGER = CONFIG_MAPS.path(NAMESPACE, NAME)
QUOTA = QUOTAS.path(NAMESPACE, "quota")
CALLS = st.integers(0, 30)
EXAMPLES = 60
TAKEN: set[tuple[RestartState, RestartEvent]] = set()
"""Transitions of all examples."""
ELSEWHERE = {
    (RestartState.CLEARED, RestartEvent.SUPERSEDED),
    (RestartState.SUSPENDED, RestartEvent.CLOSED),
    (RestartState.RELEASED, RestartEvent.REISSUED),
    (RestartState.RELEASED, RestartEvent.SUPERSEDED),
}
"""They need `mwatch restart`, a volume that knows later attempts, or a gang that fails before its
first step."""
EDGES = {(state, to) for state, each in TRANSITIONS.items() for to in each.values()}


class Violation(BaseException):
    """Not an Exception: the code under test must not survive it."""


def audit(wanted: object, text: str) -> None:
    if not wanted:
        raise Violation(text)


class Restarts(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.entry = JobEntry()
        self.deleted: dict[str, set[str]] = {}
        """By restart: UIDs of pods."""
        self.restarts: dict[str, int] = {}
        """By id: the attempt that it ended."""
        self.asked: set[str] = set()
        """Restarts that a person asked for."""
        self.ever_sick: set[int] = set()
        self.number = 0
        self.former: SimulatedController | None = None

    @property
    def is_stopped(self) -> bool:
        step = self.entry.step
        return step is not None and step.way is Method.STOP and step.state is RestartState.DONE

    @initialize(policy=st.sampled_from(["OnFailure", "Never"]), in_place=st.booleans())
    def start(self, policy: str, in_place: bool) -> None:
        self.world = World(policy)
        self.gang = self.world.gang
        self.settings = FleetSettings(in_place=in_place, evidence_seconds=1.0)
        self.gang.before_start = self._before_start
        one_thread(self.patch, self.gang, self._before_in_place, self._before_evidence)
        for module in (case_module, ledger_model):
            self.patch.setattr(module, "after", self._recorded)
        self.person = ClusterAccess(self.world.cluster, self._before)
        self._new_controller()
        self._run(5)
        assert self.gang.is_training and self.gang.attempt == 1

    @rule(tasks=st.integers(0, 4))
    def time_passes(self, tasks: int) -> None:
        """A second; some of the workers' tasks are run, others wait."""
        self.world.now += 1.0
        self.controller.live()
        self.controller.work(tasks)

    @rule()
    def much_time_passes(self) -> None:
        self._run(10)

    @precondition(lambda self: self.gang.is_training)
    @rule()
    def the_gang_hangs(self) -> None:
        self.gang.sick.add(self.gang.attempt)
        self.ever_sick.add(self.gang.attempt)

    @precondition(lambda self: self.gang.is_training)
    @rule()
    def the_gang_runs_out_of_memory(self) -> None:
        self.gang.hopeless.add(self.gang.attempt)
        self.ever_sick.add(self.gang.attempt)

    @rule()
    def the_gang_goes_on_by_itself(self) -> None:
        self.gang.sick.discard(self.gang.attempt)
        self.gang.hopeless.discard(self.gang.attempt)

    @precondition(lambda self: self.world.cluster.is_suspended and self.is_stopped)
    @rule()
    def a_person_starts_the_job(self) -> None:
        self._run(2)
        body = {"metadata": {"annotations": {SUSPENDED_BY: None}},
                "spec": {"runPolicy": {"suspend": False}}}  # fmt: skip
        self.person.patch(PYTORCH_JOBS, NAMESPACE, JOB, body)

    @rule(refuses=st.booleans())
    def wrappers_refuse_to_restart_in_place(self, refuses: bool) -> None:
        self.gang.refuses = refuses

    @rule(is_full=st.booleans())
    def the_quota_changes(self, is_full: bool) -> None:
        hard = {"hard": {"pods": "1"}}
        if is_full:
            self.world.cluster.put(QUOTA, {"spec": hard, "status": {**hard, "used": {"pods": "2"}}})
        else:
            self.world.cluster.objects.pop(QUOTA, None)

    @rule(is_halted=st.booleans())
    def a_person_halts_all_acting(self, is_halted: bool) -> None:
        halt = Halt(self.world.now, None, "ann", "storm") if is_halted else None
        Ledger(self.person, NAMESPACE).change(lambda book: replace(book, halt=halt))

    @precondition(lambda self: self.gang.is_training and not self.entry.is_under_way)
    @rule()
    def a_person_asks_for_a_restart(self) -> None:
        self.number += 1
        request = RestartRequest(f"asked-{self.number}", self.world.now, "ann", "stuck")
        self.asked.add(request.id)

        def change(book: LedgerData) -> LedgerData:
            entry = book.of(KEY)
            if entry.is_under_way or entry.request is not None:
                return book
            return book.with_job(KEY, replace(entry, uid=JOB_UID, request=request))

        Ledger(self.person, NAMESPACE).change(change)

    @rule(calls=CALLS, is_applied=st.booleans())
    def a_call_is_not_answered(self, calls: int, is_applied: bool) -> None:
        access = self.controller.access
        access.calls_left, access.is_applied, access.is_killed = calls, is_applied, False

    @rule(calls=CALLS, is_applied=st.booleans())
    def the_controller_is_killed(self, calls: int, is_applied: bool) -> None:
        """Before or after one of its next calls."""
        access = self.controller.access
        access.calls_left, access.is_applied, access.is_killed = calls, is_applied, True
        with pytest.raises(Crash):
            self._run(60)
        self._new_controller()

    @precondition(lambda self: self.gang.is_training)
    @rule(calls=st.integers(5, 60), is_applied=st.booleans())
    def the_controller_is_killed_in_a_restart(self, calls: int, is_applied: bool) -> None:
        self.the_gang_hangs()
        self.the_controller_is_killed(calls, is_applied)

    @precondition(lambda self: self.gang.is_training)
    @rule(
        state=st.sampled_from([RestartState.HELD, RestartState.PREPARING, RestartState.COMMITTING]),
        what=st.sampled_from(["heals", "halts", "leads"]),
    )
    def something_happens_before_it_is_written(self, state: RestartState, what: str) -> None:
        self.a_person_halts_all_acting(state is RestartState.HELD)
        self.the_gang_hangs()
        for _ in range(20):
            self.controller.live()
            case = self.controller.manager._cases.get(KEY)
            if case is not None and case.state is state:
                break
            self.world.now += 1.0
            self.controller.work(1)
        if what == "heals":
            self.the_gang_goes_on_by_itself()
        elif what == "halts":
            self.a_person_halts_all_acting(True)
        else:
            self.another_controller_leads()
        self._run(5)

    @precondition(lambda self: self.gang.is_training)
    @rule()
    def in_place_fails_and_there_is_no_room_for_a_new_gang(self) -> None:
        self.gang.refuses = True
        self.the_quota_changes(True)
        self.the_gang_hangs()
        self._run(10)

    @rule()
    def another_controller_leads(self) -> None:
        self.former = self.controller
        self.controller.lease.give_back()
        self._new_controller()

    @precondition(lambda self: self.former is not None)
    @rule()
    def the_controller_that_led_before_goes_on(self) -> None:
        assert self.former is not None
        self.former.look()
        self.former.work()

    @precondition(lambda self: self.gang.is_training)
    @rule()
    def a_controller_with_a_stale_ledger_leads(self) -> None:
        """It knows neither the restart nor the new attempt, and its reads come late."""
        book, attempt = Ledger(self.person, NAMESPACE).read(), self.gang.attempt
        self.the_gang_hangs()
        self._run(20)
        self.another_controller_leads()
        self.controller.hold_back(book, attempt)
        self._run(5)
        self.controller.hold_back(None, None)

    def teardown(self) -> None:
        """What is begun is finished, or somebody reads why it is not."""
        if hasattr(self, "controller"):
            self.controller.access.calls_left = None
            for _ in range(12):
                self._run(5)
                if self.gang.is_training and self.entry.state is RestartState.DONE:
                    break
            status = self.controller.manager.state(KEY)
            if self.is_stopped and self.world.cluster.is_suspended:
                assert not RULES[status.state].is_written or status.doing == "nothing", status
            elif self.entry.must_finish or self.gang.attempt in self.gang.sick | self.gang.hopeless:
                for _ in range(10):  # a retry may be under way
                    status = self.controller.manager.state(KEY)
                    if status.doing == "held":
                        break
                    self._run(1)
                assert status.doing == "held" and status.held_by and status.text, status
            else:
                assert self.gang.is_training, (self.entry, self.gang.running)
                assert status.doing in ("nothing", "held", "recovering"), status
        self.patch.undo()

    def _new_controller(self) -> None:
        self.number += 1
        self.controller = SimulatedController(
            self.world, f"controller-{self.number}", self.settings, self._before
        )
        for _ in range(2):
            self.controller.lease.turn()
            self.world.now += 31.0  # by then the Lease of the one before is over
        self.controller.lease.turn()

    def _run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.now += 2.0
            self.controller.live()
            self.controller.work()

    # Each change, before it is made.

    def _recorded(self, state: RestartState, event: RestartEvent) -> RestartState:
        audit(can(state, event), f"{event.value} while {state.value}")
        TAKEN.add((state, event))
        return after(state, event)

    def _before(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        if path == LEDGER or (method == "POST" and path == CONFIG_MAPS.path(NAMESPACE)):
            self._before_ledger(from_data(body["data"]).of(KEY))
        elif method == "DELETE" and path in POD_PATHS:
            self._before_delete(body["preconditions"]["uid"])
        elif path == JOB_PATH:
            self._before_job(body)

    def _before_ledger(self, new: JobEntry) -> None:
        old, self.entry = self.entry, new
        audit(new.attempt >= old.attempt, "an attempt number fell")
        if new.step is None or new.step == old.step:
            return
        if old.step is not None and old.step.id == new.step.id:
            is_edge = (old.state, new.state) in EDGES
            audit(is_edge, f"from {old.state.value} to {new.state.value}")
            audit(new.step.attempt == old.step.attempt, "a restart ends another attempt")
            return
        is_asked, about = new.step.id in self.asked, new.step.attempt
        audit(new.state is RestartState.PLANNED, "a restart was not written before it was done")
        audit(not old.must_finish, f"{old.state.value} was not finished")
        if old.step is not None:
            self._recorded(old.state, RestartEvent.SUPERSEDED)
        audit(new.step.id not in self.restarts, "a restart began twice")
        audit(is_asked or about not in self.restarts.values(), "an attempt was restarted twice")
        audit(is_asked or about in self.ever_sick, "a healthy attempt is restarted")
        if new.step.way is not Method.STOP:
            highest = max(self.gang.top, old.attempt)
            audit(new.start is not None and new.start.attempt > highest, "the number is taken")
        self.restarts[new.step.id] = about

    def _before_delete(self, uid: str) -> None:
        if uid not in {pod["metadata"]["uid"] for pod in self.world.cluster.pods}:
            return  # gone already: the API server refuses
        step = self.entry.step
        audit(step is not None and RULES[step.state].may_delete, "a delete without its entry")
        assert step is not None
        audit(uid in step.uids, "the ledger does not name the pod that is deleted")
        self._is_old(uid, step.attempt)
        self.deleted.setdefault(step.id, set()).add(uid)
        audit(len(self.deleted[step.id]) <= len(POD_PATHS), "a gang was deleted twice")

    def _before_job(self, body: Mapping[str, Any]) -> None:
        suspend = body.get("spec", {}).get("runPolicy", {}).get("suspend")
        step = self.entry.step
        if suspend is True:
            is_planned = step is not None and step.state is RestartState.PLANNED
            audit(is_planned, "a suspend without its entry")
            assert step is not None
            audit(
                step.way in (Method.SUSPEND_RESUME, Method.STOP), f"a suspend in the way {step.way}"
            )
            for uid in self.gang.running:
                self._is_old(uid, step.attempt)
        elif suspend is False:
            audit(not self.world.cluster.pods, "resumed beside the old gang")

    def _before_in_place(self, attempt: int, token: str) -> None:
        audit(token, "asked without the job's token")
        step = self.entry.step
        is_planned = step is not None and step.state is RestartState.PLANNED
        audit(is_planned, "a restart in place without its entry")
        assert step is not None
        audit((step.way, step.attempt) == (Method.IN_PLACE, attempt), "another way, or attempt")

    def _before_evidence(self) -> None:
        both = [each for each in (self.controller, self.former) if each is not None]
        cases = [case for each in both for case in each.manager._cases.values()]
        audit(any(RULES[each.state].may_collect for each in cases), "evidence at the wrong time")

    def _before_start(self, uid: str, attempt: int) -> None:
        others = {number for each, number in self.gang.running.items() if each != uid}
        audit(others <= {attempt}, f"attempt {attempt} starts beside {sorted(others)}")
        audit(attempt >= self.gang.top, f"attempt {attempt} starts after {self.gang.top}")

    def _is_old(self, uid: str, attempt: int) -> None:
        audit(self.gang.running.get(uid, 0) <= attempt, "a healthy new gang is touched")


EVERY = {(state, event) for state, each in TRANSITIONS.items() for event in each}


@pytest.mark.timeout(300)
def test_restarts_survive_any_order_of_faults_and_killed_controllers() -> None:
    run_state_machine_as_test(
        Restarts,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=20, deadline=None, derandomize=True,
            database=None, suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
    assert TAKEN <= EVERY


def test_the_real_code_takes_each_transition_of_the_table() -> None:
    TAKEN.clear()
    for policy in ("OnFailure", "Never"):
        world = Restarts()
        world.start(policy, False)
        world.the_gang_hangs()
        world._run(20)
        world.a_person_asks_for_a_restart()
        world._run(20)
        world.the_gang_runs_out_of_memory()
        world.teardown()
        assert world.is_stopped and len(world.restarts) == 3
    world = Restarts()
    world.start("OnFailure", True)
    world.in_place_fails_and_there_is_no_room_for_a_new_gang()
    assert world.controller.manager.state(KEY).doing == "held"
    world.the_quota_changes(False)
    world.teardown()
    assert world.gang.attempt == 2 and len(world.restarts) == 1
    world = Restarts()
    world.start("OnFailure", False)
    world.the_quota_changes(True)
    world.the_gang_hangs()
    world.teardown()
    assert not world.restarts and world.controller.manager.state(KEY).held_by == "quota"
    for state in (RestartState.HELD, RestartState.PREPARING, RestartState.COMMITTING):
        for what in ("heals", "halts", "leads"):
            world = Restarts()
            world.start("OnFailure", False)
            world.something_happens_before_it_is_written(state, what)
            world.teardown()
    world = Restarts()
    world.start("OnFailure", False)
    world.a_controller_with_a_stale_ledger_leads()
    world.teardown()
    assert world.gang.attempt == 2 and len(world.restarts) == 1
    assert EVERY - ELSEWHERE <= TAKEN, sorted(EVERY - ELSEWHERE - TAKEN)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("policy", ["OnFailure", "Never"])
def test_a_restart_survives_a_kill_of_its_controller_at_each_call(
    policy: str, in_place: bool
) -> None:
    for calls in range(60):
        world = Restarts()
        world.start(policy, in_place)
        world.the_controller_is_killed_in_a_restart(calls, calls % 2 == 0)
        world.teardown()
        assert world.gang.attempt == 2 and len(world.restarts) == 1, calls
