# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a sidecar keeps of a run: what earlier attempts left beside the checkpoints, read once.

It has no story of its own: the controller, which sees all pods, tells that. It writes nothing
beside the checkpoints, which it sees read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mwatch.app.engine import Assessment, Engine, Incident
from mwatch.app.memory import Memory
from mwatch.model.decision import Decision
from mwatch.model.observation import Observed
from mwatch.model.timeline import Rollback

if TYPE_CHECKING:
    from mwatch.app.story_parts import EvidenceFile


class SidecarRecord:
    def __init__(self, engine: Engine, told: Callable[[Observed], None]) -> None:
        """`told` hears of everything that the engine is told."""
        self._engine = engine
        self._memory: Memory | None = None
        self.told = told

    def recall(self, save: Path) -> list[Rollback] | None:
        if self._memory is None:
            self._memory = Memory(save)
        return self._memory.recall(self._engine.job)

    def problems(self) -> list[str]:
        return [] if self._memory is None else self._memory.problems()

    def wait_for_memory(self) -> None: ...
    def looked(self, assessment: Assessment) -> None: ...
    def enacted(self, decision: Decision, at: float) -> None: ...
    def incident(self, incident: Incident, files: Sequence[EvidenceFile]) -> None: ...
    def noted(self, text: str) -> None: ...
    def attempt_ended(self) -> None: ...
    def end(self) -> None: ...
