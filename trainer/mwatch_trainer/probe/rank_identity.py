# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Determines from environment and command line whether this process is a rank of the job.

Data-loader workers, checkpoint writers and all other children of a rank inherit `RANK` and the
probe. So a rank marks its environment with its pid and ranks: a process with another pid's mark and
the same ranks is a child, one with other ranks (a launcher's worker) is a rank itself.

Launchers set `RANK` and `LOCAL_RANK` for their workers. `RANK` alone is not enough: on Kubernetes
it is the number of the pod, and torchrun itself has it. Such a process, and one with neither
variable, may be a rank: it becomes one when it is observed to train.

Not detected: a worker that runs the real trainer as its own child, with the same ranks. Every
Python process under the wrapper imports this module, so it imports only modules that are already
loaded.
"""

from __future__ import annotations

import os
import sys

from mwatch_trainer import rank_variables as names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Sequence

NOT_A_RANK, MAYBE_RANK, RANK = 0, 1, 2

OWNER_VARIABLE = "MWATCH_PROBE_OWNER"
"""Marks the environment of a rank. The wrapper removes it: if a rank started the wrapper, the mark
does not apply to the wrapper's own ranks."""

_LAUNCHERS = frozenset(
    (
        "torchrun", "torch.distributed.run", "torch.distributed.launch",
        "composer", "composer.cli.launcher", "deepspeed", "deepspeed.launcher.launch",
        "deepspeed.launcher.runner", "accelerate", "accelerate.commands.launch", "ft_launcher",
        "nvidia_resiliency_ext.fault_tolerance.launcher", "horovodrun", "mwatch", "mwatch-run",
        "mwatch-run.pyz", "mwatch_trainer",
    )
)  # fmt: skip
_LAUNCHER_FILES = ("torch/distributed/run.py", "torch/distributed/launch.py")
_SPAWNED = "--multiprocessing-fork"


class Identity:
    """The ranks of one process; -1: unknown."""

    __slots__ = ("local_rank", "rank", "restart_count", "world_size")

    def __init__(self, rank: int, local_rank: int, world_size: int, restart_count: int) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size
        self.restart_count = restart_count


def classify(environ: Mapping[str, str], pid: int, command: Sequence[str]) -> int:
    """Return NOT_A_RANK, MAYBE_RANK or RANK."""
    if _is_child_of_a_rank(environ, pid):
        return NOT_A_RANK
    what = program(command)
    if what in _LAUNCHERS or any(part.endswith(_LAUNCHER_FILES) for part in command[1:3]):
        return NOT_A_RANK
    if _number(environ, ("RANK",)) >= 0 and _number(environ, ("LOCAL_RANK",)) >= 0:
        return RANK
    # A prompt or `python -c` does not train; a spawned worker may be a rank of its own.
    return MAYBE_RANK if what not in ("", "-c") or _SPAWNED in command else NOT_A_RANK


def identity(environ: Mapping[str, str]) -> Identity:
    rank, local = _number(environ, names.RANKS), _number(environ, names.LOCAL_RANKS)
    world = _number(environ, names.WORLD_SIZES)
    if rank < 0 and names.SLURM_STEP in environ:
        rank = _number(environ, names.SLURM_RANKS)
        local = _number(environ, names.SLURM_LOCAL_RANKS)
        world = _number(environ, names.SLURM_WORLD_SIZES)
    if world <= rank:
        world = -1
    return Identity(rank, local, world, _number(environ, ("TORCHELASTIC_RESTART_COUNT",)))


def mark(environ: Mapping[str, str], pid: int) -> str:
    return f"{pid}:{_ranks_in(environ)}"


def program(command: Sequence[str]) -> str:
    """Return the script's file name, the module after `-m`, `-c`, or an empty string."""
    arguments = iter(command[1:])
    for argument in arguments:
        if not argument.startswith("-") or argument == "-":
            return os.path.basename(argument)
        if argument.startswith("--"):
            continue
        for index, letter in enumerate(argument[1:], 2):
            if letter == "c":
                return "-c"
            if letter == "m":
                return argument[index:] or next(arguments, "")
            if letter in "WX":  # its value is the rest of the word, or the next argument
                if not argument[index:]:
                    next(arguments, "")
                break
    return ""


def command_of_this_process() -> list[str]:
    """Return the command line including the interpreter's own arguments, unlike `sys.argv`."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            data = file.read(65536)
    except OSError:
        return []
    return [os.fsdecode(argument) for argument in data.split(b"\0")[:-1]]


def _is_child_of_a_rank(environ: Mapping[str, str], pid: int) -> bool:
    owner, _, ranks = environ.get(OWNER_VARIABLE, "").partition(":")
    return bool(owner) and owner != str(pid) and ranks == _ranks_in(environ)


def _ranks_in(environ: Mapping[str, str]) -> str:
    return "{}:{}".format(environ.get("RANK", ""), environ.get("LOCAL_RANK", ""))


def _number(environ: Mapping[str, str], names: Sequence[str]) -> int:
    for name in names:
        value = environ.get(name, "")
        if value.isdigit() and len(value) < 10:
            return int(value)
    return -1


class _WaitForTorch:
    """An import finder that finds nothing, but starts the probe when torch is imported."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name != "torch":
            return
        try:
            sys.meta_path.remove(self)
            from mwatch_trainer.probe import probe

            probe.start(self._folder, is_sure=False)
        except Exception:
            pass  # torch is imported regardless


def start_with_torch(folder: str) -> None:
    """Start the probe when this process imports torch; most never do and so run no thread."""
    sys.meta_path.insert(0, _WaitForTorch(folder))
