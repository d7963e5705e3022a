# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the wrapper's state (`attempt.json`): the start of an attempt and how its command ended.

A wrapper that was killed leaves its last state behind, in which the command still runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from mwatch.model.observation import AttemptStart, Observed, ProcessExit
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.model.snapshot.pod import TrainerEnd, WrapperState
from mwatch.sources.json_file import JsonFile, number, text, whole
from mwatch_trainer.contract import ATTEMPT
from mwatch_trainer.processes.signals import name_of

_MAX_TEXT = 1000
_MAX_CHANGES = 64
_MAX_ARGV = 2048
_NO_MEMORY = re.compile(r"\boom\b|memory for this container was used up|kernel killed .*memory")
"""Host memory only; the log reports a GPU that runs out of memory."""


class WrapperFile:
    def __init__(self, folder: str, stream: str) -> None:
        self._file = JsonFile(os.path.join(folder, ATTEMPT))
        self._stream = stream
        self._started: tuple[int, float] | None = None
        self._is_ended = False
        self.state: WrapperState | None = None

    def read(self) -> Reading[tuple[Observed, ...]]:
        found = self._file.read()
        if isinstance(found, Absent):
            return Absent(f"{found.reason}: no wrapper has started yet")
        if isinstance(found, Failed):
            return found
        state = _state(found.value)
        if state is None:
            return Failed(f"{ATTEMPT} has no attempt number")
        self.state = state
        return Ok(tuple(self._changes(state)))

    def _changes(self, state: WrapperState) -> Iterator[Observed]:
        started = (state.attempt, state.started_at)
        if started != self._started:
            self._started = started
            self._is_ended = False
            start = AttemptStart(state.attempt, state.resume_from, None)
            yield Observed(state.started_at, self._stream, start)
        ended = state.exit
        if ended is not None and not self._is_ended:
            self._is_ended = True
            gone = ProcessExit(ended.code, ended.signal, _kube_reason(ended.reason))
            yield Observed(max(ended.at, state.started_at), self._stream, gone)


def _kube_reason(reason: str | None) -> str | None:
    """Return Kubernetes' name for the reason; for other reasons the log is more precise."""
    return "OOMKilled" if reason and _NO_MEMORY.search(reason) else None


def _state(body: dict[str, Any]) -> WrapperState | None:
    attempt, started_at = whole(body.get("attempt")), number(body.get("started_at"))
    if attempt is None or started_at is None:
        return None
    return WrapperState(
        attempt,
        text(body.get("mode")) or "",
        started_at,
        whole(body.get("pid")),
        text(body.get("host")),
        whole(body.get("node_rank")),
        whole(body.get("nnodes")),
        _texts(body.get("changes"), _MAX_CHANGES),
        whole(body.get("resume_from")),
        text(body.get("resume_reason"), _MAX_TEXT),
        text(body.get("save"), _MAX_TEXT),
        _ended(body.get("exit"), started_at),
        body.get("final") is True,
        _texts(body.get("ran") or body.get("argv"), _MAX_ARGV),
    )


def _texts(found: object, most: int) -> tuple[str, ...]:
    listed = found[:most] if isinstance(found, list) else []
    return tuple(str(each)[:_MAX_TEXT] for each in listed)


def _ended(found: object, started_at: float) -> TrainerEnd | None:
    if not isinstance(found, dict):
        return None
    at, name = number(found.get("at")), found.get("signal")
    signal = whole(name)
    return TrainerEnd(
        started_at if at is None else at,
        whole(found.get("code")),
        text(name) if signal is None else name_of(signal),
        text(found.get("reason"), _MAX_TEXT),
        whole(found.get("returned")),
        found.get("asked") is True,
    )
