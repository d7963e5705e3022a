# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Writes this rank's part of a checkpoint from inside the rank.

Megatron's torch_dist strategy writes from freshly forked processes and keeps a helper process for
their answers: 7 to 18 seconds at the first save of a process. For a small model a thread's work is
enough. The files are the same.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

_Bucket = tuple[Any, ...]


class InProcessStrategy(TorchDistSaveShardedStrategy):  # type: ignore[misc]
    def __init__(self, writing: Callable[[str], AbstractContextManager[None]]) -> None:
        """`writing` is entered with the path of each file, around its writing."""
        super().__init__("torch_dist", 1, thread_count=1)
        self._writing = writing
        # Asked for by the writer while it plans; the stock one is a server in another process.
        filesystem_async._results_queue = queue.Queue()

    def _get_save_and_finalize_callbacks(self, writer: Any, planned: Any) -> Any:
        request = super()._get_save_and_finalize_callbacks(writer, planned)
        if request.async_fn is None:  # this rank has nothing to write
            return request

        def write(rank: int, buckets: list[_Bucket], results: queue.Queue[Any]) -> None:
            results.put(self._write(writer, buckets))

        return request._replace(async_fn=write)

    def _write(self, writer: Any, buckets: list[_Bucket]) -> Any:
        """Results by bucket, or the error that the other ranks are to be told of."""
        transforms = [writer.transforms] if hasattr(writer, "transforms") else []
        written = {}
        for number, bucket in enumerate(buckets):
            answers: queue.Queue[tuple[int, Any]] = queue.Queue()
            counts: queue.Queue[int] = queue.Queue()
            counts.put(number)
            with self._writing(str(bucket[0])):
                filesystem_async.FileSystemWriterAsync.write_preloaded_data(
                    transforms, number, bucket, answers, counts, use_fsync=True
                )
            _, answer = answers.get()
            if isinstance(answer, Exception):
                return answer
            written[number] = answer
        return written
