# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a watched run leaves behind: its story, its incidents, and what it learnt.

The story is replaced every few seconds, so that a run whose watcher was killed still has one. A
disk that cannot be written to is told once and changes nothing else.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from mwatch.app import story_json
from mwatch.app.clock import Clock
from mwatch.app.engine import Assessment, Engine, Incident
from mwatch.app.memory import Memory
from mwatch.app.run_folder import RunFolder
from mwatch.app.story import StoryRecorder
from mwatch.app.story_parts import EvidenceFile
from mwatch.model.decision import Decision
from mwatch.model.observation import Observed
from mwatch.model.timeline import Rollback
from mwatch_trainer.scrub import scrub_text

_STORY_SECONDS = 5.0
_MEMORY_SECONDS = 5.0


class RunRecord:
    def __init__(
        self, folder: RunFolder, argv: Sequence[str], engine: Engine, clock: Clock, *, is_act: bool
    ) -> None:
        self._folder = folder
        self._engine = engine
        self._clock = clock
        self._is_act = is_act
        command = scrub_text(shlex.join(argv))
        self._story = StoryRecorder(folder.name, "act" if is_act else "observe", command)
        self._memory: Memory | None = None
        self._written_at = float("-inf")
        self._problem: str | None = None

    def told(self, observed: Observed) -> None:
        self._story.note(self._engine.job, observed)

    def recall(self, save: Path) -> list[Rollback] | None:
        """It is known where the job saves: what it learnt in its earlier life, once it is read."""
        if self._memory is None:
            self._memory = Memory(save)
        return self._memory.recall(self._engine.job)

    def wait_for_memory(self) -> None:
        """Before something is decided by it, within a bound."""
        if self._memory is not None:
            self._memory.wait(_MEMORY_SECONDS)

    def looked(self, assessment: Assessment) -> None:
        self._story.assessed(assessment)
        now = self._clock.now()
        if now - self._written_at >= _STORY_SECONDS:
            self._written_at = now
            self._write(is_over=False)

    def enacted(self, decision: Decision, at: float) -> None:
        self._story.enacted(decision, at)

    def incident(self, incident: Incident, files: Sequence[EvidenceFile]) -> None:
        self._story.incident(incident, files)

    def noted(self, text: str) -> None:
        self._story.noted(text)

    def attempt_ended(self) -> None:
        if self._is_act and self._memory is not None:
            self._memory.keep(self._engine.job)

    def end(self) -> None:
        self._write(is_over=True)

    def problems(self) -> list[str]:
        """What a person should know; may be told again."""
        remembered = [] if self._memory is None else self._memory.problems()
        return remembered if self._problem is None else [*remembered, self._problem]

    def _write(self, *, is_over: bool) -> None:
        try:
            story = self._story.story(self._clock.now(), is_over=is_over)
            story_json.write(story, self._folder.story)
        except OSError as error:
            self._problem = f"the story of the run cannot be written: {error.strerror or error}"
