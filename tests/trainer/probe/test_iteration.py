# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Finished iterations, read from trainers as they store them."""

from __future__ import annotations

import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from mwatch_trainer.probe.probe import UNKNOWN, IterationReader
from mwatch_trainer.probe.stack import Stack, of_thread
from support.builders.probe import place, stack

TRAINING = "/opt/megatron/training/training.py"
PRETRAIN = (TRAINING, "pretrain")
TRAIN = (TRAINING, "train")
STEP = (TRAINING, "train_step")
IN_STEP = stack(PRETRAIN, TRAIN, STEP)


@pytest.fixture
def args(monkeypatch: pytest.MonkeyPatch) -> Namespace:
    """Megatron's global arguments."""
    return megatron(monkeypatch, "megatron.training.global_vars")


def megatron(monkeypatch: pytest.MonkeyPatch, name: str) -> Namespace:
    module, found = ModuleType(name), Namespace()
    module._GLOBAL_ARGS = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    return found


def loop(*inner: str, is_old: bool = False) -> Stack:
    """Megatron's loop and what it has called."""
    names: dict[str, Any] = {} if is_old else {"checkpoint_and_decide_exit": None}
    inside = [place(TRAINING, name) for name in reversed(inner)]
    return [*inside, place(TRAINING, "train", names=names), place(TRAINING, "pretrain")]


def reader() -> IterationReader:
    return IterationReader(threading.main_thread().ident or 0)


def test_without_a_known_trainer_it_is_unknown() -> None:
    assert reader().read(IN_STEP) == UNKNOWN


@pytest.mark.parametrize("name", ["megatron.training.global_vars", "megatron.global_vars"])
def test_during_a_step_megatron_names_what_is_finished(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    args = megatron(monkeypatch, name)
    args.iteration, args.curr_iteration = 0, 610
    assert reader().read(IN_STEP) == 610


@pytest.mark.parametrize(
    "callee", ["training_log", "evaluate_and_print_results", "checkpoint_and_decide_exit"]
)
def test_after_the_step_one_more_is_finished(args: Namespace, callee: str) -> None:
    args.curr_iteration = 610
    assert reader().read(loop(callee, "anything")) == 611


def test_old_releases_save_from_the_loop_after_the_step(args: Namespace) -> None:
    args.curr_iteration = 610
    assert reader().read(loop("save_checkpoint_and_time", is_old=True)) == 611
    assert reader().read(loop("save_checkpoint_and_time")) == 610


def test_a_resume_does_not_begin_at_zero(args: Namespace) -> None:
    args.iteration, args.curr_iteration = 5000, 0  # as core_v0.17 has it until the first step
    assert reader().read(loop("train_step")) == 5000


def test_a_resume_of_an_older_release_has_no_current_iteration_yet(args: Namespace) -> None:
    args.iteration = 5000
    assert reader().read(loop()) == 5000


def test_before_the_loop_the_numbers_are_those_of_a_checkpoint(args: Namespace) -> None:
    args.iteration = 5000  # of a checkpoint that is fine-tuned from 0
    assert reader().read(stack(PRETRAIN, ("checkpointing.py", "load_checkpoint"))) == UNKNOWN


def test_after_the_loop_the_last_iteration_is_finished(args: Namespace) -> None:
    args.curr_iteration = 99
    iterations = reader()
    assert iterations.read(IN_STEP) == 99
    assert iterations.read(stack(PRETRAIN, (TRAINING, "evaluate"))) == 100
    assert iterations.read([]) == 100


def test_it_does_not_step_back_between_two_iterations(args: Namespace) -> None:
    args.curr_iteration = 610
    iterations = reader()
    assert iterations.read(loop("training_log")) == 611
    assert iterations.read(loop("maybe_finalize_async_save")) == 611
    args.curr_iteration = 611
    assert iterations.read(loop("train_step")) == 611


def test_a_restart_inside_the_process_does_step_back(args: Namespace) -> None:
    args.curr_iteration = 610
    iterations = reader()
    iterations.read(IN_STEP)
    args.curr_iteration = 600
    assert iterations.read(IN_STEP) == 600


@pytest.mark.parametrize("value", [None, "7", 7.0, True, -3, 1 << 80])
def test_a_strange_value_is_unknown(args: Namespace, value: Any) -> None:
    args.curr_iteration = value
    assert reader().read(IN_STEP) == UNKNOWN


def test_no_code_of_the_trainer_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loud:
        @property
        def curr_iteration(self) -> int:
            raise AssertionError("a property was run")

        def __getattr__(self, name: str) -> int:
            raise AssertionError(f"asked for {name}")

    module = ModuleType("megatron.training.global_vars")
    module._GLOBAL_ARGS = Loud()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert reader().read(IN_STEP) == UNKNOWN


def test_our_own_trainer_counts_when_it_has_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    progress: Any = ModuleType("mwatch_gpt.progress")
    monkeypatch.setitem(sys.modules, "mwatch_gpt.progress", progress)
    progress.iteration, progress.phase = 0, "starting"
    iterations = reader()
    assert iterations.read([]) == UNKNOWN
    progress.iteration, progress.phase = 40, "training"
    assert iterations.read([]) == 40
    progress.phase = "saving"
    assert iterations.read([]) == 40


COMPOSER = '''
class Time:
    def __init__(self, value): self._value = value
class Timestamp:
    def __init__(self, batch): self._batch = Time(batch)
class State:
    def __init__(self): self.timestamp = Timestamp(7)
class Trainer:
    def __init__(self): self.state = State()
    def fit(self, look):
        look()
        self.state.timestamp = Timestamp(8)
        look()
'''  # fmt: skip


@pytest.fixture
def composer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A trainer with the names and the shape of Composer's."""
    names: dict[str, Any] = {}
    exec(compile(COMPOSER, "/opt/composer/trainer/trainer.py", "exec"), names)
    name = "composer.trainer.trainer"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    yield names["Trainer"]


def test_composers_batch_is_found_from_its_fit(composer: Any) -> None:
    main = threading.get_ident()
    iterations = IterationReader(main)
    seen: list[int] = []
    assert iterations.read(of_thread(main)) == UNKNOWN
    composer().fit(lambda: seen.append(iterations.read(of_thread(main))))
    assert seen == [7, 8]


def test_a_trainer_of_composer_is_not_kept_alive(composer: Any) -> None:
    main = threading.get_ident()
    iterations = IterationReader(main)
    trainer = composer()
    trainer.fit(lambda: iterations.read(of_thread(main)))
    assert iterations._composer() is trainer
    del trainer
    assert iterations._composer() is None
    assert iterations.read([]) == 8
