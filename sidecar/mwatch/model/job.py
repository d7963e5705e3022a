# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""All that is known about a job: what `state` builds, and all that detectors and decisions see.

Everything is bounded. What belongs to one attempt dies with it; a few facts (checkpoints, the
timeline, calibration, the ledger, what earlier attempts printed) outlive it. Only `state`
changes these objects.

Shape and schedule of a job, as its argument block or its probe says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from mwatch.model.calibration import Calibration
from mwatch.model.event import Error, Exit, Fault, Flavour, Straggler
from mwatch.model.fault import CatalogueEntry, Role
from mwatch.model.goodput import GoodputLedger
from mwatch.model.observation import ProcessExit, Sign, SignSource, Source
from mwatch.model.phase import JobPhase
from mwatch.model.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Layout:
    """None: not said yet."""

    world_size: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    expert: int | None = None
    log_interval: int | None = None
    save_interval: int | None = None
    eval_interval: int | None = None
    exit_interval: int | None = None
    total_iterations: int | None = None
    precision: str | None = None
    is_dynamic_scale: bool | None = None
    async_save: bool | None = None
    save_folder: str | None = None
    load_folder: str | None = None
    sequence_length: int | None = None

    @property
    def key(self) -> str:
        """What calibration is kept under: times learnt in one shape say nothing of another."""
        parts = (self.world_size, self.tensor, self.pipeline, self.context, self.expert)
        return "world={} tp={} pp={} cp={} ep={}".format(*("?" if p is None else p for p in parts))

    def coordinates(self, rank: int | None) -> dict[str, int]:
        """Megatron's default order tp-cp-ep-dp-pp; empty where rank or shape are not known."""
        if rank is None or not self.world_size or not 0 <= rank < self.world_size:
            return {}
        tensor, context = self.tensor or 1, self.context or 1
        stage_size = self.world_size // (self.pipeline or 1)
        if not stage_size or stage_size % (tensor * context):
            return {}
        stage, within = divmod(rank, stage_size)
        data, place = divmod(within, tensor * context)
        found = {"tp": place % tensor, "pp": stage, "dp": data}
        return found | {"cp": place // tensor} if context > 1 else found


MAX_STEPS = 2048
MAX_FAULTS = 256
MAX_ERRORS = 64
MAX_PAST_ATTEMPTS = 64
MAX_CHECKPOINTS = 256
MAX_EARLIER_STEPS = 4096
MAX_RANKS = 65536


class Step(NamedTuple):
    """An iteration line, with the double count taken out."""

    at: float
    iteration: int
    covers: int  # Iterations that the averages speak for; at least 1
    new: int  # Of these, how many no earlier line of the attempt has spoken for
    seconds: float | None  # Of one iteration, as printed
    losses: Mapping[str, float]
    loss_scale: float | None
    grad_norm: float | None
    learning_rate: float | None
    consumed_samples: int | None
    batch_size: int | None
    skipped: int  # Among the `new` iterations
    skipped_printed: int
    nan: int
    throughput_tflops: float | None
    is_first_of_process: bool
    flavour: Flavour
    stream: str
    file: str
    line: int

    @property
    def first_covered(self) -> int:
        return self.iteration - self.covers + 1


class FaultSeen(NamedTuple):
    at: float
    stream: str
    fault: Fault
    entry: CatalogueEntry | None
    """None: an id that the catalogue does not know (an older or newer sidecar)."""

    @property
    def is_root(self) -> bool:
        """It may be the cause of what came after it."""
        return self.entry is not None and self.entry.role is Role.ROOT


class ErrorSeen(NamedTuple):
    at: float
    stream: str
    error: Error


class ExitSeen(NamedTuple):
    at: float
    stream: str
    exit: Exit


class ProcessGone(NamedTuple):
    at: float
    stream: str
    exit: ProcessExit


class SignSeen(NamedTuple):
    at: float
    stream: str
    sign: Sign
    first_at: float | None = None
    """When this witness began to say so, without another word in between; None: at `at`."""

    @property
    def since(self) -> float:
        return self.at if self.first_at is None else self.first_at


@dataclass(slots=True)
class RankState:
    rank: int
    at: float  # When its probe last wrote
    iteration: int | None
    moved_at: float  # When its iteration, phase or stack last changed
    progressed_at: float  # When its iteration last changed
    phase: str
    stack: str
    pid: int | None
    stream: str


@dataclass(slots=True)
class Save:
    """A save that was begun in this attempt."""

    iteration: int | None
    began_at: float
    is_async: bool
    queued_at: float | None = None  # An asynchronous save was handed over: training goes on
    is_first: bool = False
    file: str = ""
    line: int = 0


LoadState = Literal["unknown", "begun", "loaded", "random", "failed"]


@dataclass(slots=True)
class Attempt:
    number: int  # From 1
    started_at: float
    late_seconds: float = 0.0
    """Its command was started so long before that: nobody was there to see it."""
    is_numbered: bool = False
    """Somebody who counts attempts gave it its number; else it is counted by what is seen."""
    phase: JobPhase = JobPhase.STARTING
    phase_since: float = 0.0
    first_iteration: int | None = None  # The first iteration that this attempt did
    iteration: int | None = None  # The last one it finished, as far as anybody told
    progress_at: float = 0.0  # When the iteration last rose or the phase last changed
    line_at: float | None = None  # When the last iteration line came
    best_before: int | None = None
    """The furthest iteration of the attempts before it: up to there it repeats."""
    resumed_from: int | None = None
    load: LoadState = "unknown"
    load_iteration: int | None = None  # The checkpoint that it tried to load
    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=MAX_STEPS))
    faults: list[FaultSeen] = field(default_factory=list)
    """The earliest ones, of which the root cause is one; what came after MAX_FAULTS is counted."""
    errors: list[ErrorSeen] = field(default_factory=list)
    dropped: int = 0
    exit: ExitSeen | None = None  # The trainer said good-bye
    is_done: bool = False  # `[after training is done]`, or the last iteration was reached
    gone: dict[str, ProcessGone] = field(default_factory=dict)  # By stream: its command has ended
    ranks: dict[int, RankState] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)
    """Streams that nobody can look at now: what their ranks do is not known."""
    signs: dict[tuple[SignSource, int | None, str], SignSeen] = field(default_factory=dict)
    """Newest word by source, rank and stream."""
    save: Save | None = None  # Open: begun, and neither ended nor failed
    saves_done: int = 0
    last_save_at: float | None = None
    skipped: int = 0  # True counters: the double count is taken out
    nan: int = 0
    straggler: Straggler | None = None
    evaluations: int = 0
    evaluations_before: int = 0  # Of these, told before the last iteration line
    evaluated_after: int | None = None  # Iteration that the last result of an evaluation named
    saw_evaluating: bool = False
    """Somebody told of an evaluation while it went on, since the last iteration line."""
    bad_validation_at: int | None = None
    """Iteration of the first validation that gave NaN or infinity."""
    ended_at: float | None = None
    streams: set[str] = field(default_factory=set)  # That have said anything in this attempt

    @property
    def began_at(self) -> float:
        """What was written after it may be of this attempt, what was before is not."""
        return self.started_at - self.late_seconds

    @property
    def last_progress(self) -> float:
        """When an iteration was finished or a phase began; 0: no time is known."""
        return max(self.progress_at, self.phase_since, self.started_at)

    @property
    def is_finished(self) -> bool:
        """Done, and kept: what dies while the last save is open takes that save with it."""
        return self.is_done and self.save is None


