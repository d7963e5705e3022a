# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Crashes by their cause. What surrounds every death is in `dying`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sim import wreckage
from sim.dying import DEAD, WAITS, cascade, die, timeout_storm
from sim.faults import Died, Fault
from sim.trainer import Trainer


def nccl_timeout(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """The job comes back from a hang that nobody saw: only the storm is there."""
    trainer.note(fault)
    yield from timeout_storm(trainer, fault)


def killed(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """SIGKILL: the rank says nothing; torchrun does."""
    yield from die(trainer, fault, [], -9)


def lost_pod(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """A node is gone with everything on it; nobody there prints a word."""
    stage, shape = trainer.stage, trainer.shape
    trainer.note(fault)
    home = shape.pod_of(fault.rank)
    stage.lost_pods.add(home)
    stage.crowd = WAITS._replace(place=stage.crowd.place)
    for rank in shape.ranks_of(home):
        stage.odd[rank] = DEAD
    stage.end_pod(home, None, reason="NodeLost", later=trainer.chance.uniform(30.0, 60.0))
    if shape.pods > 1 and fault.variant == "reset":
        yield trainer.chance.uniform(5.0, 40.0)
        others = [pod for pod in range(shape.pods) if pod != home]
        cascade(trainer, others)
        yield 2.0
        for pod in others:
            first = shape.ranks_of(pod)[0]
            stage.launcher(pod, wreckage.worker_failed(stage.now, 0, first, -6))
            stage.launcher(pod, *wreckage.child_failed(stage.now, 0, first, -6))
            stage.end_pod(pod, 1, later=1.0)
        raise Died
    while True:
        yield 3600.0


def out_of_memory(trainer: Trainer, fault: Fault) -> Iterator[float]:
    error = (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB. GPU"
        f" {fault.rank % 8} has a total capacity of 79.15 GiB of which 2.83 GiB is free."
    )
    yield from die(trainer, fault, wreckage.traceback(fault.rank, error, *wreckage.TRAIN), 1)


USER_ERRORS = (
    "TypeError: forward() got an unexpected keyword argument 'packed_seq_params'",
    "KeyError: 'loss_mask'",
    "AttributeError: 'NoneType' object has no attribute 'shape'",
    "NameError: name 'rotary_pos_emb' is not defined",
)
DATA_ERRORS = (
    "ValueError: mmap length is greater than file size",
    "AssertionError: bad header, cannot read: /data/corpus_text_document.idx",
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/corpus_text_document.idx'",
)


def user_error(trainer: Trainer, fault: Fault) -> Iterator[float]:
    text = wreckage.traceback(fault.rank, USER_ERRORS[int(fault.size) % 4], *wreckage.TRAIN)
    yield from die(trainer, fault, text, 1)


def data_error(trainer: Trainer, fault: Fault) -> Iterator[float]:
    frame = wreckage.Frame(
        "/workspace/Megatron-LM/megatron/core/datasets/indexed_dataset.py", 301, "__init__",
        "self.bin_buffer_mmap = numpy.memmap(",
    )  # fmt: skip
    error = DATA_ERRORS[int(fault.size) % 3]
    text = wreckage.traceback(fault.rank, error, *wreckage.TRAIN, frame)
    yield from die(trainer, fault, text, 1)


def storage_error(trainer: Trainer, fault: Fault) -> Iterator[float]:
    errors = (
        "OSError: [Errno 5] Input/output error: '/ckpt/run'",
        "OSError: [Errno 116] Stale file handle",
        "OSError: [Errno 107] Transport endpoint is not connected: '/ckpt'",
    )
    text = wreckage.traceback(fault.rank, errors[int(fault.size) % 3], *wreckage.TRAIN)
    yield from die(trainer, fault, text, 1)


def unknown_crash(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """A crash that says nothing of its cause: a segmentation fault."""
    yield from die(trainer, fault, ["Fatal Python error: Segmentation fault", ""], -11)


def hardware(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """A GPU dies under one rank."""
    stage, rank = trainer.stage, fault.rank
    pod = trainer.shape.pod_of(rank)
    if fault.variant == "off_bus":
        stage.launcher(pod, wreckage.xid("9b", 79, "GPU has fallen off the bus."))
        text = wreckage.traceback(rank, "RuntimeError: CUDA error: unknown error", *wreckage.TRAIN)
    else:
        error = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
        text = wreckage.traceback(rank, error, *wreckage.TRAIN)
    yield from die(trainer, fault, text, 1)


def bad_checkpoint(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """Loading fails on the bytes of the checkpoint."""
    error = (
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central"
        " directory"
    )
    text = wreckage.traceback(fault.rank, error, *wreckage.LOAD)
    yield from die(trainer, fault, text, 1, others=1)


STRIKES: dict[str, Callable[[Trainer, Fault], Iterator[float]]] = {
    "killed": killed,
    "lost_pod": lost_pod,
    "oom": out_of_memory,
    "user_error": user_error,
    "data": data_error,
    "storage": storage_error,
    "crash": unknown_crash,
    "hardware": hardware,
    "nccl_timeout": nccl_timeout,
    "bad_checkpoint": bad_checkpoint,
}
