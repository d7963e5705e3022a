# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Blocks to results, in order, by as many processes as are asked for.

At most a few blocks for each worker are under way, so memory does not grow with the input. A
worker that is killed ends the run with an error instead of leaving it waiting, and workers end
with the process that started them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection

from mwatch_gpt.bad_input import Disturbed
from mwatch_gpt.corpus import Block
from mwatch_gpt.encoding import Encoder, Result, Wanted

_AHEAD = 3
_mine: list[Encoder] = []


def encoded(
    blocks: Iterable[Block], wanted: Wanted, workers: int
) -> Iterator[tuple[Block, Result]]:
    if workers == 1:
        encoder = Encoder(wanted)
        for block in blocks:
            yield block, encoder.encode(block.path, block.data, block.start.line)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _begin, (wanted,)) as pool:
        try:
            yield from _in_order(pool, blocks, workers * _AHEAD)
        except BrokenProcessPool:
            raise Disturbed("a worker was killed: fewer --workers, or more memory") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _in_order(
    pool: ProcessPoolExecutor, blocks: Iterable[Block], most: int
) -> Iterator[tuple[Block, Result]]:
    waiting: deque[tuple[Block, Future[Result]]] = deque()
    for block in blocks:
        waiting.append((block, pool.submit(_encode, block.path, block.data, block.start.line)))
        if len(waiting) >= most:
            yield _taken(*waiting.popleft())
    while waiting:
        yield _taken(*waiting.popleft())


def _taken(block: Block, future: Future[Result]) -> tuple[Block, Result]:
    # Its bytes are with the worker; only the place is needed further on.
    return block._replace(data=b""), future.result()


def _begin(wanted: Wanted) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers it, for all
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _mine.append(Encoder(wanted))


def _end_with_parent() -> None:
    """A killed parent cannot tell its workers; without this they would stay for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _encode(path: str, data: bytes, line: int) -> Result:
    return _mine[0].encode(path, data, line)