@dataclass(slots=True)
class KnownCheckpoint:
    """From the log (saved, deleted), and from the folder where it can be seen."""

    iteration: int
    saved_at: float | None = None  # When the log said that it was saved
    attempt: int | None = None  # The attempt that wrote it
    is_saved: bool = False  # The log said so: without sight of the folder this is the best there is
    stored: str | None = None
    """State in the folder: `complete`, `unverified`, `incomplete`, `missing`; None: not seen."""
    stored_reason: str | None = None
    written_at: float | None = None
    load_failed: bool = False  # An attempt tried to load it and could not
    is_abandoned: bool = False

    @property
    def made_at(self) -> float | None:
        """When it was written: the folder knows better than the log."""
        return self.saved_at if self.written_at is None else self.written_at


class SourceStatus(NamedTuple):
    is_up: bool
    since: float
    reason: str


@dataclass(slots=True)
class Stream:
    """One pod's view."""

    name: str
    attempt: int = 0  # The attempt that it takes part in; events of a stream that lags are late
    last_iteration: int | None = None
    last_at: float | None = None
    prints_iterations: bool = False
    prints_checkpoints: bool = False


@dataclass(slots=True)
class Job:
    run: str
    catalogue: Mapping[str, CatalogueEntry]
    now: float = 0.0  # The moment of the last observation or look
    layout: Layout = field(default_factory=Layout)
    attempt: Attempt = field(default_factory=lambda: Attempt(1, 0.0))
    past: deque[Attempt] = field(default_factory=lambda: deque(maxlen=MAX_PAST_ATTEMPTS))
    """Ended attempts; their steps, ranks and signs are cut to the newest few."""
    best_iteration: int | None = None
    """The furthest iteration of the line of history that is being continued."""
    earlier_steps: dict[int, Step] = field(default_factory=dict)
    """What earlier attempts printed for an iteration, to hold recomputed ones against."""
    checkpoints: dict[int, KnownCheckpoint] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)
    calibration: Calibration = field(default_factory=Calibration)
    ledger: GoodputLedger = field(default_factory=GoodputLedger)
    sources: dict[Source, SourceStatus] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    has_started: bool = False  # Anything at all was seen

    def sees(self, source: Source) -> bool:
        state = self.sources.get(source)
        return state is not None and state.is_up
