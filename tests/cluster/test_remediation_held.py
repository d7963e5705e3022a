# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What holds a restart back, on the real API server: nothing is changed meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster import kube_things as things
from cluster import remediation_things as fleet
from cluster.remediation_fixtures import a_namespace, an_access, kinds  # noqa: F401
from cluster.remediation_things import KEY, QUICK, Controller
from mwatch.config.fleet import FleetSettings, MaintenanceWindow
from mwatch.gang.restart import ledger_key
from mwatch.kube.access import Access
from mwatch.kube.jobs import find_job, pods_of
from mwatch.kube.ledger import Ledger
from mwatch.kube.resources import JOBS, PODS
from mwatch.model.cause import Cause
from mwatch.model.kube.gang import GangRefusal, Method
from mwatch.model.kube.job import KubeJob
from mwatch.model.kube.ledger import Halt
from mwatch.model.kube.restart_state import RestartState
from mwatch.remediate.case import Prepared, RestartTask

pytestmark = pytest.mark.timeout(900)


def annotated(access: Access, job: KubeJob, **words: str | None) -> None:
    names = {f"mwatch.dev/{key}": text for key, text in words.items()}
    assert access.patch(JOBS, job.namespace, job.name, {"metadata": {"annotations": names}}).is_ok


def halted(access: Access, namespace: str, halt: Halt | None) -> None:
    Ledger(access, namespace).change(lambda book: replace(book, halt=halt))


def controller_of(access: Access, namespace: str, settings: FleetSettings = QUICK) -> Controller:
    job = fleet.make_job(access, namespace)
    fleet.make_pods(access, job, 2)
    controller = Controller(access, namespace, settings=settings)
    fleet.decided(controller.watch(job))
    return controller


Gate = Callable[[Access, str, KubeJob], None]
OFF = {
    "pause": lambda access, space, job: annotated(access, job, pause="looking"),
    "halt": lambda access, space, job: halted(access, space, Halt(0.0, None, "ann", "storm")),
}
ON = {
    "pause": lambda access, space, job: annotated(access, job, pause=None),
    "halt": lambda access, space, job: halted(access, space, None),
}


@pytest.mark.parametrize("name", sorted(OFF))
def test_what_a_person_keeps_back_is_done_when_they_let_go(
    access: Access, namespace: str, name: str
) -> None:
    controller = controller_of(access, namespace)
    job = controller.watches[KEY].kube
    OFF[name](access, namespace, job)
    controller.until(lambda: controller.manager.state(KEY).held_by == name)
    before = pods_of(access, job)
    for _ in range(5):
        controller.turn()
    assert pods_of(access, job) == before and controller.manager.state(KEY).is_paused
    assert controller.entry().step is None and controller.entry().acts == ()
    # Containers that restart by themselves are not kept waiting for mwatch.
    told = controller.manager.answer(namespace, "train", "", "train-0", 1)
    assert told is not None and told["by_rule"] is True
    ON[name](access, namespace, job)
    controller.until(lambda: controller.manager.state(KEY).doing == "recovering")
    assert pods_of(access, job) == ()
    controller.close()


def test_a_halt_between_evidence_and_act_is_noticed(access: Access, namespace: str) -> None:
    controller = controller_of(access, namespace)
    tasks = controller.manager._worker
    carry_out = tasks.carry_out

    def halted_just_before(*given):  # type: ignore[no-untyped-def]
        halted(access, namespace, Halt(0.0, None, "ann", "storm"))
        return carry_out(*given)

    tasks.carry_out = halted_just_before  # type: ignore[method-assign]
    controller.until(lambda: controller.manager.state(KEY).held_by == "halt")
    assert len(pods_of(access, controller.watches[KEY].kube)) == 2
    assert controller.entry().step is None
    tasks.carry_out = carry_out  # type: ignore[method-assign]
    halted(access, namespace, None)
    controller.until(lambda: controller.manager.state(KEY).doing == "recovering")
    controller.close()


@pytest.mark.parametrize(
    "settings, held_by",
    [
        (replace(QUICK, acting=False), "switch"),
        (
            replace(QUICK, maintenance=(MaintenanceWindow("00:00", "24:00", why="Lustre"),)),
            "maintenance",
        ),
    ],
)
def test_the_fleets_settings_keep_it_back(
    access: Access, namespace: str, settings: FleetSettings, held_by: str
) -> None:
    controller = controller_of(access, namespace, settings)
    controller.until(lambda: controller.manager.state(KEY).held_by == held_by)
    for _ in range(3):
        controller.turn()
    assert len(pods_of(access, controller.watches[KEY].kube)) == 2
    controller.close()


def test_nothing_is_done_on_a_stale_view(access: Access, namespace: str) -> None:
    controller = controller_of(access, namespace)
    watch = controller.watches.pop(KEY)

    def is_held() -> bool:
        controller.lease.turn()
        controller.manager.look([watch], controller.clock())
        return controller.manager.state(KEY).held_by == "stale_view"

    for age in (None, 31.0):
        watch.view_age_seconds = age
        things.wait_for(is_held, "the ledger, without which nothing is decided")
        for _ in range(20):
            assert is_held()
            time.sleep(0.05)
    assert len(pods_of(access, watch.kube)) == 2
    controller.close()


