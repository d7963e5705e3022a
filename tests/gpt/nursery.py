# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Starts ranks of the trainer out of one process that has loaded torch and Megatron already.

Run as a script. Each line on stdin asks for something, each line on stdout answers: loading the two
takes seconds, and dozens of ranks are started here. The ranks are real processes, each in a session
of its own, with the environment that torchrun would give them.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from mwatch_gpt import __main__ as trainer
from mwatch_gpt import device
from mwatch_gpt.data import tool

_POLL_SECONDS = 0.02


def build_by_megatron() -> None:
    """`DOCUMENTS.json PREFIX DTYPE`: lists of sequences, written by Megatron's own builder."""
    import numpy
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    documents, prefix, dtype = sys.argv[1:]
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=getattr(numpy, dtype))
    with open(documents, encoding="utf-8") as file:
        for sequences in json.load(file):
            tokens = [token for sequence in sequences for token in sequence]
            builder.add_document(tokens, [len(sequence) for sequence in sequences])
    builder.finalize(f"{prefix}.idx")


PROGRAMS: dict[str, Callable[[], int | None]] = {
    "train": trainer.main,
    "data": tool.main,
    "megatron-builder": build_by_megatron,
}


def start(ask: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    os.setsid()
    out = os.open(ask["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(ask["env"])
    sys.argv = ["mwatch_gpt", *ask["argv"]]
    code = 1
    try:
        code = PROGRAMS[ask["program"]]() or 0
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 0 if leave.code is None else 1
        if isinstance(leave.code, str):
            print(leave.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, seconds: float) -> int | None:
    """The exit code as the shell of a parent sees it, negative for a signal; None: still there."""
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(_POLL_SECONDS)


def main() -> None:
    for name in ("mwatch_gpt.training", "torch._dynamo", "torch.utils.tensorboard"):
        importlib.import_module(name)  # what the ranks would load later

    gc.freeze()  # a rank that collects garbage would copy all of it
    print("ready", flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        answer = start(ask) if "argv" in ask else wait(ask["wait"], ask["seconds"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    device.prepare()
    main()
