# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Converts text into indexed datasets with several processes, resuming where the last run stopped.

The state file belongs to the first key's output and covers all keys, which are written in parallel.
Only a few blocks per worker are in flight, so memory does not grow with the input. A killed worker
ends the run with an error, and workers end with the process that started them.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing
from multiprocessing import connection
from typing import NamedTuple

from mwatch_gpt.data.corpus import BadInput, Disturbed, LineStart, TextBlock, blocks
from mwatch_gpt.data.encoding import (
    EncodedBlock,
    Encoder,
    EncodingOptions,
    end_of_document,
    typecode,
)
from mwatch_gpt.data.tokenizers import build
from mwatch_gpt.data.writer import (
    DONE,
    FINISHING,
    ConversionState,
    DatasetWriter,
    Sizes,
    load_state,
    state_path,
    store_state,
)

_AHEAD = 3
_encoders: list[Encoder] = []  # this worker's encoder


def encoded(
    blocks: Iterable[TextBlock], wanted: EncodingOptions, workers: int
) -> Iterator[tuple[TextBlock, EncodedBlock]]:
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
    pool: ProcessPoolExecutor, blocks: Iterable[TextBlock], most: int
) -> Iterator[tuple[TextBlock, EncodedBlock]]:
    waiting: deque[tuple[TextBlock, Future[EncodedBlock]]] = deque()
    for block in blocks:
        waiting.append((block, pool.submit(_encode, block.path, block.data, block.start.line)))
        if len(waiting) >= most:
            yield _taken(*waiting.popleft())
    while waiting:
        yield _taken(*waiting.popleft())


def _taken(block: TextBlock, future: Future[EncodedBlock]) -> tuple[TextBlock, EncodedBlock]:
    # The worker has the block's bytes; only the position is needed from here on.
    return block._replace(data=b""), future.result()


def _begin(wanted: EncodingOptions) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it for all workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _encoders.append(Encoder(wanted))


def _end_with_parent() -> None:
    """Exit when the parent ends: a killed parent cannot stop its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _encode(path: str, data: bytes, line: int) -> EncodedBlock:
    return _encoders[0].encode(path, data, line)


SAVE_SECONDS = 10.0


class ConversionJob(NamedTuple):
    inputs: tuple[str, ...]
    prefixes: tuple[str, ...]  # one for each key
    wanted: EncodingOptions
    workers: int = 1
    overwrite: bool = False
    save_seconds: float = SAVE_SECONDS

    def fingerprint(self) -> str:
        """Hash everything that changes the output.

        An input that grew counts as a different input. `skip_bad` is not included, so it can still
        be changed when a bad line is found.
        """
        wanted = self.wanted
        parts = [repr((wanted.keys, wanted.append_eod)), wanted.tokenizer.fingerprint()]
        for path in self.inputs:
            try:
                found = os.stat(path)
            except OSError as error:
                raise BadInput(f"{path}: {error.strerror}") from None
            parts.append(f"{path} {found.st_size} {found.st_mtime_ns}")
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class ConversionResult(NamedTuple):
    state: ConversionState
    resumed_at: LineStart | None
    was_done: bool = False


Progress = Callable[[ConversionState], None]


def convert(
    job: ConversionJob, progress: Progress, clock: Callable[[], float] = time.monotonic
) -> ConversionResult:
    """Convert the inputs. Raises BadInput; output written before that is kept for the next run."""
    tokenizer = build(job.wanted.tokenizer)
    end_of_document(tokenizer, job.wanted)
    code = typecode(tokenizer.vocab_size)
    writers = tuple(DatasetWriter(prefix, code) for prefix in job.prefixes)
    first = job.prefixes[0]
    state = _where_to_begin(job, writers)
    if state.stage == DONE:
        return ConversionResult(state, None, was_done=True)
    resumed = state.place if state.place != LineStart() else None
    if state.stage != FINISHING:
        state = _write(job, writers, state, progress, clock)
        state = state._replace(stage=FINISHING)
        store_state(first, state)
    for writer in writers:
        writer.finish()
    state = state._replace(stage=DONE)
    store_state(first, state)
    for writer in writers:
        writer.clear()
    return ConversionResult(state, resumed)


def _where_to_begin(job: ConversionJob, writers: Sequence[DatasetWriter]) -> ConversionState:
    settings = job.fingerprint()
    fresh = ConversionState(settings, len(writers), sizes=(Sizes(),) * len(writers))
    first = job.prefixes[0]
    is_there = all(writer.is_finished for writer in writers)
    try:
        known = load_state(first)
    except BadInput:
        if not job.overwrite:
            raise
        return fresh
    if known is not None and known.settings == settings:
        if is_there if known.stage == DONE else _is_kept(job, writers, known):
            return known
    elif known is not None and known.stage != DONE and not job.overwrite:
        raise BadInput(
            f"{first}: half-written, by other settings or of another input; "
            "delete it, or --overwrite starts over"
        )
    if is_there and not job.overwrite:
        raise BadInput(f"{first}: is already there; delete it, or --overwrite makes it again")
    return fresh


def _is_kept(job: ConversionJob, writers: Sequence[DatasetWriter], known: ConversionState) -> bool:
    for writer, sizes in zip(writers, known.sizes, strict=True):
        lost = writer.lost(sizes, is_finishing=known.stage == FINISHING)
        if lost is not None and not job.overwrite:
            raise BadInput(f"{lost}; delete it, or --overwrite starts over")
        if lost is not None:
            return False
    return True


def _write(
    job: ConversionJob,
    writers: Sequence[DatasetWriter],
    state: ConversionState,
    progress: Progress,
    clock: Callable[[], float],
) -> ConversionState:
    with ExitStack() as stack:
        for writer, sizes in zip(writers, state.sizes, strict=True):
            writer.open(sizes)
            stack.enter_context(closing(writer))
        due = clock() + job.save_seconds
        try:
            found = encoded(blocks(job.inputs, state.place), job.wanted, job.workers)
            for block, result in found:
                state = _added(writers, state, result)._replace(place=block.end)
                if clock() >= due:
                    _saved(job, writers, state)
                    progress(state)
                    due = clock() + job.save_seconds
            if not state.documents:
                raise BadInput("the input has no text")
        finally:
            # Keep the output before a bad line. The sizes are those after the last whole block,
            # because a signal or a full disk may have interrupted the current one.
            _saved(job, writers, state)
            if not state.documents:
                for writer in writers:
                    writer.clear()
                state_path(job.prefixes[0]).unlink(missing_ok=True)
    return state


def _added(
    writers: Sequence[DatasetWriter], state: ConversionState, result: EncodedBlock
) -> ConversionState:
    for writer, part in zip(writers, result.parts, strict=True):
        writer.add(part)
    return state._replace(
        sizes=tuple(writer.sizes for writer in writers),
        documents=state.documents + result.documents,
        tokens=state.tokens + result.token_count,
        left_out=state.left_out + len(result.bad),
    )


def _saved(job: ConversionJob, writers: Sequence[DatasetWriter], state: ConversionState) -> None:
    for writer in writers:
        writer.sync()
    store_state(job.prefixes[0], state)
