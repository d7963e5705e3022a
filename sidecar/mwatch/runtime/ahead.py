# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Produce items in a second process while this one consumes the earlier ones.

The producer is a fork, so it already has everything it needs. It sends only the items back, through
a pipe, which keeps it about one item ahead. It ignores Ctrl-C; this process kills it when no more
items are wanted. If this process is killed, the producer ends at its next item.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, BinaryIO, NoReturn, TypeVar

from mwatch.errors import InputError

T = TypeVar("T")
_BUFFER = 1 << 20


class _End:
    """Marks the end of the items. `error`: the exception that ended them, if any."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


def run_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the items; an exception of the producer is raised here. With a single core, or if no
    process can be started, the items are produced in this process."""
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        yield from items
        return
    source, sink = os.pipe()
    try:
        child = os.fork()
    except OSError:
        os.close(source)
        os.close(sink)
        yield from items
        return
    if not child:
        os.close(source)
        _make(items, sink)
    os.close(sink)
    try:
        with open(source, "rb", buffering=_BUFFER) as stream:
            yield from _received(stream)
    finally:
        os.kill(child, signal.SIGKILL)  # safe: it writes to nothing but the pipe
        os.waitpid(child, 0)


def _received(stream: BinaryIO) -> Iterator[Any]:
    try:
        while not isinstance(item := pickle.load(stream), _End):
            yield item
    except (EOFError, pickle.UnpicklingError):  # the pipe ended between items or within one
        raise InputError("the process that read the log was killed; is memory short?") from None
    if item.error is not None:
        raise item.error


def _make(items: Iterable[object], sink: int) -> NoReturn:
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with suppress(OSError):  # the user's limit for pipe buffers may be used up
            fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, _BUFFER)  # a whole item fits
        with open(sink, "wb", buffering=_BUFFER) as stream:
            for item in _ended(items):
                pickle.dump(item, stream, pickle.HIGHEST_PROTOCOL)
                stream.flush()
    finally:
        os._exit(0)


def _ended(items: Iterable[object]) -> Iterator[object]:
    try:
        yield from items
    except Exception as error:
        error.add_note(traceback.format_exc())
        yield _End(error)
    else:
        yield _End()
