# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Explains the trainer's exit and chooses the code that `mwatch-run` returns for it in act mode.

| observed | returned |
| --- | --- |
| exit 0: done, or all iterations printed, or no information | 0 |
| exit 0 after `--exit-interval`, `--exit-duration-in-mins` | 0 |
| exit 0 before the last iteration; a load that failed and exited with 0 | 200 |
| a stop requested over the control socket, SIGTERM from outside | 143 (SIGINT: 130) |
| the same, with a reason that the job was deleted or suspended | 0 |
| a newer attempt has started (fence) | 203 |
| Megatron's 16, 17, of the child or of torchrun's first failed worker | 216, 217 |
| a signal, of the child, of a shell's 128+n or of torchrun's first failed worker | 128+n |
| CUDA out of memory; an error of code, arguments, data or paths; a full or read-only disk | 1 |
| a command that does not exist or cannot be run; wrong usage of another program | 127, 126, 2 |
| anything else: lost peers, other storage, checkpoints, numbers, no output at all | 201 |

SIGTERM does not return 0: a drained or preempted pod gets it too, and a training operator treats a
master's exit code 0 as success of the whole job.
"""

from __future__ import annotations

import os
import re
import signal as signals
from typing import Mapping, NamedTuple

from mwatch_trainer import contract
from mwatch_trainer import reporting as table
from mwatch_trainer.attempt.plan import AttemptPlan
from mwatch_trainer.command import megatron
from mwatch_trainer.command.argv import find_program, value_of
from mwatch_trainer.exits.log_reader import DURATION, INTERVAL, SIGNAL, ExitLogReader
from mwatch_trainer.exits.signal_table import name_of, signal_of

_ROOT = "/sys/fs/cgroup"
_OWN = "/proc/self/cgroup"
_MAX_BYTES = 1 << 16
_COUNT = re.compile(rb"(?m)^oom_kill (\d{1,18})$")


def oom_kills(root: str = _ROOT, own: str = _OWN) -> int | None:
    """Count the container's OOM kills since its start; None if unreadable (old kernel, no
    cgroup).
    """
    for path in _places(root, own):
        found = _COUNT.search(contract.read_bytes(path, _MAX_BYTES) or b"")
        if found:
            return int(found.group(1))
    return None


def _places(root: str, own: str) -> list[str]:
    """Return the cgroup v2 files, then v1; in a container the own cgroup is often the root."""
    unified, memory = "", ""
    text = (contract.read_bytes(own, _MAX_BYTES) or b"").decode("utf-8", "replace")
    for line in text.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            unified = path.lstrip("/")
        elif "memory" in controllers.split(","):
            memory = path.lstrip("/")
    return [
        os.path.join(root, unified, "memory.events"),
        os.path.join(root, "memory.events"),
        os.path.join(root, "memory", memory, "memory.oom_control"),
        os.path.join(root, "memory", "memory.oom_control"),
    ]


_PERMANENT_STOPS = ("deleted", "suspended", "finished")


class ExplainedExit(NamedTuple):
    code: int | None  # the child's own exit code; None: ended by a signal
    signal: int | None
    reason: str
    returned: int  # what `mwatch-run` exits with in act mode; in observe mode it is the child's own
    is_final: bool  # no attempt is expected to follow in this pod
    was_requested: bool


def explain(
    returncode: int,
    reader: ExitLogReader,
    stop_request: str | None,
    plan: AttemptPlan,
    oom_killed: bool = False,
) -> ExplainedExit:
    """Explain an exit. `returncode` is negative for a signal.

    `stop_request`: if the wrapper itself stopped the child, the reason ("stop: ...",
    "restart: ...", "signal: SIGTERM", "fence: ...").
    """
    code = returncode if returncode >= 0 else None
    number = signal_of(returncode)
    if stop_request is not None:
        reason, returned, was_requested = _stopped(stop_request, returncode, reader)
    elif returncode == 0:
        reason, returned, was_requested = _exited_with_0(reader, plan)
    elif number is not None:
        reason, returned, was_requested = _signalled(number, oom_killed)
    else:
        reason, returned, was_requested = _failed(returncode, reader, plan, oom_killed)
    is_final = returned < table.SIGNAL_BASE
    return ExplainedExit(
        code, -returncode if returncode < 0 else None, reason, returned, is_final, was_requested
    )


def _stopped(stop_request: str, returncode: int, reader: ExitLogReader) -> tuple[str, int, bool]:
    kind, _, text = stop_request.partition(": ")
    if kind == "fence":
        return f"stopped: {text}", table.FENCED, False
    is_over = returncode == 0 and (reader.is_done or _all_printed(reader))
    if is_over or any(word in text.lower() for word in _PERMANENT_STOPS):
        return f"stopped on request: {text}", 0, True
    number = signals.SIGINT if "SIGINT" in text else signals.SIGTERM
    return f"stopped on request: {text}", table.SIGNAL_BASE + number, True


def _exited_with_0(reader: ExitLogReader, plan: AttemptPlan) -> tuple[str, int, bool]:
    if reader.is_done:
        return "training finished", 0, False
    if reader.goodbye in (INTERVAL, DURATION):
        return f"the trainer's own end ({reader.goodbye}) was reached", 0, True
    if reader.goodbye == SIGNAL:
        return "the trainer saved and left after a signal that mwatch did not send", 143, False
    if reader.empty_exit is not None:
        return f"exited with 0 without training: {reader.empty_exit}", table.EARLY_EXIT, False
    if reader.is_missing_checkpoint:
        code = table.USER_ERROR if plan.resume_from is None else table.EARLY_EXIT
        return "exited with 0: there was no checkpoint to load", code, False
    if _all_printed(reader):
        return "training finished: its last iteration was printed", 0, False
    if reader.iteration is not None and reader.total is not None:
        where = f"{reader.unit} {reader.iteration} of {reader.total}"
        if _may_be_requested(reader, plan):
            return f"exited at {where}, as its arguments request", 0, True
        return f"exited with 0 at {where} for an unknown reason", table.EARLY_EXIT, False
    if reader.has_begun:
        return (
            "exited with 0, but rank 0 did not report the end of training",
            table.EARLY_EXIT,
            False,
        )
    return "exited with 0; this node printed no further detail", 0, False


def _all_printed(reader: ExitLogReader) -> bool:
    """Whether less than one log interval was left: the last iterations may have no line."""
    if reader.iteration is None or reader.total is None:
        return False
    return reader.iteration + reader.interval > reader.total


def _may_be_requested(reader: ExitLogReader, plan: AttemptPlan) -> bool:
    """Whether the arguments may have requested this exit: rank 0, which prints it, may be in
    another pod."""
    if reader.has_begun or plan.nnodes <= 1:
        return False
    program = find_program(plan.argv, plan.env)
    if megatron.obstacle(program) is not None:
        return True
    if value_of(program.args, "--exit-duration-in-mins") is not None:
        return True
    text = value_of(program.args, "--exit-interval") or ""
    every = int(text) if text.isdigit() else 0
    seen = reader.iteration or 0
    return every > 0 and (seen + reader.interval - 1) // every > (seen - 1) // every


def _signalled(number: int, oom_killed: bool) -> tuple[str, int, bool]:
    why = f"ended by {name_of(number)}"
    if oom_killed and number == signals.SIGKILL:
        why += ": the host's memory for this container was used up"
    return why, table.SIGNAL_BASE + number, False


def _failed(
    code: int, reader: ExitLogReader, plan: AttemptPlan, oom_killed: bool
) -> tuple[str, int, bool]:
    worker = reader.worker
    if worker is not None:
        rank = "" if worker.rank is None else f" (rank {worker.rank})"
        who = f"the first worker that failed{rank} "
        number = signal_of(worker.code)
        if number is not None:
            why, returned, _ = _signalled(number, oom_killed)
            return who + why, returned, False
    else:
        who = ""
    own = code if worker is None else worker.code
    if own in table.RERUN:
        return f"{who}exited with {own}: Megatron requests a rerun", table.RERUN[own], False
    if reader.signal is not None and worker is None:
        why = f"the launcher got {name_of(reader.signal)}, which mwatch did not send"
        return why, table.SIGNAL_BASE + reader.signal, False
    printed = _by_output(reader, plan)
    if printed is not None:
        return (*printed, False)
    if oom_killed:
        return (
            f"exited with {code} after the kernel killed a process: out of memory",
            137,
            False,
        )
    if code in (2, 126, 127) and reader.iteration is None and worker is None:
        return f"exited with {code} before it started", code, False
    return f"{who}exited with {own} for an unknown reason", table.UNKNOWN_CAUSE, False


def _by_output(reader: ExitLogReader, plan: AttemptPlan) -> tuple[str, int] | None:
    root = reader.errors.root(reader.worker.rank if reader.worker is not None else None)
    if root is not None and root.kind == "KeyboardInterrupt":
        return "interrupted (SIGINT)", table.SIGNAL_BASE + signals.SIGINT
    if root is not None and root.is_memory:
        return f"out of GPU memory ({root.description()})", table.USER_ERROR
    if reader.usage is not None and reader.iteration is None:
        return f"wrong arguments: {reader.usage}", table.USER_ERROR
    if root is not None and root.is_permanent and not root.is_consequence:
        return f"an error that a restart cannot fix: {root.description()}", table.USER_ERROR
    if reader.is_missing_checkpoint and plan.resume_from is None:
        return "there was no checkpoint to load", table.USER_ERROR
    if root is not None:
        return f"failed: {root.description()}", table.UNKNOWN_CAUSE
    return None


POLICY = "MWATCH_RESTART_POLICY"


def is_last(returned: int, is_final: bool, environ: Mapping[str, str]) -> bool:
    """Whether no further attempt follows in this pod, according to the pod's restartPolicy.

    `returned`: the container's exit code. `is_final`: the answer if the policy is unknown.
    """
    by_policy = {"Never": True, "OnFailure": returned == 0, "Always": False}
    return by_policy.get(environ.get(POLICY, ""), is_final)
