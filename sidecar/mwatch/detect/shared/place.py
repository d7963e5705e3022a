# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where a rank is during a stall: in code, in the data loader, in storage, or at its GPU.

The sources are the dumped stack, the state that /proc and the driver showed at the same time, and
the CPU time since. Without a dump only the probe's phase is known. A GPU with a resident kernel and
idle tensor cores runs a kernel that does not end; in a job of several ranks that may also be a
collective that waits for another rank.
"""

from __future__ import annotations

from typing import NamedTuple

from mwatch.model.job import Job, RankState, SignSeen, StackSeen
from mwatch.model.observation import RankStack, SignSource, SignState, StackKind
from mwatch.model.stacks import StackGroup, grouped, odd_one_out, standing

_BUSY_GPU = 0.5  # share of time with a resident kernel
_TENSOR_IDLE = 0.002  # share of time; even a small model at work shows more
_UNINTERRUPTIBLE = "D"
_DRIVER = ("nvidia", "uvm", "nv_", "os_acquire", "rm_")
_CAN_BE_ODD = frozenset(StackKind) - {StackKind.COLLECTIVE, StackKind.GPU}
"""A rank that waits for its GPU may wait there for a collective."""


class Place(NamedTuple):
    text: str  # the predicate of a sentence about the rank: `is in the data loader, at …`
    line: str | None  # `pretrain.py:32 in train_step`
    next_step: str
    is_dumped: bool = True  # read from a stack dumped during this silence


_NEXT = {
    StackKind.COLLECTIVE: "look for the rank that has not joined, and check the fabric",
    StackKind.DATA: "check the data loader's workers and the storage of the data",
    StackKind.SAVING: "check the storage of the checkpoints: is it mounted, reachable, not full?",
    StackKind.LOADING: "check the storage of the checkpoints: is it mounted and reachable?",
    StackKind.STOPPED: "find out what stopped the process (a debugger, a person, the kernel); "
    "SIGCONT lets it go on",
}
_READ_CODE = "read the code at the place that is named; a restart helps only if it depends on time"
_KERNEL = "find the kernel that does not end: run with CUDA_LAUNCH_BLOCKING=1 or attach cuda-gdb"
_IDLE_GPU = "check the kernel log for Xid errors of this GPU, then restart the job"
_STORAGE = "check the file system that the call uses: server, mount and kernel log"


def stacks_since(job: Job, since: float) -> list[StackSeen]:
    """Return the dumps that were taken during this silence."""
    return [seen for seen in job.attempt.stacks.values() if seen.at >= since]


def groups_since(job: Job, since: float) -> tuple[StackGroup, ...]:
    return grouped(seen.stack for seen in stacks_since(job, since))


def odd_rank(job: Job, since: float) -> tuple[StackGroup, int] | None:
    """Return the only rank of the job that does not wait in a collective, and how many ranks do.

    The stacks of all ranks must be known: a rank that is missing may be the culprit.
    """
    if not job.attempt.stacks or job.layout.world_size in (None, 1):
        return None
    groups = groups_since(job, since)
    if sum(each.count for each in groups) != job.layout.world_size:
        return None
    odd = odd_one_out(groups)
    if odd is None or odd.kind not in _CAN_BE_ODD:
        return None
    return odd, (job.layout.world_size or 0) - 1


def place_of(job: Job, rank: int | None, since: float) -> Place | None:
    """Return where the rank is; None if nothing is known."""
    if rank is None:
        return None
    cpu = _cpu(job, rank, since)
    seen = job.attempt.stacks.get(rank)
    if seen is not None and seen.at >= since:
        return _by_stack(seen.stack, cpu, is_alone=job.is_alone)
    state = job.attempt.ranks.get(rank)
    return None if state is None else _by_phase(state, cpu, _gpu(job, rank, since))


def common_place(groups: tuple[StackGroup, ...]) -> Place | None:
    """Return where all ranks are, if they are at one place."""
    if len(groups) != 1 or groups[0].count < 2:
        return None
    only = groups[0]
    text = f"all {only.count} ranks are at one place: {standing(only.what, only.place)}"
    return Place(text, only.place or None, _NEXT.get(only.kind, _READ_CODE))


def _by_stack(stack: RankStack, cpu: str, *, is_alone: bool) -> Place:
    line = stack.place or None
    at = f", at {stack.place}" if stack.place else ""
    call = f" (`{stack.what}`)" if stack.what else ""
    if stack.kind is StackKind.STOPPED:
        by = "a debugger (state t)" if stack.state == "t" else "a signal (state T)"
        return Place(f"is stopped by {by}", line, _NEXT[stack.kind])
    if stack.state == _UNINTERRUPTIBLE:
        return _blocked(stack, f"{at}{call}", line)
    by_gpu = _at_gpu(stack, f"{at}{call}", line, is_alone)
    if by_gpu is not None:
        return by_gpu
    texts = {
        StackKind.COLLECTIVE: "waits for other ranks",
        StackKind.DATA: "is in the data loader",
        StackKind.SAVING: "is saving a checkpoint",
        StackKind.LOADING: "is loading a checkpoint",
    }
    if stack.kind in texts:
        return Place(f"{texts[stack.kind]}{at}{call}{cpu}", line, _NEXT[stack.kind])
    if stack.holds_gil:
        return Place(f"is in native code that holds the GIL{at}{call}{cpu}", line, _READ_CODE)
    return Place(f"is in Python{at}{call}{cpu}", line, _READ_CODE)


def _blocked(stack: RankStack, where: str, line: str | None) -> Place:
    wchan = f", in {stack.wchan}" if stack.wchan else ""
    is_driver = stack.wchan.startswith(_DRIVER)
    what = "in the GPU driver" if is_driver else "in storage or a driver"
    text = f"is blocked in the kernel (state D{wchan}): it waits {what}{where}"
    return Place(text, line, _IDLE_GPU if is_driver else _STORAGE)


def _at_gpu(stack: RankStack, where: str, line: str | None, is_alone: bool) -> Place | None:
    """A rank that calls no GPU function can still wait for it: launches queue up."""
    use, tensor = stack.gpu_utilization, stack.tensor_active
    if stack.kind not in (StackKind.GPU, StackKind.CODE) or use is None:
        return None
    if use < _BUSY_GPU:
        if stack.kind is StackKind.CODE:
            return None
        return Place(f"waits for its GPU, which is idle{where}", line, _IDLE_GPU)
    if tensor is not None and tensor > _TENSOR_IDLE:
        return Place(f"waits for its GPU, which computes{where}", line, _KERNEL)
    cores = "SMs are busy" + ("" if tensor is None else " and tensor cores idle")
    cause = "a kernel that does not end"
    cause += "" if is_alone else ", or a collective that waits for another rank"
    return Place(f"waits for its GPU, whose {cores}: {cause}{where}", line, _KERNEL)


def _by_phase(state: RankState, cpu: str, gpu: str) -> Place:
    kinds = {each.value: each for each in StackKind}
    texts = {"data": "is in the data loader", "collective": "waits for other ranks"}
    text = texts.get(state.phase, f"is in phase {state.phase or 'unknown'}")
    kind = kinds.get(state.phase, StackKind.CODE)
    return Place(f"{text}{cpu}{gpu}", None, _NEXT.get(kind, ""), is_dumped=False)


def _cpu(job: Job, rank: int, since: float) -> str:
    sign = _sign(job, SignSource.CPU_TIME, rank, since)
    if sign is None or sign.sign.state not in (SignState.FLAT, SignState.MOVING):
        return ""
    return ", CPU idle" if sign.sign.state is SignState.FLAT else ", CPU busy"


def _gpu(job: Job, rank: int, since: float) -> str:
    sign = _sign(job, SignSource.GPU_ACTIVITY, rank, since)
    return "" if sign is None or not sign.sign.text else f"; {sign.sign.text}"


def _sign(job: Job, source: SignSource, rank: int, since: float) -> SignSeen | None:
    state = job.attempt.ranks.get(rank)
    found = job.attempt.signs.get((source, rank, "" if state is None else state.stream))
    return found if found is not None and found.at >= since else None
