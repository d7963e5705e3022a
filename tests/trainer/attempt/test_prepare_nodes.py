# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Several wrappers of one job agree on an attempt, each with its own view of the folder.

The view is a folder of links: what a network file system shows late is not linked yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mwatch_trainer.attempt.plan import AttemptPlan
from mwatch_trainer.command.argv import value_of
from support.builders.attempt import act, broken, contents, megatron, ran, saved, timeline_of

TRACKER = "latest_checkpointed_iteration.txt"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def view_of(save: Path, view: Path, *names: str) -> Path:
    """This node sees `.mwatch`, the tracker and these checkpoints."""
    view.mkdir()
    (save / ".mwatch").mkdir(exist_ok=True)
    for name in (".mwatch", TRACKER, *names):
        (view / name).symlink_to(save / name)
    return view


def started(
    tmp_path: Path, save: Path, node: int, nnodes: int = 2, wait: float = 100.0
) -> Callable[[], AttemptPlan]:
    """Begins a preparation in a thread; the call waits for its plan."""
    script = megatron(tmp_path / f"w{node}")
    given = ["torchrun", f"--nnodes={nnodes}", f"--node_rank={node}", script]
    given += ["--save", str(save), "--load", str(save)]
    plans: list[AttemptPlan] = []
    volume = tmp_path / f"v{node}"
    thread = threading.Thread(target=lambda: plans.append(act(given, volume, wait=wait)))
    thread.start()

    def plan() -> AttemptPlan:
        thread.join(120)
        assert not thread.is_alive()
        return plans[0]

    return plan


def test_all_nodes_take_the_choice_of_node_0(tmp_path: Path) -> None:
    save = broken(saved(tmp_path / "ck", 10, 20), 30).parent
    waiting = [started(tmp_path, save, node, 3) for node in (2, 1, 0)]
    plans = [plan() for plan in waiting]
    assert [each.refused for each in plans] == [None] * 3
    assert {each.number for each in plans} == {1} and {each.resume_from for each in plans} == {20}
    assert {value_of(each.argv, "--ckpt-step") for each in plans} == {"20"}
    assert set(timeline_of(save)["claim"]["heard"]) == {"1", "2"}


def test_a_node_with_an_older_view_does_not_choose_alone(tmp_path: Path) -> None:
    """Node 1 sees 10 alone; node 0 sees and chooses 20; node 1 goes for a restart."""
    save = saved(tmp_path / "ck", 10, 20)
    view = view_of(save, tmp_path / "view", "iter_0000010")
    ran(tmp_path / "v0", 1)
    first = started(tmp_path, save, 0)
    other = started(tmp_path, view, 1, wait=5.0)
    assert other().exit_code == 202 and first().resume_from == 20
    refused = other().refused
    assert refused is not None and "iter_0000020" in refused


def test_a_node_waits_until_it_sees_the_choice(tmp_path: Path) -> None:
    save = saved(tmp_path / "ck", 10, 20)
    view = view_of(save, tmp_path / "view", "iter_0000010")
    ran(tmp_path / "v0", 1)
    first = started(tmp_path, save, 0)
    other = started(tmp_path, view, 1)
    assert first().resume_from == 20
    (view / "iter_0000020").symlink_to(save / "iter_0000020")
    assert other().refused is None and other().resume_from == 20


def test_a_node_with_a_newer_view_does_not_choose_alone(tmp_path: Path) -> None:
    """What node 0 does not see yet is not taken, also by a node that sees it."""
    save = saved(tmp_path / "ck", 10, 20)
    view = view_of(save, tmp_path / "view", "iter_0000010")
    ran(tmp_path / "v0", 1)
    plans = [started(tmp_path, view, 0), started(tmp_path, save, 1)]
    assert [plan().resume_from for plan in plans] == [10, 10]


def test_the_choice_of_the_last_attempt_is_not_taken_for_this_one(tmp_path: Path) -> None:
    save = saved(tmp_path / "ck", 10)
    plans = [started(tmp_path, save, node) for node in (0, 1)]
    assert [plan().number for plan in plans] == [1, 1]
    before = contents(save)
    alone = started(tmp_path, save, 1, wait=0.5)()
    assert alone.exit_code == 202 and contents(save) == before
    saved(save, 20)
    plans = [started(tmp_path, save, node) for node in (1, 0)]
    assert [(plan().number, plan().resume_from) for plan in plans] == [(2, 20), (2, 20)]


def test_an_answer_to_an_older_call_is_not_noticed(tmp_path: Path) -> None:
    save = saved(tmp_path / "ck", 10)
    assert started(tmp_path, save, 0, wait=0.3)().exit_code == 202
    assert started(tmp_path, save, 1, wait=0.3)().exit_code == 202
    assert (save / ".mwatch" / "join" / "node-1.json").exists()
    plan = started(tmp_path, save, 0, wait=0.5)()
    assert plan.refused is not None and "node 1 of 2" in plan.refused
    assert not (save / ".mwatch" / "timeline.json").exists()


def test_where_the_tracker_leads_every_node_sees_it_first(tmp_path: Path) -> None:
    save = broken(saved(tmp_path / "ck", 10, 20), 30).parent
    view = view_of(save, tmp_path / "view", "iter_0000010", "iter_0000020", "iter_0000030")
    (view / TRACKER).unlink()
    (view / TRACKER).write_text("30")
    for node in (0, 1):
        megatron(tmp_path / f"w{node}", "iteration = -1\n")
    plans = []
    for node, folder in ((0, save), (1, view)):
        script = str(tmp_path / f"w{node}" / "pretrain_gpt.py")
        given = ["torchrun", "--nnodes=2", f"--node_rank={node}", script]
        given += ["--save", str(folder), "--load", str(folder)]
        plans.append(given)
    found: list[AttemptPlan] = []
    thread = threading.Thread(target=lambda: found.append(act(plans[1], tmp_path / "v1", wait=100)))
    thread.start()
    first = act(plans[0], tmp_path / "v0", wait=100)
    assert first.refused is None and (save / TRACKER).read_text() == "20"
    thread.join(0.3)
    assert thread.is_alive()
    (view / TRACKER).write_text("20")
    thread.join(120)
    assert found[0].refused is None and value_of(found[0].argv, "--ckpt-step") is None


def test_where_nobody_can_be_node_0_the_command_runs_as_it_was_given(tmp_path: Path) -> None:
    save = broken(saved(tmp_path / "ck", 10), 20).parent
    before = contents(save)
    for options in (["--nnodes=2"], ["--nnodes=1:8", "--node_rank=0"]):
        given = ["torchrun", *options, megatron(tmp_path / "w"), "--save", str(save)]
        plan = act(given, tmp_path / "v")
        assert plan.argv == tuple(given) and plan.refused is None
        assert "it is unknown whether" in plan.resume_reason
    assert contents(save) == before
