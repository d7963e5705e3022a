# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What people read about a run: the next step and the runbook of a cause, and a timeline of starts,
loads, saves, exits and actions.

The timeline is bounded: consecutive saves are merged into one entry, and the middle of a run with
very many restarts is left out. Faults are not in it; they are in the incidents.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mwatch import detect
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision, describe_start
from mwatch.model.event import Checkpoint, Exit, Iteration, Phase, Validation
from mwatch.model.fault import CatalogueEntry, Role
from mwatch.model.finding import Finding
from mwatch.model.job import Job
from mwatch.model.observation import Observed


@dataclass(frozen=True, slots=True)
class Advice:
    step: str
    runbook: str | None  # a page of `runbooks/`, without `.md`


_BY_CAUSE: dict[Cause, Advice] = {
    Cause.HEALTHY: Advice("nothing to do", None),
    Cause.FINISHED: Advice("nothing to do: training is done", None),
    Cause.HANG: Advice(
        "take stacks and the flight recorder of every rank before you restart",
        "collective-timeout",
    ),
    Cause.FABRIC: Advice("check links and counters of the nodes that are named", "fabric"),
    Cause.KILLED: Advice(
        "find out who sent the signal: the kernel (out of memory), the scheduler, or a person",
        "process-crash",
    ),
    Cause.LOST_POD: Advice("look at the pod's node: is it there, and ready?", "kubernetes"),
    Cause.STORAGE: Advice("check that the volume is mounted, writable and not full", "storage"),
    Cause.CRASH: Advice("read the first error of the rank that is named", "process-crash"),
    Cause.FINISHED_EARLY: Advice(
        "see why it ended before its last iteration (a signal, a time limit, early stopping, data"
        " that are used up), then start it again",
        "process-crash",
    ),
    Cause.HARDWARE: Advice("keep the job off the node, and have the GPU checked", "gpu-hardware"),
    Cause.RERUN: Advice("resume as Megatron asks, on another GPU if there is one", "numerics"),
    Cause.NAN: Advice(
        "restart from the checkpoint before the first bad iteration; if it comes back at the "
        "same samples, skip them",
        "numerics",
    ),
    Cause.LOSS_SCALE_COLLAPSE: Advice(
        "restart from the checkpoint before the fall; consider bf16 or a lower learning rate",
        "numerics",
    ),
    Cause.LOSS_SPIKE: Advice("restart from before the spike, or skip its samples", "numerics"),
    Cause.CHECKPOINT: Advice(
        "restart from the checkpoint before it; `mwatch checkpoints DIR` lists what is whole",
        "checkpoint",
    ),
    Cause.RESUME_DIVERGED: Advice(
        "compare the resume: was the optimizer loaded, is the data position right?", "checkpoint"
    ),
    Cause.OOM: Advice(
        "lower the micro batch size, or shard more: a restart fails again", "out-of-memory"
    ),
    Cause.USER_ERROR: Advice("fix the arguments or the code: a restart fails again", "user-code"),
    Cause.DATA: Advice("check the data files that are named: a restart fails again", "data"),
    Cause.STARTED_FROM_RANDOM: Advice(
        "stop it if it should have resumed, and check --load and the tracker file", "checkpoint"
    ),
    Cause.SLOW: Advice("look for the slow rank, a slow link, or a slow data loader", None),
    Cause.LOSS_STUCK: Advice("check learning rate, data and what was loaded", "numerics"),
    Cause.CHECKPOINT_OVERDUE: Advice("check that the save folder can be written to", "checkpoint"),
    Cause.BLIND: Advice("name the log that the trainer's last rank prints, and rank 0's", None),
    Cause.UNKNOWN: Advice(
        "see how the processes ended (exit code, kernel log); if it still runs, use --until now",
        "process-crash",
    ),
}
_ELSE = Advice("see what Kubernetes says about the job", "kubernetes")


_OLDER = re.compile(r"checkpoint before|from before", re.I)
_KNOWN = re.compile(r"resume from (?:checkpoint )?\d")
_NO_OLDER = (
    "no checkpoint from before it is known here: `mwatch checkpoints DIR` lists what is whole; "
    "without one, start again from the beginning"
)


def advise(
    cause: Cause,
    finding: Finding | None,
    catalogue: Mapping[str, CatalogueEntry],
    decision: Decision | None = None,
) -> Advice:
    """Return the advice for a cause.

    With `decision`, an older checkpoint is recommended only if one is known.
    """
    advice = _advise(cause, finding, catalogue)
    if decision is None or decision.action is Action.NONE or not _OLDER.search(advice.step):
        return advice
    is_known = decision.resume_from is not None or _KNOWN.search(decision.proposal or "")
    return advice if is_known else replace(advice, step=_NO_OLDER)


def _advise(
    cause: Cause, finding: Finding | None, catalogue: Mapping[str, CatalogueEntry]
) -> Advice:
    usual = _BY_CAUSE.get(cause, _ELSE)
    if finding is None or finding.cause not in (cause, Cause.RERUN):
        return usual
    entry = catalogue.get(finding.fault) if finding.fault else None
    if entry is not None and entry.role is Role.ROOT:
        return Advice(entry.fix, entry.runbook)
    if finding.next_step:
        usual = replace(usual, step=finding.next_step)
    page = next((each.runbook for each in detect.ALL if each.name == finding.detector), None)
    return usual if usual.runbook or not page else replace(usual, runbook=page)


MAX_FIRST = 200
MAX_LAST = 200


@dataclass(slots=True)
class Entry:
    at: float
    kind: str  # `attempt`, `load`, `first-step`, `save`, `validation`, `exit`, `done` or `action`
    text: str
    attempt: int
    iteration: int | None = None
    file: str | None = None
    line: int | None = None
    until: float | None = None  # time of the last of several merged ones
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
        """Add `observed`, which is already folded into `job`, if it is a kind of entry."""
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
        self._add(Entry(at, "action", described(decision), decision.attempt, decision.resume_from))

    def _step(self, at: float, line: Iteration) -> None:
        self._has_stepped = True
        self.total_iterations = line.total_iterations
        of = "" if line.total_iterations is None else f" of {line.total_iterations}"
        text = f"first line: iteration {line.iteration}{of}"
        self._add(Entry(at, "first-step", text, self._attempt, line.iteration, line.file,
                        line.line))  # fmt: skip

    def _checkpoint(self, at: float, line: Checkpoint) -> None:
        entry = Entry(at, line.op, "", self._attempt, line.iteration, line.file, line.line)
        if line.op == "save" and line.edge == "end":
            entry.text = "saved"
            self._repeated(entry)
        elif line.op == "load" and line.edge in ("end", "failed"):
            where = "" if line.iteration is None else f" checkpoint {line.iteration}"
            is_done = line.edge == "end"
            entry.text = f"loaded{where}" if is_done else line.text.strip()
            self._add(entry)

    def _repeated(self, entry: Entry) -> None:
        """Merge the entry with an earlier one of its kind; saves and validations may alternate."""
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


def described(decision: Decision) -> str:
    """The action that would have been taken, as text."""
    if decision.action is Action.RESTART:
        start = describe_start(decision.resume_from, decision.resume_reason)
        return f"would have restarted {start}"
    return "would have stopped the job"
