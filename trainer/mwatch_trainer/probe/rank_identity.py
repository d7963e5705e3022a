# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whether this process is a rank of the job, by its environment and command line.

Data-loader workers, checkpoint writers and every other child of a rank inherit `RANK`, the probe
and all the rest. So a rank marks its environment with its own pid and what it was told to be: a
process that finds the mark of another pid with the same words is a child, one with other words
(a launcher's worker) stands for itself.

`RANK` with `LOCAL_RANK` is what launchers give their workers. `RANK` alone is not enough: on
Kubernetes it is the number of the pod, and torchrun itself has it. Such a process, and one
without either, may be a rank: it is one when it is seen to train, which its children are not.

What this cannot know: a worker that runs the real trainer as its own child, with the same words.
Every Python process under the wrapper reads this file, so it imports nothing that is not there.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

NO_PROBES = 0
MAYBE = 1
RANK = 2

OWNER_VARIABLE = "MWATCH_PROBE_OWNER"
"""Of a wrapper that was itself started by a rank it means nothing: the wrapper drops it."""

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

# By preference: launchers, Open MPI, what Slurm tells the tasks of a step.
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


class Identity:
    """Of a rank; -1 for what nobody told."""

    __slots__ = ("local_rank", "rank", "restart_count", "world_size")

    def __init__(self, rank: int, local_rank: int, world_size: int, restart_count: int) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size
        self.restart_count = restart_count


def standing(environ: Mapping[str, str], pid: int, command: Sequence[str]) -> int:
    """NO_PROBES, MAYBE or RANK."""
    if _is_child_of_a_rank(environ, pid):
        return NO_PROBES
    what = program(command)
    if what in _LAUNCHERS or any(part.endswith(_LAUNCHER_FILES) for part in command[1:3]):
        return NO_PROBES
    if _number(environ, ("RANK",)) >= 0 and _number(environ, ("LOCAL_RANK",)) >= 0:
        return RANK
    # A line of Python or a prompt is no training; a spawned worker may be a rank of its own.
    return MAYBE if what not in ("", "-c") or _SPAWNED in command else NO_PROBES


def identity(environ: Mapping[str, str]) -> Identity:
    """`rank` is -1 where the environment does not tell."""
    rank, local = _number(environ, _RANKS), _number(environ, _LOCAL_RANKS)
    world = _number(environ, _WORLD_SIZES)
    if rank < 0 and "SLURM_STEP_ID" in environ:  # in the batch script itself it means nothing
        rank, local = _number(environ, ("SLURM_PROCID",)), _number(environ, ("SLURM_LOCALID",))
        world = _number(environ, ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))
    if world <= rank:
        world = -1
    return Identity(rank, local, world, _number(environ, ("TORCHELASTIC_RESTART_COUNT",)))


def mark(environ: Mapping[str, str], pid: int) -> str:
    """The value of OWNER_VARIABLE for the rank that this process is."""
    return f"{pid}:{_words(environ)}"


def program(command: Sequence[str]) -> str:
    """The script's file name, the module after `-m`, `-c`, or nothing."""
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-") or word == "-":
            return os.path.basename(word)
        if word.startswith("--"):
            continue
        for index, letter in enumerate(word[1:], 2):
            if letter == "c":
                return "-c"
            if letter == "m":
                return word[index:] or next(words, "")
            if letter in "WX":  # takes the rest, or the next word
                if not word[index:]:
                    next(words, "")
                break
    return ""


def command_of_this_process() -> list[str]:
    """`sys.argv` lacks what the interpreter itself was told."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            data = file.read(65536)
    except OSError:
        return []
    return [os.fsdecode(word) for word in data.split(b"\0")[:-1]]


def _is_child_of_a_rank(environ: Mapping[str, str], pid: int) -> bool:
    owner, _, words = environ.get(OWNER_VARIABLE, "").partition(":")
    return bool(owner) and owner != str(pid) and words == _words(environ)


def _words(environ: Mapping[str, str]) -> str:
    return "{}:{}".format(environ.get("RANK", ""), environ.get("LOCAL_RANK", ""))


def _number(environ: Mapping[str, str], names: Sequence[str]) -> int:
    for name in names:
        value = environ.get(name, "")
        if value.isdigit() and len(value) < 10:
            return int(value)
    return -1
