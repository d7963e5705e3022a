# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence from the pod's volume to the checkpoints' storage, before the pod can die.

A sidecar has that storage read-only as a rule, or not at all: so the wrapper is asked, which runs
where it can be written and knows where the job saves. Where no wrapper is left, it is tried from
here. Observing leaves the folder of the checkpoints as it is; then a folder of its own, given for
evidence, is the way off the pod.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mwatch_trainer.evidence.incident_dirs import beside
from mwatch_trainer.evidence.offload import NotCopied, copy

Ask = Callable[[Mapping[str, Any], float], Mapping[str, Any]]
_NO_WRAPPER = ("there is no wrapper", "the wrapper has ended")


class OffloadResult(NamedTuple):
    folder: str | None
    """Where it outlives the pod; None: nowhere."""
    why: str = ""
    """Why not, or what is still to come."""


class OffPod:
    def __init__(self, ask: Ask, save: Callable[[], Path | None], is_act: Callable[[], bool]):
        """`save`: where the job saves, as it is known here."""
        self._ask = ask
        self._save = save
        self._is_act = is_act

    def keep(self, folder: Path, id: str, seconds: float) -> OffloadResult:
        """Of the bundle in `folder`; takes no longer than that. May be asked again: what has
        changed since goes there too."""
        if not self._is_act():
            return OffloadResult(None, "observe mode does not write to the checkpoint folder")
        try:
            answer = self._ask({"op": "keep", "id": id, "seconds": max(0.0, seconds - 1)}, seconds)
        except (OSError, ValueError) as error:
            return OffloadResult(
                None, f"the wrapper did not answer: {error or type(error).__name__}"
            )
        if answer.get("ok") is True:
            words = "" if answer.get("state") == "kept" else "still being copied"
            return OffloadResult(str(answer.get("folder")), words)
        why = str(answer.get("error"))[:300]
        return self._from_here(folder, id, seconds) if why.startswith(_NO_WRAPPER) else _not(why)

    def _from_here(self, folder: Path, id: str, seconds: float) -> OffloadResult:
        """In a thread: storage may hang, and then it goes on without us."""
        save = self._save()
        if save is None:
            return _not("the wrapper is gone, and where the job saves is not known")
        found: list[OffloadResult] = []
        work = threading.Thread(
            target=lambda: found.append(_copied(folder, save, id)), name="mwatch-off-pod",
            daemon=True,
        )  # fmt: skip
        work.start()
        work.join(seconds)
        return found[0] if found else _not(f"{save} did not answer within {seconds:.0f} s")


def _copied(folder: Path, save: Path, id: str) -> OffloadResult:
    if not save.is_dir() or not os.access(save, os.W_OK):
        return _not(f"the wrapper is gone, and {save} cannot be written from here")
    try:
        return OffloadResult(str(copy(str(folder), beside(str(save)), id)["folder"]))
    except (OSError, NotCopied) as error:
        return _not(str(error))


def _not(why: str) -> OffloadResult:
    return OffloadResult(None, why)
