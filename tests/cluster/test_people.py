# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What people do to a job, on the real API server, with a leading controller and without."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from cluster import kube_things as things
from cluster import remediation_things as fleet
from cluster.control_plane import ControlPlane
from cluster.remediation_fixtures import a_namespace, an_access, kinds  # noqa: F401
from cluster.remediation_things import KEY, Controller
from mwatch.cli.program import program
from mwatch.errors import InputError
from mwatch.gang.restart import GangRestart
from mwatch.gang.suspend import SUSPENDED_BY
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError
from mwatch.kube.jobs import find_job, pods_of, workload_for
from mwatch.kube.lease import Lease, LeaseTimes
from mwatch.kube.ledger import Ledger
from mwatch.kube.resources import NODES, PODS
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.kube.gang import GangPlan, Method, Target
from mwatch.model.kube.job import JobKind, KubeJob, pause_of
from mwatch.operate.overrides import JobOverrides, ManualRestart, RestartTimes
from mwatch.operate.stop import ManualStop, StopTimes

pytestmark = pytest.mark.timeout(900)
SHORT = LeaseTimes(length_seconds=2, margin_seconds=0.5, renew_seconds=0.2)
"""Of who is dead. On a busy machine the living would lose such a Lease between two turns."""
QUICK = RestartTimes(taken_seconds=90.0, look_seconds=0.1)


@pytest.fixture(autouse=True)
def a_node(access: Access) -> Iterator[None]:
    """Somebody who may see nodes is told where there are none. It goes: nothing runs on it."""
    things.make_ready_node(access, "ready")
    yield
    access.call("DELETE", NODES.path(None, "ready"))


def job_of(access: Access, namespace: str) -> KubeJob:
    found = find_job(access, namespace, "train")
    assert found is not None
    return found


@contextmanager
def leading(controller: Controller) -> Iterator[None]:
    """The controller turns by itself meanwhile."""
    end = threading.Event()

    def run() -> None:
        while not end.wait(0.1):
            controller.turn()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(120)
        assert not thread.is_alive(), "two would turn it at a time"


def test_a_pause_of_one_job_and_its_end(access: Access, namespace: str) -> None:
    fleet.make_job(access, namespace)
    people = JobOverrides(access, namespace)
    said = people.pause("train", 7200.0, "changing the switch")
    assert "for 2 h" in said.lines[0] and said.exit_code == 0 and len(said.lines) == 1
    pause = pause_of(job_of(access, namespace), time.time())
    assert pause is not None and pause.who == people.who and pause.why == "changing the switch"
    assert pause_of(job_of(access, namespace), time.time() + 7300) is None
    (note,) = Ledger(access, namespace).read().of(KEY).notes
    assert (note.who, note.what, note.why) == (people.who, "pause", "changing the switch")
    ((reason, text),) = fleet.events(access, namespace)
    assert reason == "MwatchPaused" and people.who in text and "changing the switch" in text
    assert "no longer paused" in people.resume("train", "").lines[0]
    assert pause_of(job_of(access, namespace), time.time()) is None
    assert "neither paused" in people.resume("job/train", "").lines[0]


def test_the_one_switch_for_all_jobs(access: Access, namespace: str) -> None:
    fleet.make_job(access, namespace)
    people = JobOverrides(access, namespace)
    people.pause_all(60.0, "storm")
    halt = Ledger(access, namespace).read().halt
    assert halt is not None and halt.who == people.who and halt.holds(time.time())
    assert not halt.holds(time.time() + 61)
    ((reason, text),) = fleet.events(access, namespace)
    assert reason == "MwatchPaused" and "all jobs: storm" in text
    assert any("all jobs are paused" in line for line in people.resume("train", "").lines)
    people.resume_all("over")
    assert Ledger(access, namespace).read().halt is None


def test_a_job_that_mwatch_has_stopped_is_started_again(access: Access, namespace: str) -> None:
    job = fleet.make_job(access, namespace, in_queue=False)
    fleet.make_pods(access, job, 2)
    controller = Controller(access, namespace)
    fleet.decided(controller.watch(job), Action.STOP, Cause.OOM, resume_from=None)
    controller.until(lambda: job_of(access, namespace).is_suspended)
    controller.close()
    said = JobOverrides(access, namespace).resume("train", "smaller batch")
    assert "started again" in said.lines[0]
    assert not job_of(access, namespace).is_suspended


