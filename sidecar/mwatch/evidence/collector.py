# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Collects the evidence of incidents in a thread, and reports what its dumps show.

A stall is dumped as soon as it is detected: the stacks and the flight recorder identify the rank
that the others wait for, and are the second witness that an action requires. There is one bundle
per incident; a restart waits for it, within its limit. An attempt that is over is not dumped, and
signs from its dump do not count for the next attempt.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mwatch.evidence.bundle import Ask, Bundle, Extra, OffloadResult, collect
from mwatch.model.observation import Observed, RankStack, Sign
from mwatch.model.snapshot.pod import Gpu
from mwatch_trainer.control.client import ask
from mwatch_trainer.evidence.incidents import NotCopied, beside, copy

_NO_WRAPPER = ("there is no wrapper", "the wrapper has ended")
_WAIT_SECONDS = 25.0
"""Slightly more than the time limit of a bundle."""
_KEEP_SECONDS = 5.0
_MOST_ASKS = 15
_MAX_WAITING = 16
_MAX_SIGNS = 1 << 16


class OffPod:
    """Copies evidence to the storage of the checkpoints, before the pod can die.

    A sidecar usually mounts that storage read-only or not at all, so it asks the wrapper, and
    copies by itself only if there is no wrapper. In observe mode nothing is written next to the
    checkpoints; evidence then leaves the pod only through a separate evidence folder.
    """

    def __init__(self, ask: Ask, save: Callable[[], Path | None], is_act: Callable[[], bool]):
        self._ask = ask
        self._save = save
        self._is_act = is_act

    def keep(self, folder: Path, id: str, seconds: float) -> OffloadResult:
        """Copy the bundle in `folder` within `seconds`; call again if it has changed."""
        if not self._is_act():
            return OffloadResult(None, "observe mode does not write to the checkpoint folder")
        try:
            answer = self._ask({"op": "keep", "id": id, "seconds": max(0.0, seconds - 1)}, seconds)
        except (OSError, ValueError) as error:
            return _not(f"the wrapper did not answer: {error or type(error).__name__}")
        if answer.get("ok") is True:
            why = "" if answer.get("state") == "kept" else "still being copied"
            return OffloadResult(str(answer.get("folder")), why)
        why = str(answer.get("error"))[:300]
        return self._from_here(folder, id, seconds) if why.startswith(_NO_WRAPPER) else _not(why)

    def _from_here(self, folder: Path, id: str, seconds: float) -> OffloadResult:
        """Copy in a thread, which continues in the background if the storage hangs."""
        save = self._save()
        if save is None:
            return _not("the wrapper is gone, and the save folder is unknown")
        found: list[OffloadResult] = []
        work = threading.Thread(
            target=lambda: found.append(_copied(folder, save, id)), name="mwatch-off-pod",
            daemon=True,
        )  # fmt: skip
        work.start()
        work.join(seconds)
        return found[0] if found else _not(f"{save} did not respond within {seconds:.0f} s")


def _copied(folder: Path, save: Path, id: str) -> OffloadResult:
    if not save.is_dir() or not os.access(save, os.W_OK):
        return _not(f"the wrapper is gone, and {save} cannot be written from here")
    try:
        return OffloadResult(str(copy(str(folder), beside(str(save)), id)["folder"]))
    except (OSError, NotCopied) as error:
        return _not(str(error))


def _not(why: str) -> OffloadResult:
    return OffloadResult(None, why)


@dataclass(eq=False)
class EvidenceCase:
    """The evidence of one incident: complete once `saved` is set, analysed once `done` is."""

    id: str
    folder: Path
    attempt: int
    reason: str = ""
    bundle: Bundle | None = None
    asks: int = 0
    saved: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)


class _AttemptSign(NamedTuple):
    attempt: int
    observed: Observed


