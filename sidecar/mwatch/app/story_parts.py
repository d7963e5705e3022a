# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a story of a run is made of: plain values, each as it is written to `story.json`.

Names of causes, phases and the like are text here: a page can show one that this version of
mwatch does not know. Moments are seconds since 1970, or since the first line where the log
prints no times. None is what nobody can tell.
"""

from __future__ import annotations

from dataclasses import dataclass

from mwatch_trainer.scrub import Scrubber

MAX_EXCERPTS = 8
MAX_WORDS = 2000
"""Characters of one text: a log line may be megabytes long."""
_LOOKED_AT = 4
"""A secret that is cut in the middle is not known any more: more is scrubbed than is kept."""


@dataclass(frozen=True, slots=True)
class Clock:
    """How moments are told to people."""

    is_relative: bool = False
    """Seconds since the first line."""
    zone: str = ""
    """Empty: that of the log, which is not named."""
    offset_seconds: float = 0.0
    """What is added to UTC."""


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    attempt: int
    phase: str
    began_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class AttemptStory:
    number: int
    started_at: float
    ended_at: float | None
    first_iteration: int | None
    last_iteration: int | None
    resumed_from: int | None
    recomputed: int
    """Iterations that an earlier attempt had done."""
    cause: str
    """How it ended, or what is the matter with it now."""
    summary: str


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A line of evidence."""

    file: str | None
    line: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Voice:
    """What one detector said."""

    detector: str
    summary: str
    severity: str
    evidence: tuple[Excerpt, ...] = ()


@dataclass(frozen=True, slots=True)
class WitnessStory:
    name: str
    agrees: bool
    text: str


@dataclass(frozen=True, slots=True)
class EvidenceFile:
    """Kept on disk; `path` is told from the folder of the run where it lies in it."""

    path: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class IncidentStory:
    """One thing that went wrong in one attempt, whoever found it and however often."""

    attempt: int
    cause: str
    severity: str
    summary: str
    since_iteration: int | None
    since_at: float | None
    detected_at: float
    decided_at: float | None = None
    acted_at: float | None = None
    closed_at: float | None = None
    recovered_at: float | None = None
    """A later attempt had done again all that was lost."""
    times: int = 1
    confidence: float = 1.0
    culprit: str | None = None
    action: str = "none"
    resume_from: int | None = None
    """The checkpoint that mwatch chose."""
    reason: str = ""
    resume_reason: str = ""
    resumed_from: int | None = None
    """The checkpoint that the next attempt really began with; 0: with none."""
    lost_steps: int | None = None
    proposal: str | None = None
    advice: str = ""
    runbook: str | None = None
    witnesses: tuple[WitnessStory, ...] = ()
    voices: tuple[Voice, ...] = ()
    files: tuple[EvidenceFile, ...] = ()


@dataclass(frozen=True, slots=True)
class SpentStory:
    """One class of the ledger."""

    name: str
    seconds: float
    gpu_seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointStory:
    iteration: int
    saved_at: float | None
    state: str
    """`good`, `abandoned` (of a line that nobody continues), `broken`, or `unknown`."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ValidationStory:
    attempt: int
    iteration: int
    at: float
    loss: float


@dataclass(frozen=True, slots=True)
class SightStory:
    """Something mwatch can watch by."""

    name: str
    is_up: bool
    since: float | None
    """None: it was never up."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Happening:
    at: float
    kind: str
    text: str
    attempt: int
    iteration: int | None = None


def short(text: str, most: int = MAX_WORDS) -> str:
    """As it may be kept and shown: without secrets, and of bounded length."""
    text = Scrubber().text(text[: _LOOKED_AT * most])
    return text if len(text) <= most else text[: most - 1] + "…"
