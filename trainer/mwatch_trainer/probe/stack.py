# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The stack of a thread, and the trainer's phase derived from the functions on it.

A reference to a frame keeps its function's local variables alive, including tensors. So the walk
copies names and line numbers and drops each frame immediately. It reads no local variable.

One table of functions serves Megatron-LM (core_v0.4 to 0.20), Composer and `mwatch_gpt`;
derivatives with the same names (Megatron-DeepSpeed, NeMo) are recognized too. An outer function
takes precedence: a barrier inside a save is part of the save. In other programs only steps are
recognized, by a backward pass or an optimizer.

CUDA runs asynchronously: a rank that waits for an NCCL collective usually appears where it waits
for the device, in `compute`. The flight recorder shows which collective it is.
"""

from __future__ import annotations

import sys
from binascii import crc32
from types import CodeType, FrameType
from typing import Any, Dict, List, Tuple

MAX_DEPTH = 256  # A model of many layers under recomputation is about 150 deep
LINES = 32  # innermost frames with a line number, which costs more than everything else
_LIBRARIES = ("/torch/", "/lib/python3", "/mwatch_trainer/", "<frozen", "<string>")
_SITE = "/site-packages/"
_DULL = frozenset(("__torch_function__", "_call_impl", "_wrapped_call_impl", "<module>"))
"""Functions without information: every call of a model goes through them, and a `<module>` is only
waiting for a module that it imports."""

Place = Tuple[CodeType, int, Dict[str, Any]]
"""The function, its line (0: not read), and its module's variables."""
Stack = List[Place]  # innermost first


def can_be_read() -> bool:
    """Whether frames can be read: in a free-threaded Python they change while being read."""
    is_gil_enabled = getattr(sys, "_is_gil_enabled", None)
    return is_gil_enabled is None or bool(is_gil_enabled())


def of_thread(ident: int) -> Stack:
    return walk(sys._current_frames().pop(ident, None), LINES) if can_be_read() else []


def walk(frame: FrameType | None, lines: int = MAX_DEPTH) -> Stack:
    stack: Stack = []
    while frame is not None and lines > 0:
        stack.append((frame.f_code, frame.f_lineno or 0, frame.f_globals))
        frame = frame.f_back
        lines -= 1
    depth = MAX_DEPTH - len(stack)
    while frame is not None and depth > 0:
        stack.append((frame.f_code, 0, frame.f_globals))
        frame = frame.f_back
        depth -= 1
    return stack


def digest(stack: Stack) -> str:
    """Hash the innermost places; equal across the ranks of one program."""
    if not stack:
        return ""
    text = "|".join(
        [f"{code.co_filename}:{code.co_name}:{line}" for code, line, _ in stack[:LINES]]
    )
    return f"{crc32(text.encode('utf-8', 'replace')):08x}"


def where(stack: Stack) -> str:
    """Describe the innermost place outside of libraries, else the innermost."""
    for place in stack[:LINES]:
        if not is_dull(place[0].co_filename, place[0].co_name):
            return _described(place)
    return _described(stack[0]) if stack else ""


def is_dull(file: str, function: str) -> bool:
    """Whether the place belongs to a library or has no information about the program."""
    is_library = any(part in file for part in _LIBRARIES) and not _is_of_a_trainer(file)
    return is_library or function in _DULL


def _is_of_a_trainer(file: str) -> bool:
    """Whether a file among the installed libraries is Megatron's, Composer's or the like."""
    _, is_installed, path = file.rpartition(_SITE)
    return bool(is_installed) and not path.startswith(("torch/", "triton/", "mwatch_trainer/"))


def _described(place: Place) -> str:
    tail = "/".join(place[0].co_filename.split("/")[-3:])
    return f"{tail}:{place[1]} {place[0].co_name}"


STARTING = "starting"
LOADING = "loading"
SAVING = "saving"
FINALIZING = "async-finalize"
EVALUATING = "evaluating"
STOPPING = "stopping"
COLLECTIVE = "collective"
DATA = "data"
COMPUTE = "compute"
UNKNOWN = ""

_LOOP = "loop"
_LAST_LOOP = "last loop"  # the program ends after it
_PREPARING = "preparing"
_STEP = "step"
_OUTER = frozenset((LOADING, SAVING, FINALIZING, EVALUATING, STOPPING))

_MEGATRON = (
    "megatron/training.py", "training/training.py",
    "bridge/training/train.py", "bridge/training/eval.py", "mwatch_gpt/",
)  # fmt: skip


def _ends(files: tuple[str, ...], meaning: str) -> tuple[tuple[str, str], ...]:
    return tuple((file, meaning) for file in files)