class EvidenceCollector:
    def __init__(
        self,
        volume: Path,
        stream: str,
        now: Callable[[], float],
        running: Callable[[], int],
        *,
        world_size: Callable[[], int | None] = lambda: None,
        gpus: Callable[[], Sequence[Gpu]] = tuple,
        extra: Extra | None = None,
        off_pod: OffPod | None = None,
    ) -> None:
        """`running`: number of the current attempt. `world_size`: that of the job; this volume may
        have the data of only one of its pods. `gpus`: GPUs of this pod, as last sampled. `extra`:
        more parts for each bundle. `off_pod`: copies bundles off the pod; None if the folder
        already outlives the pod."""
        self._world_size = world_size
        self._gpus = gpus
        self._extra = extra
        self._off_pod = off_pod
        self._volume = str(volume)
        self._stream = stream
        self._now = now
        self._running = running
        self._changed = threading.Condition()
        self._wanted: deque[EvidenceCase] = deque()
        self._changed_since: dict[str, EvidenceCase] = {}
        self._signs: deque[_AttemptSign] = deque(maxlen=_MAX_SIGNS)
        self._is_closing = False
        self.errors: deque[Exception] = deque(maxlen=_MAX_WAITING)
        """Internal errors, for the caller to report."""
        self._thread = threading.Thread(target=self._work, name="mwatch-cases", daemon=True)
        self._thread.start()

    def want(self, id: str, folder: Path, attempt: int, reason: str = "") -> EvidenceCase:
        case = EvidenceCase(id, folder, attempt, reason)
        with self._changed:
            self._wanted.append(case)
            if len(self._wanted) > _MAX_WAITING:
                _finish(self._wanted.popleft())
            self._changed.notify_all()
        return case

    def wait(self, case: EvidenceCase) -> None:
        """Collect this case next, and wait for it."""
        with self._changed, suppress(ValueError):
            self._wanted.remove(case)
            self._wanted.appendleft(case)
        case.done.wait(_WAIT_SECONDS)

    def keep_again(self, case: EvidenceCase) -> None:
        """Copy the folder off the pod again, because it has changed."""
        with self._changed:
            if self._off_pod is not None and len(self._changed_since) < _MAX_WAITING:
                self._changed_since[case.id] = case
                self._changed.notify_all()

    def signs(self) -> list[Observed]:
        with self._changed:
            found = list(self._signs)
            self._signs.clear()
        running = self._running()
        return [each.observed for each in found if each.attempt == running]

    def close(self) -> None:
        """Stop after the bundle that is being collected."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(_WAIT_SECONDS)

    def _work(self) -> None:
        while (case := self._next()) is not None:
            try:
                if case.saved.is_set():
                    self._keep(case)
                else:
                    self._collect(case)
            except Exception as error:
                self.errors.append(error)
            finally:
                _finish(case)

    def _next(self) -> EvidenceCase | None:
        """Wait for the next case, new ones first; None when closing."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._changed_since or self._is_closing)
            if self._wanted:
                return self._wanted.popleft()
            return self._changed_since.pop(next(iter(self._changed_since), ""), None)

    def _keep(self, case: EvidenceCase) -> None:
        if self._off_pod is None or case.bundle is None:
            return
        stored = self._off_pod.keep(case.folder, case.id, _KEEP_SECONDS)
        case.bundle = case.bundle._replace(stored=stored)
        self._ask_later(case)

    def _ask_later(self, case: EvidenceCase) -> None:
        stored = None if case.bundle is None else case.bundle.stored
        is_copying = stored is not None and stored.folder is not None and stored.why != ""
        if is_copying and case.asks < _MOST_ASKS:
            case.asks += 1
            self.keep_again(case)

    def _collect(self, case: EvidenceCase) -> None:
        def ask_wrapper(request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
            if self._running() != case.attempt:
                return {"ok": False, "error": f"attempt {case.attempt} is over"}
            return ask(self._volume, request, seconds)

        case.bundle = collect(
            self._volume, case.folder, case.id, ask=ask_wrapper, reason=case.reason,
            extra=self._extra, keep=None if self._off_pod is None else self._off_pod.keep,
        )  # fmt: skip
        case.saved.set()
        self._ask_later(case)
        # Imported late: large and rarely needed.
        from mwatch.evidence.flight_files import signs_of
        from mwatch.evidence.rank_stacks import read_stacks

        self._observed(case, read_stacks(self._volume, case.id, self._gpus()))
        self._observed(case, signs_of(Path(self._volume), case.id, self._world_size()))

    def _observed(self, case: EvidenceCase, found: Sequence[Sign | RankStack]) -> None:
        with self._changed:
            for each in found:
                observed = Observed(self._now(), self._stream, each)
                self._signs.append(_AttemptSign(case.attempt, observed))


def _finish(case: EvidenceCase) -> None:
    case.saved.set()
    case.done.set()