def test_the_mode_is_changed_and_reported(access: Access, namespace: str) -> None:
    fleet.make_job(access, namespace, mode="observe")
    said = JobOverrides(access, namespace).mode("train", "act", "observed well")
    assert said.body["mode"] == "act" and job_of(access, namespace).mode == "act"
    assert "MwatchMode" in {reason for reason, _ in fleet.events(access, namespace)}


def test_a_restart_without_a_controller_is_done_by_the_command(
    access: Access, namespace: str
) -> None:
    job = fleet.make_job(access, namespace)
    fleet.make_pods(access, job, 2)
    people = JobOverrides(access, namespace)
    said = ManualRestart(people, QUICK).run("train", "stuck", resume_from=None, is_dry_run=True)
    assert said.body["dry_run"] and said.body["way"] == "delete-pods"
    assert len(said.body["pods"]) == 2
    assert len(pods_of(access, job)) == 2
    said = ManualRestart(people, QUICK).run("train", "stuck", resume_from=None, is_dry_run=False)
    assert said.exit_code == 0 and said.body["by"] == "command"
    assert pods_of(access, job) == ()
    entry = Ledger(access, namespace).read().of(KEY)
    assert entry.notes[-1].why == "stuck" and not entry.is_under_way
    # The Lease is free again.
    assert Lease(access, namespace, "another", times=SHORT).turn()


def test_a_dead_leaders_lease_is_waited_out(access: Access, namespace: str) -> None:
    job = fleet.make_job(access, namespace)
    fleet.make_pods(access, job, 2)
    assert Lease(access, namespace, "dead", times=SHORT).turn()
    said = ManualRestart(JobOverrides(access, namespace), QUICK).run(
        "train", "stuck", resume_from=None, is_dry_run=False
    )
    assert said.body["by"] == "command" and pods_of(access, job) == ()


def test_a_restart_is_handed_to_the_controller_that_leads(access: Access, namespace: str) -> None:
    job = fleet.make_job(access, namespace)
    fleet.make_pods(access, job, 2)
    controller = Controller(access, namespace)
    controller.watch(job, attempt=4)
    with leading(controller):
        said = ManualRestart(JobOverrides(access, namespace), QUICK).run(
            "train", "loss went wrong", resume_from=300, is_dry_run=False
        )
    assert said.body["by"] == "controller" and said.body["taken"]
    controller.until(lambda: controller.manager.state(KEY).doing == "recovering")
    assert pods_of(access, job) == ()
    entry = controller.entry()
    assert entry.request is None and entry.attempt == 5
    told = controller.manager.answer(namespace, "train", "", "train-0", 4)
    assert told is not None and (told["attempt"], told["resume_from"]) == (5, 300)
    assert told["rollbacks"][0]["to_iteration"] == 300
    assert not entry.acts[-1].spends_budget
    controller.close()


def test_a_persons_restart_passes_pause_halt_and_observe(access: Access, namespace: str) -> None:
    job = fleet.make_job(access, namespace, mode="observe")
    fleet.make_pods(access, job, 2)
    people = JobOverrides(access, namespace)
    people.pause("train", None, "mine")
    people.pause_all(None, "mine")
    controller = Controller(access, namespace)
    controller.watch(job)
    with leading(controller):
        said = ManualRestart(people, QUICK).run("train", "", resume_from=None, is_dry_run=False)
    assert said.body["taken"]
    controller.until(lambda: pods_of(access, job) == ())
    controller.close()


def test_what_cannot_be_restarted_is_refused_with_the_reason(
    access: Access, namespace: str
) -> None:
    job = fleet.make_job(access, namespace)
    fleet.make_pods(access, job, 2)
    fleet.admitted(access, job, is_so=False)
    restart = ManualRestart(JobOverrides(access, namespace), QUICK)
    said = restart.run("train", "", resume_from=None, is_dry_run=False)
    assert said.exit_code == 1 and said.body["refused"] == "queued"
    fleet.admitted(access, job, is_so=True)
    with pytest.raises(InputError, match="needs a controller"):
        restart.run("train", "", resume_from=7, is_dry_run=False)
    assert len(pods_of(access, job)) == 2
    JobOverrides(access, namespace).mode("train", "observe", "")
    with pytest.raises(InputError, match="only observed"):
        restart.run("train", "", resume_from=7, is_dry_run=False)
    with pytest.raises(InputError, match="did you mean train"):
        restart.run("trian", "", resume_from=None, is_dry_run=False)


