# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How many iterations the trainer has finished, read without running any of its code.

Only modules that are there already and plain attributes of plain objects are looked at.

Megatron (core_v0.4 to 0.20) sets `args.curr_iteration` when it begins an iteration to the number
of those finished, and leaves it while it logs, evaluates and saves after the step: there one more
is finished. On a resume it is missing or 0 until the first step, and `args.iteration` tells where
the loop begins; that one in turn may be a checkpoint's before the loop, so neither counts there.
"""

from __future__ import annotations

import sys
import weakref
from types import CodeType, FrameType
from typing import Any, Callable

from mwatch_trainer.probe_stack import Stack

UNKNOWN = -1
_MAX = 1 << 60
_MEGATRON_ARGS = ("megatron.training.global_vars", "megatron.global_vars")
_MEGATRON_LOOP = ("megatron/training.py", "training/training.py")
_MEGATRON_FUNCTIONS = ("train", "pretrain")
_AFTER_THE_STEP = frozenset(
    (
        "training_log", "evaluate_and_print_results", "evaluate_and_print_results_rl",
        "post_training_step_callbacks", "checkpoint_and_decide_exit",
    )
)  # fmt: skip
_COMPOSER = "composer.trainer.trainer"
_COMPOSER_FILE = "composer/trainer/trainer.py"


class IterationReader:
    """Of one process. `main` is the thread that trains."""

    def __init__(self, main: int) -> None:
        self._main = main
        self._last = UNKNOWN
        self._megatron_has_looped = False
        self._composer: Callable[[], Any] = _nothing

    def read(self, stack: Stack) -> int:
        found = _ours()
        if found == UNKNOWN:
            found = self._of_megatron(stack)
        if found == UNKNOWN and _COMPOSER in sys.modules:
            found = self._of_composer(stack)
        # Between the end of an iteration and the begin of the next the places differ by one.
        if found not in (UNKNOWN, self._last - 1):
            self._last = found
        return self._last

    def _of_megatron(self, stack: Stack) -> int:
        """Only inside of the loop and after it: before it the numbers mean something else."""
        begun = max(_megatron_arg("curr_iteration"), _megatron_arg("iteration"))
        if begun == UNKNOWN:
            return UNKNOWN
        inner = ""
        for place in stack:
            code = place[0]
            if code.co_name in _MEGATRON_FUNCTIONS and code.co_filename.endswith(_MEGATRON_LOOP):
                break
            inner = code.co_name
        else:
            return UNKNOWN
        if code.co_name == "train":
            self._megatron_has_looped = True
            # Older ones save from the loop itself; newer ones do so there for other reasons.
            is_old = "checkpoint_and_decide_exit" not in place[2]
            is_after = inner in _AFTER_THE_STEP or (is_old and inner == "save_checkpoint_and_time")
        elif self._megatron_has_looped:
            is_after = True  # the loop ends with a finished iteration
        else:
            return UNKNOWN
        return begun + is_after

    def _of_composer(self, stack: Stack) -> int:
        trainer = self._composer()
        if trainer is None:
            if not any(_is_composer_fit(code) for code, _, _ in stack):
                return UNKNOWN
            trainer = _trainer_of_fit(self._main)
            if trainer is None:
                return UNKNOWN
            self._composer = weakref.ref(trainer)
        timestamp = _plain(_plain(trainer, "state"), "timestamp")
        return _count(_plain(_plain(timestamp, "_batch"), "_value"))


def _ours() -> int:
    """Of `mwatch_gpt`, which counts from 0 until it has loaded its checkpoint."""
    progress = sys.modules.get("mwatch_gpt.progress")
    if progress is None or _plain(progress, "phase") in ("starting", "loading"):
        return UNKNOWN
    return _count(_plain(progress, "iteration"))


def _megatron_arg(name: str) -> int:
    for module in _MEGATRON_ARGS:
        arguments = _plain(sys.modules.get(module), "_GLOBAL_ARGS")
        if arguments is not None:
            return _count(_plain(arguments, name))
    return UNKNOWN


def _is_composer_fit(code: CodeType) -> bool:
    return code.co_name == "fit" and code.co_filename.endswith(_COMPOSER_FILE)


def _trainer_of_fit(main: int) -> Any | None:
    """`self` of the running `Trainer.fit`, the one local variable that the probe ever reads.

    Up to Python 3.12 this leaves a copy of the function's variables at its frame. Those of `fit`
    are its arguments, alive as long as it runs; it is read once.
    """
    frame: FrameType | None = sys._current_frames().pop(main, None)
    depth = 0
    while frame is not None and depth < 256:
        if _is_composer_fit(frame.f_code):
            # A debugger writes such a copy back: keep away.
            return frame.f_locals.get("self") if frame.f_trace is None else None
        frame, depth = frame.f_back, depth + 1
    return None


def _plain(thing: Any, name: str) -> Any:
    """The attribute as it is stored: no property and no `__getattr__` is run."""
    try:
        return object.__getattribute__(thing, "__dict__").get(name)
    except Exception:
        return None


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < _MAX else UNKNOWN


def _nothing() -> None:
    return None