def test_a_plan_that_refuses_is_tried_again(access: Access, namespace: str) -> None:
    controller = controller_of(access, namespace)
    fleet.admitted(access, controller.watches[KEY].kube, is_so=False)
    controller.until(lambda: controller.manager.state(KEY).held_by == "queued")
    state = controller.manager.state(KEY)
    assert "not admitted" in state.text and controller.entry().step is None
    assert len(pods_of(access, controller.watches[KEY].kube)) == 2
    fleet.admitted(access, controller.watches[KEY].kube, is_so=True)
    controller.until(lambda: controller.manager.state(KEY).doing == "recovering")

    def held() -> list[str]:
        told = [text for reason, text in fleet.events(access, namespace) if reason == "MwatchHeld"]
        return [text for text in told if "(token)" not in text]  # it may not be made yet at first

    controller.until(held)
    assert len(held()) == 1
    controller.close()


def test_what_heals_while_evidence_is_saved_is_left_alone(
    access: Access, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = controller_of(access, namespace)
    watch = controller.watches[KEY]
    has_healed = threading.Event()
    prepare = controller.manager._worker.prepare

    def prepare_meanwhile(task: RestartTask) -> Prepared | GangRefusal:
        has_healed.wait(120)
        return prepare(task)

    monkeypatch.setattr(controller.manager._worker, "prepare", prepare_meanwhile)
    controller.until(lambda: controller.manager.state(KEY).doing == "evidence")
    fleet.began(watch, 1, 500)
    has_healed.set()
    controller.until(lambda: controller.manager.state(KEY).doing == "nothing")
    assert len(pods_of(access, watch.kube)) == 2 and not watch.engine.record.acts
    controller.close()


def test_so_many_restarts_at_a_time_and_the_others_wait_in_a_line(
    access: Access, namespace: str
) -> None:
    controller = Controller(access, namespace, settings=replace(QUICK, max_restarts_at_once=1))
    for index in range(3):
        job = fleet.make_job(access, namespace, f"train{index}")
        fleet.make_pods(access, job, 2)
        fleet.decided(controller.watch(job), cause=Cause.CRASH)
        controller.until(lambda: controller.manager._ledger.book is not None)
    keys = [ledger_key("Job", f"train{index}") for index in range(3)]
    controller.until(lambda: controller.manager.state(keys[0]).doing == "recovering")
    # The tokens of the others may be made later: before that they do not wait in the line.
    controller.until(lambda: list(controller.manager.line) == keys[1:])
    second = controller.manager.state(keys[1])
    assert (second.held_by, second.queue_place) == ("breaker", 1)
    assert keys[0] in second.text
    assert len(pods_of(access, controller.watches[keys[1]].kube)) == 2
    fleet.began(controller.watches[keys[0]], 2, 451)  # it trains again
    controller.until(lambda: controller.manager.state(keys[1]).doing == "recovering")
    assert list(controller.manager.line) == keys[2:]
    controller.close()


def test_jobs_that_stall_together_on_one_volume_are_one_incident_and_no_restart(
    access: Access, namespace: str
) -> None:
    controller = Controller(access, namespace)
    for index in range(2):
        job = fleet.make_job(access, namespace, f"train{index}", claim="shared")
        fleet.make_pods(access, job, 2)
        fleet.decided(controller.watch(job))
    keys = [ledger_key("Job", f"train{index}") for index in range(2)]
    controller.until(
        lambda: all(controller.manager.state(key).held_by == "common_cause" for key in keys)
    )
    controller.until(lambda: Ledger(access, namespace).read().common)

    def told() -> list[str]:
        every = fleet.events(access, namespace)
        return [text for reason, text in every if reason == "MwatchCommonCause"]

    controller.until(lambda: len(told()) >= 2)
    for _ in range(3):
        controller.turn()
    (cause,) = Ledger(access, namespace).read().common
    assert cause.shared == "volume shared" and set(cause.jobs) == set(keys)
    assert all(len(pods_of(access, each.kube)) == 2 for each in controller.watches.values())
    assert len(told()) == 2 and all("volume shared" in text for text in told())
    fleet.began(controller.watches[keys[0]], 1, 500)  # one heals: the other is alone
    controller.until(lambda: controller.manager.state(keys[1]).doing == "recovering")
    controller.until(lambda: Ledger(access, namespace).read().common[0].ended_at is not None)
    controller.close()


def test_a_job_that_counts_deleted_pods_is_suspended_and_resumed(
    access: Access, namespace: str
) -> None:
    job = fleet.make_job(access, namespace, in_queue=False)
    old = fleet.make_pods(access, job, 2)
    controller = Controller(access, namespace)
    fleet.decided(controller.watch(job))
    controller.until(lambda: getattr(find_job(access, namespace, "train"), "is_suspended", False))
    waits = controller.manager.answer(namespace, "train", "", "train-0", 0)
    assert waits is not None and waits["wait"] is True and "resume_from" not in waits
    for index, uid in enumerate(old):  # what the Job's own controller does
        access.delete(PODS, namespace, f"train-{index}", uid=uid)
    controller.until(lambda: controller.manager.state(KEY).doing == "recovering")
    entry = controller.entry()
    assert entry.step is not None and entry.step.way is Method.SUSPEND_RESUME
    assert entry.step.state is RestartState.RELEASED
    found = find_job(access, namespace, "train")
    assert found is not None and not found.is_suspended
    controller.close()


def test_a_pause_that_has_ended_holds_nobody(access: Access, namespace: str) -> None:
    controller = controller_of(access, namespace)
    job = controller.watches[KEY].kube
    past = json.dumps({"until": controller.clock() - 5, "who": "ann", "why": "x"})
    annotated(access, job, pause=past)
    controller.until(lambda: controller.manager.state(KEY).doing == "recovering")
    controller.close()