def pods_end(access: Access, job: KubeJob) -> Callable[[float], None]:
    """As the job's own controller does it, one pod at each look."""

    def wait(seconds: float) -> None:
        for pod in pods_of(access, job)[:1]:
            assert access.delete(PODS, job.namespace, pod.name, uid=pod.uid, grace_seconds=0).is_ok

    return wait


def test_a_stop_waits_for_the_pods_and_no_controller_starts_the_job_again(
    access: Access, namespace: str
) -> None:
    job = fleet.make_job(access, namespace, in_queue=False)
    fleet.make_pods(access, job, 2)
    people, saved, lines = JobOverrides(access, namespace), iter([100, 100, 120]), list[str]()
    manual = ManualStop(people, lambda job: next(saved), StopTimes(wait=pods_end(access, job)))
    plan = manual.prepare("train")
    assert plan.checkpoint == 100 and "without a save" in plan.lines[1]
    said = manual.run(plan, "new data", lines.append)
    assert said.exit_code == 0 and said.lines[0] == "train: stopped (suspended)"
    assert said.lines[1:] == (
        "  checkpoint 120 was saved",
        f"  start it again: {said.body['start']}",
    )
    assert said.body["start"] == f"mwatch resume train -n {namespace}"
    assert "train: 1 of 2 pods left" in lines and "train: checkpoint 120 is complete" in lines
    stopped = job_of(access, namespace)
    assert stopped.is_suspended and stopped.annotations[SUSPENDED_BY] == said.body["id"]
    assert Ledger(access, namespace).read().of(KEY).notes[-1].why == "new data"
    assert "MwatchStopped" in {reason for reason, _ in fleet.events(access, namespace)}
    assert manual.run(manual.prepare("train"), "", lines.append).body["refused"] == "suspended"

    controller = Controller(access, namespace)
    fleet.decided(controller.watch(job), Action.RESTART, Cause.HANG)
    controller.until(lambda: controller.manager.state(KEY).held_by == "suspended")
    controller.close()
    assert job_of(access, namespace).is_suspended
    assert "started again" in people.resume("train", "the data is there").lines[0]
    assert not job_of(access, namespace).is_suspended


@pytest.mark.parametrize("kind", [kind for kind in JobKind if kind is not JobKind.JOB])
def test_a_stop_and_a_start_of_each_kind(kind: JobKind, access: Access, namespace: str) -> None:
    name = things.make_of(access, namespace, kind).name
    people = JobOverrides(access, namespace)
    manual = ManualStop(people, lambda job: None, StopTimes(margin_seconds=0.0))
    said = manual.run(manual.prepare(name), "", lambda text: None)
    assert said.exit_code == 0, said.lines
    stopped = find_job(access, namespace, name, kind)
    assert stopped is not None and stopped.is_suspended
    assert people.resume(name, "").lines[0] == f"{name}: started again"
    started = find_job(access, namespace, name, kind)
    assert started is not None and not started.is_suspended
    assert kind is not JobKind.STATEFUL_SET or started.pods_wanted == 2


def test_the_command_stops_a_queued_job_and_not_one_that_is_being_restarted(
    plane: ControlPlane, access: Access, namespace: str
) -> None:
    job = fleet.make_job(access, namespace)
    given = ("stop", "train", "-n", namespace)
    code, out, words = command(plane, *given)
    assert (code, out) == (2, "") and "add --yes" in words
    code, out, _ = command(plane, *given, "--yes", "--json")
    body: dict[str, Any] = json.loads(out)
    assert code == 0 and (body["command"], body["pods_left"]) == ("stop", 0)
    work = workload_for(access, job)
    assert work is not None and not work.is_active
    assert command(plane, "resume", "train", "-n", namespace)[0] == 0
    restart = GangRestart(access, Ledger(access, namespace), may_act=lambda: True)
    fleet.make_pods(access, job, 1)
    wanted = plan_restart(job_of(access, namespace), namespace, access)
    restart.begin(wanted, id="r1", attempt=1, at=time.time())
    code, _, words = command(plane, *given, "--yes")
    assert code == 2 and "is being restarted" in words
    work = workload_for(access, job)
    assert work is not None and work.is_active


