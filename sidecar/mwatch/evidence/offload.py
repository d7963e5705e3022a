# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Copies evidence from the pod's volume to the storage of the checkpoints, before the pod can die.

A sidecar usually has that storage read-only or not at all, so it asks the wrapper, which can write
it. Without a wrapper it tries to copy by itself. In observe mode nothing is written beside the
checkpoints; a separate evidence folder is then the way off the pod.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mwatch_trainer.evidence.incidents import NotCopied, beside, copy

Ask = Callable[[Mapping[str, Any], float], Mapping[str, Any]]
"""Sends a request to the wrapper's control socket, with a time limit in seconds. OSError or
ValueError if there is no answer."""
_NO_WRAPPER = ("there is no wrapper", "the wrapper has ended")


class OffloadResult(NamedTuple):
    folder: str | None
    """Where it outlives the pod; None if it was not copied."""
    why: str = ""
    """Why it was not copied, or what is still under way."""


class OffPod:
    def __init__(self, ask: Ask, save: Callable[[], Path | None], is_act: Callable[[], bool]):
        self._ask = ask
        self._save = save
        self._is_act = is_act

    def keep(self, folder: Path, id: str, seconds: float) -> OffloadResult:
        """Copy the bundle in `folder` within that time; again if something has changed."""
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
        """Copy in a thread, which goes on alone if the storage hangs."""
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
