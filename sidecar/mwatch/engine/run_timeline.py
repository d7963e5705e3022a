# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What happened in a recorded run, in a few lines: starts, loads, saves, good-byes, actions.

Bounded: saves that follow each other are one entry, and a run that starts over and over is cut
in the middle. What was wrong is not written here; incidents tell that.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from mwatch.model.decision import Action, Decision
from mwatch.model.event import Checkpoint, Exit, Iteration, Phase, Validation
from mwatch.model.job import Job
from mwatch.model.observation import Observed

MAX_FIRST = 200
MAX_LAST = 200


@dataclass(slots=True)
class Entry:
    at: float
    kind: str
    """`attempt`, `load`, `first-step`, `save`, `validation`, `exit`, `done` or `action`."""
    text: str
    attempt: int
    iteration: int | None = None
    file: str | None = None
    line: int | None = None
    until: float | None = None
    """Of several that are told as one: the last."""
    count: int = 1


class RunTimeline:
    def __init__(self) -> None:
        self._first: list[Entry] = []
        self._last: deque[Entry] = deque(maxlen=MAX_LAST)
        self.left_out = 0
        self.total_iterations: int | None = None
        self._attempt = 0
        self._has_stepped = False

    @property
    def entries(self) -> list[Entry]:
        return [*self._first, *self._last]

    def note(self, job: Job, observed: Observed) -> None:
        """`job` knows of `observed` already."""
        at, _, what = observed
        if job.attempt.number != self._attempt:
            self._attempt = job.attempt.number
            self._has_stepped = False
            self._add(Entry(job.attempt.started_at, "attempt", f"attempt {self._attempt} starts",
                            self._attempt))  # fmt: skip
        if isinstance(what, Iteration):
            if not self._has_stepped:
                self._step(at, what)
        elif isinstance(what, Checkpoint):
            self._checkpoint(at, what)
        elif isinstance(what, Exit | Phase | Validation):
            self._mark(at, what, job)

    def _mark(self, at: float, what: Exit | Phase | Validation, job: Job) -> None:
        entry = Entry(at, "", "", self._attempt, None, what.file, what.line)
        if isinstance(what, Exit):
            entry.kind, entry.text, entry.iteration = "exit", what.text, what.iteration
            self._add(entry)
        elif isinstance(what, Validation):
            entry.kind, entry.text, entry.iteration = "validation", "evaluated", what.iteration
            self._repeated(entry)
        elif what.name == "training" and what.edge == "end":
            entry.kind, entry.text = "done", "training is done"
            entry.iteration = job.attempt.iteration
            self._add(entry)

    def enacted(self, decision: Decision, at: float) -> None:
        self._add(Entry(at, "action", deed(decision), decision.attempt, decision.resume_from))

    def _step(self, at: float, line: Iteration) -> None:
        self._has_stepped = True
        self.total_iterations = line.total_iterations
        of = "" if line.total_iterations is None else f" of {line.total_iterations}"
        text = f"first line: iteration {line.iteration}{of}"
        self._add(Entry(at, "first-step", text, self._attempt, line.iteration, line.file,
                        line.line))  # fmt: skip

    def _checkpoint(self, at: float, said: Checkpoint) -> None:
        entry = Entry(at, said.op, "", self._attempt, said.iteration, said.file, said.line)
        if said.op == "save" and said.edge == "end":
            entry.text = "saved"
            self._repeated(entry)
        elif said.op == "load" and said.edge in ("end", "failed"):
            where = "" if said.iteration is None else f" checkpoint {said.iteration}"
            is_done = said.edge == "end"
            entry.text = f"loaded{where}" if is_done else said.text.strip()
            self._add(entry)

    def _repeated(self, entry: Entry) -> None:
        """One entry for all of a kind that no other kind of news comes between."""
        for known in reversed(self.entries[-2:]):
            if known.attempt != entry.attempt or known.kind not in ("save", "validation"):
                break
            if known.kind == entry.kind:
                known.count += known.iteration != entry.iteration or known.count > 1
                known.until, known.iteration = entry.at, entry.iteration
                return
        self._add(entry)

    def _add(self, entry: Entry) -> None:
        if len(self._first) < MAX_FIRST:
            self._first.append(entry)
            return
        self.left_out += len(self._last) == MAX_LAST
        self._last.append(entry)


def deed(decision: Decision) -> str:
    """What would have been done, in words."""
    if decision.action is Action.RESTART:
        if decision.resume_from is None:
            return "would have restarted from the beginning"
        return f"would have restarted from checkpoint {decision.resume_from}"
    return "would have stopped the job"