# Function -> suffix of its file's path, and its meaning. An empty suffix: the name is sufficient.
_FUNCTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    # The training loop and its surroundings.
    "pretrain": _ends(_MEGATRON, _PREPARING),
    "initialize_megatron": (("", _PREPARING),),
    "train": _ends(_MEGATRON, _LAST_LOOP),
    "train_step": _ends(_MEGATRON, _LAST_LOOP),
    "_train_loop": (("composer/trainer/trainer.py", _LOOP),),
    "fit": (("composer/trainer/trainer.py", _PREPARING),),
    # Checkpoints.
    "save_checkpoint": (("", SAVING),),
    "save_checkpoint_and_time": (("", SAVING),),
    "_save_checkpoint": (("", SAVING),),
    "save_checkpoint_to_disk": (("", SAVING),),
    "load_checkpoint": (("", LOADING),),
    "load_sharded_checkpoint": (("", LOADING),),
    "load_biencoder_checkpoint": (("", LOADING),),
    "maybe_finalize_async_save": (("", FINALIZING),),
    "finish": (("mwatch_gpt/run_state.py", FINALIZING),),
    # Evaluation.
    "evaluate": _ends(_MEGATRON, EVALUATING),
    "evaluate_and_print_results": (("", EVALUATING),),
    "evaluate_and_print_results_rl": (("", EVALUATING),),
    "_eval_loop": (("composer/trainer/trainer.py", EVALUATING),),
    "_run_evaluators": (("composer/trainer/trainer.py", EVALUATING),),
    # The end of the program.
    "_shutdown": (("threading.py", STOPPING), ("logging/__init__.py", STOPPING)),
    "_python_exit": (("concurrent/futures/thread.py", STOPPING),),
    "_exit_function": (("multiprocessing/util.py", STOPPING),),
    "destroy_process_group": (("distributed_c10d.py", STOPPING),),
    "destroy_model_parallel": (("", STOPPING),),
    "close": (("composer/trainer/trainer.py", STOPPING), ("composer/core/engine.py", STOPPING)),
    # Waiting for other ranks, where no function of torch.distributed is on the stack.
    "_communicate": (("p2p_communication.py", COLLECTIVE),),
    "_communicate_shapes": (("p2p_communication.py", COLLECTIVE),),
    "finish_grad_sync": (("", COLLECTIVE),),
    "finish_param_sync": (("", COLLECTIVE),),
    "wait_tensor": (("", COLLECTIVE),),
    # Steps of any program.
    "backward": (("torch/autograd/__init__.py", _STEP), ("torch/_tensor.py", _STEP)),
    "wrapper": (("torch/optim/optimizer.py", _STEP),),
}
_FILES = {
    "distributed_c10d.py": ("torch/distributed/distributed_c10d.py", COLLECTIVE),
    "_functional_collectives.py": ("torch/distributed/_functional_collectives.py", COLLECTIVE),
    "functional.py": ("torch/distributed/nn/functional.py", COLLECTIVE),
    "dataloader.py": ("torch/utils/data/dataloader.py", DATA),
    "state_dict_saver.py": ("torch/distributed/checkpoint/state_dict_saver.py", SAVING),
    "state_dict_loader.py": ("torch/distributed/checkpoint/state_dict_loader.py", LOADING),
}
_KNOWN_TRAINERS = (
    "megatron.training", "megatron.global_vars", "composer.trainer.trainer", "mwatch_gpt"
)  # fmt: skip
_MAX_REMEMBERED = 8192


class PhaseReader:
    """Determines the phase from successive stacks of one process."""

    def __init__(self) -> None:
        self._meanings: dict[int, tuple[CodeType, str]] = {}
        self._has_looped = False
        self._ends_with_loop = False
        self._has_prepared = False
        self._has_stepped = False

    def read(self, stack: Stack) -> str:
        inner = outer = UNKNOWN
        is_looping = False
        for code, _, _ in stack:
            known = self._meanings.get(id(code))
            meaning = known[1] if known is not None else self._learn(code)
            if not meaning:
                continue
            if meaning in (_LOOP, _LAST_LOOP):
                is_looping = self._has_looped = True
                self._ends_with_loop = meaning == _LAST_LOOP
            elif meaning == _PREPARING:
                self._has_prepared = True
            elif meaning == _STEP:
                self._has_stepped = True
            elif meaning in _OUTER:
                outer = meaning
            elif not inner:
                inner = meaning
        if outer:
            return outer
        if is_looping:
            return inner or COMPUTE
        return self._outside(inner) if stack else UNKNOWN

    @property
    def is_training(self) -> bool:
        """Whether a training step or a known trainer has been seen."""
        return self._has_looped or self._has_prepared or self._has_stepped

    def _outside(self, inner: str) -> str:
        """Return the phase outside of a known loop: before it, after it, or in other programs."""
        if self._has_looped:
            return STOPPING if self._ends_with_loop else UNKNOWN
        if self._has_prepared or any(name in sys.modules for name in _KNOWN_TRAINERS):
            return STARTING
        return (inner or COMPUTE) if self._has_stepped else UNKNOWN

    def _learn(self, code: CodeType) -> str:
        """Look up the meaning and cache it with the code object, which keeps its id unique."""
        if len(self._meanings) >= _MAX_REMEMBERED:
            self._meanings.clear()
        meaning = meaning_of(code.co_filename, code.co_name)
        self._meanings[id(code)] = (code, meaning)
        return meaning


def meaning_of(file: str, function: str) -> str:
    for end, meaning in _FUNCTIONS.get(function, ()):
        if file.endswith(end) or (end.endswith("/") and end in file):
            return meaning
    if function == "<module>":
        return UNKNOWN  # it is being imported
    rule: tuple[str, str] | None = _FILES.get(file.rpartition("/")[2])
    return rule[1] if rule is not None and file.endswith(rule[0]) else UNKNOWN
