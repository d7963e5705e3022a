# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The phase by the stack of the main thread."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from mwatch_trainer.probe import stack as probe_phase
from mwatch_trainer.probe.stack import PhaseReader
from support.builders.probe import stack

SITE = "/usr/lib/python3.12/site-packages"
TRAINING = f"{SITE}/megatron/training/training.py"
OLD = "/workspace/megatron/training.py"
CHECKPOINTING = f"{SITE}/megatron/training/checkpointing.py"
COMPOSER = f"{SITE}/composer/trainer/trainer.py"
C10D = f"{SITE}/torch/distributed/distributed_c10d.py"
LOADER = f"{SITE}/torch/utils/data/dataloader.py"
MAIN = ("pretrain_gpt.py", "<module>")
PRETRAIN = (TRAINING, "pretrain")
TRAIN = (TRAINING, "train")
STEP = (TRAINING, "train_step")
SAVE = (CHECKPOINTING, "save_checkpoint")
SAVE_AND_TIME = (TRAINING, "save_checkpoint_and_time")
SETUP = (TRAINING, "setup_model_and_optimizer")
RESULTS = (TRAINING, "evaluate_and_print_results")
LOAD = (CHECKPOINTING, "load_checkpoint")


@pytest.fixture(autouse=True)
def _no_trainer_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of the same process may have imported one."""
    for name in probe_phase._KNOWN_TRAINERS:
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([PRETRAIN, SETUP], "starting"),
        ([PRETRAIN, ("megatron/initialize.py", "initialize_megatron")], "starting"),
        ([PRETRAIN, SETUP, LOAD], "loading"),
        ([PRETRAIN, TRAIN, STEP, ("model.py", "forward")], "compute"),
        ([PRETRAIN, TRAIN], "compute"),
        ([(OLD, "pretrain"), (OLD, "train"), (OLD, "train_step")], "compute"),
        ([PRETRAIN, TRAIN, STEP, ("ddp.py", "reduce"), (C10D, "all_reduce")], "collective"),
        ([PRETRAIN, TRAIN, STEP, ("core/p2p_communication.py", "_communicate")], "collective"),
        ([PRETRAIN, TRAIN, STEP, ("buffer.py", "finish_grad_sync")], "collective"),
        ([PRETRAIN, TRAIN, STEP, ("pretrain_gpt.py", "get_batch"), (LOADER, "__next__")], "data"),
        ([PRETRAIN, TRAIN, SAVE_AND_TIME, SAVE], "saving"),
        ([PRETRAIN, TRAIN, SAVE_AND_TIME, SAVE, (C10D, "barrier")], "saving"),
        ([PRETRAIN, TRAIN, RESULTS, (C10D, "barrier")], "evaluating"),
        ([PRETRAIN, (TRAINING, "evaluate"), (LOADER, "__next__")], "evaluating"),
        ([PRETRAIN, TRAIN, ("async_utils.py", "maybe_finalize_async_save")], "async-finalize"),
        ([PRETRAIN, TRAIN, SAVE, ("async_utils.py", "maybe_finalize_async_save")], "saving"),
        ([(COMPOSER, "fit"), (COMPOSER, "_train_loop"), (COMPOSER, "_train_batch")], "compute"),
        ([(COMPOSER, "fit"), (COMPOSER, "_train_loop"), (COMPOSER, "_eval_loop")], "evaluating"),
        ([(COMPOSER, "fit"), (COMPOSER, "_train_loop"), ("x.py", "_save_checkpoint")], "saving"),
        ([(COMPOSER, "__init__"), ("composer/utils/checkpoint.py", "load_checkpoint")], "loading"),
        ([(COMPOSER, "fit")], "starting"),
        ([("trainer/mwatch_gpt/loop.py", "train"), (C10D, "all_reduce")], "collective"),
        ([("/usr/lib/python3.12/threading.py", "_shutdown")], "stopping"),
        ([TRAIN, (C10D, "destroy_process_group")], "stopping"),
        ([(COMPOSER, "close")], "stopping"),
    ],
)  # fmt: skip
def test_a_place_of_a_known_trainer_has_its_phase(
    places: list[tuple[str, str]], expected: str
) -> None:
    assert PhaseReader().read(stack(MAIN, *places)) == expected


def test_after_the_loop_of_megatron_the_program_ends() -> None:
    reader = PhaseReader()
    assert reader.read(stack(MAIN, PRETRAIN, TRAIN)) == "compute"
    assert reader.read(stack(MAIN, PRETRAIN, ("wandb/run.py", "finish"))) == "stopping"
    assert reader.read(stack(MAIN)) == "stopping"
    assert reader.read(stack(MAIN, PRETRAIN, SAVE)) == "saving"


def test_after_a_loop_of_composer_another_may_follow() -> None:
    reader = PhaseReader()
    assert reader.read(stack((COMPOSER, "fit"), (COMPOSER, "_train_loop"))) == "compute"
    assert reader.read(stack(MAIN)) == ""
    assert reader.read(stack((COMPOSER, "fit"), (COMPOSER, "_train_loop"))) == "compute"


def test_of_another_program_nothing_is_reported_before_its_first_step() -> None:
    reader = PhaseReader()
    assert reader.read(stack(MAIN, ("mine.py", "train"), (C10D, "barrier"))) == ""
    assert not reader.is_training


def test_of_another_program_the_steps_are_known_once_one_was_seen() -> None:
    reader = PhaseReader()
    backward = (f"{SITE}/torch/autograd/__init__.py", "backward")
    assert reader.read(stack(MAIN, backward)) == "compute"
    assert reader.is_training
    assert reader.read(stack(MAIN, (C10D, "all_reduce"))) == "collective"
    assert reader.read(stack(MAIN, (LOADER, "__next__"))) == "data"
    assert reader.read(stack(MAIN, ("mine.py", "log"))) == "compute"
    assert reader.read(stack(MAIN, ("mine.py", "save_checkpoint"))) == "saving"


def test_a_known_trainer_that_is_only_imported_is_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "megatron.training", ModuleType("megatron.training"))
    assert PhaseReader().read(stack(MAIN, (C10D, "init_process_group"))) == "starting"


def test_the_import_of_what_saves_is_no_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds on a cold disk, and a save before the first step would be another run."""
    monkeypatch.setitem(sys.modules, "megatron.training", ModuleType("megatron.training"))
    for name in ("state_dict_saver", "state_dict_loader"):
        file = f"{SITE}/torch/distributed/checkpoint/{name}.py"
        assert PhaseReader().read(stack(MAIN, (file, "<module>"), ("x.py", "f"))) == "starting"
        assert PhaseReader().read(stack(MAIN, (file, "save"))) in ("saving", "loading")


def test_functions_of_the_same_name_elsewhere_mean_nothing() -> None:
    reader = PhaseReader()
    for name in ("train", "evaluate", "close", "fit", "pretrain", "wrapper"):
        assert reader.read(stack(MAIN, ("mine.py", name))) == ""
    assert not reader.is_training


def test_a_thread_without_a_stack_has_no_phase() -> None:
    assert PhaseReader().read([]) == ""


def test_what_is_remembered_of_functions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_phase, "_MAX_REMEMBERED", 3)
    reader = PhaseReader()
    for number in range(20):
        assert reader.read(stack(MAIN, PRETRAIN, TRAIN, (f"{number}.py", "f"))) == "compute"
    assert len(reader._meanings) <= 3