def plan_restart(job: KubeJob, namespace: str, access: Access) -> GangPlan:
    pods = pods_of(access, job)
    targets = tuple(Target(pod.name, pod.uid, pod.node) for pod in pods)
    return GangPlan(Method.DELETE_PODS, job.kind, namespace, job.name, job.uid, targets)


def command(plane: ControlPlane, *words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(program(), [*words, "--kubeconfig", str(plane.kubeconfig("admin"))])
    if isinstance(result.exception, InputError | KubeError):
        return 2, result.stdout, str(result.exception)  # as `main` has it
    return result.exit_code, result.stdout, result.stderr


def test_the_commands_show_what_they_did(
    plane: ControlPlane, access: Access, namespace: str
) -> None:
    fleet.make_job(access, namespace)
    given = ("-n", namespace, "--json")
    code, out, _ = command(plane, "pause", "train", "--for", "30m", "--reason", "me", *given)
    body: dict[str, Any] = json.loads(out)
    assert code == 0 and body["command"] == "pause" and body["until"] is not None
    assert command(plane, "pause", "--reason", "x", *given)[0] == 2
    assert command(plane, "pause", "train", "--all", "--reason", "x", *given)[0] == 2
    assert command(plane, "pause", "train", *given)[0] == 2  # a reason is asked for
    code, _, words = command(plane, "pause", "train", "--for", "soon", "--reason", "x", *given)
    assert code == 2 and "30m" in words
    code, out, _ = command(plane, "resume", "train", "-n", namespace)
    assert code == 0 and out.startswith("train: no longer paused")
    code, out, _ = command(plane, "mode", "train", "observe", *given)
    assert code == 0 and json.loads(out)["mode"] == "observe"
    code, out, _ = command(plane, "restart", "train", "--dry-run", *given)
    assert code == 1 and json.loads(out)["refused"] == "no-pods"
    code, _, words = command(plane, "restart", "nothing", "-n", namespace)
    assert code == 2 and "no job is called nothing" in words


def test_no_cluster_is_one_line_and_exit_code_3() -> None:
    result = CliRunner().invoke(
        program(), ["pause", "x", "--reason", "y", "--kubeconfig", "/nonexistent/config"]
    )
    assert result.exit_code == 3 and result.stderr.count("\n") == 1


def test_a_person_without_the_rights_learns_which(
    plane: ControlPlane, access: Access, namespace: str
) -> None:
    fleet.make_job(access, namespace)
    things.let_read(access, namespace, "reader", "batch", "jobs")
    nobody = things.impatient(plane, impersonate="reader")
    people = JobOverrides(nobody, namespace)
    assert people.who == "reader"
    with pytest.raises(KubeError, match=r"patch|cannot"):
        people.pause("train", None, "x")
    nobody.close()


def test_the_role_for_people_is_enough(plane: ControlPlane, access: Access, namespace: str) -> None:
    (role,) = things.manifests("operate.yaml", namespace)
    assert access.create(things.ROLES, namespace, role).is_ok
    about = {"apiGroup": "rbac.authorization.k8s.io"}
    binding = {
        "apiVersion": things.BINDINGS.api_version, "kind": "RoleBinding",
        "metadata": {"name": "ann"}, "roleRef": {**about, "kind": "Role", "name": "mwatch-operate"},
        "subjects": [{**about, "kind": "User", "name": "ann"}],
    }  # fmt: skip
    assert access.create(things.BINDINGS, namespace, binding).is_ok
    job = fleet.make_job(access, namespace)
    fleet.make_pods(access, job, 2)
    ours = things.impatient(plane, impersonate="ann")
    people = JobOverrides(ours, namespace)
    things.wait_for(lambda: _may(people), "the role is in force")
    assert people.who == "ann"
    for said in (
        people.pause("train", 60.0, "x"), people.resume("train", "x"), people.pause_all(None, "x"),
        people.resume_all("x"), people.mode("train", "observe", "x"),
        ManualRestart(people, QUICK).run("train", "x", resume_from=None, is_dry_run=False),
    ):  # fmt: skip
        assert said.exit_code == 0 and not any("not in the ledger" in each for each in said.lines)
        assert not any("Event" in each for each in said.lines)
    assert pods_of(access, job) == ()
    ours.close()


def _may(people: JobOverrides) -> bool:
    try:
        people.find("train")
    except KubeError:
        return False
    return True
