# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The state of a job: built by `state`, read by detectors and decisions.

All collections are bounded. The state of an attempt ends with it; checkpoints, the timeline,
calibration, the goodput ledger and earlier printed steps are kept across attempts. Only `state`
changes these objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from mwatch.model.calibration import Calibration
from mwatch.model.event import Error, Exit, Fault, Overflow, Straggler
from mwatch.model.fault import CatalogueEntry, Role
from mwatch.model.goodput import GoodputLedger
from mwatch.model.observation import (
    Observed,
    ProcessExit,
    RankStack,
    Sign,
    SignSource,
    SignState,
    Source,
)
from mwatch.model.phase import JobPhase
from mwatch.model.step import Step, StepWindow
from mwatch.model.timeline import Timeline

_OF_PROCESSES = (SignSource.PROCESS, SignSource.CPU_TIME)


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape and schedule of a job, from its argument block or its probe; None: not known yet."""

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
        """Key of the calibration: times learnt in one layout do not apply to another."""
        parts = (self.world_size, self.tensor, self.pipeline, self.context, self.expert)
        return "world={} tp={} pp={} cp={} ep={}".format(*("?" if p is None else p for p in parts))

    def coordinates(self, rank: int | None) -> dict[str, int]:
        """Return the parallel coordinates of a rank, in Megatron's default order tp-cp-ep-dp-pp.

        Empty if the rank or the layout is not known.
        """
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
MAX_OVERFLOWS = 64
MAX_ERRORS = 64
MAX_PAST_ATTEMPTS = 64
MAX_CHECKPOINTS = 256
MAX_EARLIER_STEPS = 4096
MAX_RANKS = 65536
MAX_ASIDES = 64


class FaultSeen(NamedTuple):
    at: float
    stream: str
    fault: Fault
    entry: CatalogueEntry | None
    """None: the id is not in this catalogue; it is from an older or newer sidecar."""

    @property
    def is_root(self) -> bool:
        """Whether it may be the cause of later faults."""
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
    is_printed: bool = False  # only a log line reports it


@dataclass(slots=True)
class SignSeen:
    at: float
    stream: str
    sign: Sign
    first_at: float | None = None
    """When this witness began to report the same state without interruption; None: at `at`."""

    @property
    def since(self) -> float:
        return self.at if self.first_at is None else self.first_at


class StackSeen(NamedTuple):
    at: float
    stream: str
    stack: RankStack


@dataclass(slots=True)
class RankState:
    rank: int
    at: float  # when its probe last wrote
    iteration: int | None
    moved_at: float  # when its iteration, phase or stack last changed
    progressed_at: float  # when its iteration last changed
    phase: str
    stack: str
    pid: int | None
    stream: str


@dataclass(slots=True)
class Save:
    """A save that began in this attempt."""

    iteration: int | None
    began_at: float
    is_async: bool
    queued_at: float | None = None  # when an asynchronous save was queued, and training went on
    is_first: bool = False
    file: str = ""
    line: int = 0


@dataclass(slots=True)
class PrintedEnd:
    stream: str
    phase: JobPhase  # before the end
    phase_since: float
    ledger: GoodputLedger  # before the end
    lines_after: int = 0


LoadState = Literal["unknown", "begun", "loaded", "random", "failed"]


@dataclass(slots=True)
class Attempt:
    number: int  # from 1
    started_at: float
    late_seconds: float = 0.0  # how long before `started_at` its command was started, unobserved
    is_numbered: bool = False
    """True: the wrapper or the controller gave the number. False: counted from the log."""
    phase: JobPhase = JobPhase.STARTING
    phase_since: float = 0.0
    first_iteration: int | None = None  # the first iteration of this attempt
    iteration: int | None = None  # the last one that is known to be finished
    progress_at: float = 0.0  # when the iteration last rose or the phase last changed
    line_at: float | None = None  # when the last iteration line came
    best_before: int | None = None
    """The furthest iteration of earlier attempts; up to it this attempt repeats work."""
    resumed_from: int | None = None
    load: LoadState = "unknown"
    load_iteration: int | None = None  # the checkpoint that it tried to load
    steps: StepWindow = field(default_factory=lambda: StepWindow(maxlen=MAX_STEPS))
    faults: list[FaultSeen] = field(default_factory=list)
    """The earliest ones, as one is the root cause; `dropped` counts those after MAX_FAULTS."""
    errors: list[ErrorSeen] = field(default_factory=list)
    exceptions: list[ErrorSeen] = field(default_factory=list)
    """Exceptions without a whole traceback: they may explain an end, but do not prove one."""
    dropped: int = 0
    exit: ExitSeen | None = None  # the trainer printed that it exits
    is_done: bool = False  # `[after training is done]`, or the last iteration was reached
    is_done_by_process: bool = False  # a launcher reported that a process exited with 0
    gone: dict[str, ProcessGone] = field(default_factory=dict)  # ended commands, by stream
    ranks: dict[int, RankState] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)
    """Streams that cannot be reached: the state of their ranks is unknown."""
    signs: dict[tuple[SignSource, int | None, str], SignSeen] = field(default_factory=dict)
    """Newest report by source, rank and stream."""
    moved_at: dict[tuple[SignSource, int | None, str], float] = field(default_factory=dict)
    """The last time of MOVING, for each of these witnesses that reports another state now."""
    released_at: float = 0.0
    """When a person last released a process: detached a debugger or continued a stopped command."""
    stacks: dict[int, StackSeen] = field(default_factory=dict)
    """Newest dump by rank."""
    save: Save | None = None  # a save that has begun, and has neither ended nor failed
    saves_done: int = 0
    last_save_at: float | None = None
    skipped: int = 0  # without double counts, as `nan`
    overflows: deque[tuple[float, Overflow]] = field(
        default_factory=lambda: deque(maxlen=MAX_OVERFLOWS)
    )
    """Newest messages of a loss scaler, with their times."""
    nan: int = 0
    straggler: Straggler | None = None
    evaluations: int = 0
    evaluations_before: int = 0  # of these, before the last iteration line
    evaluated_after: int | None = None  # iteration of the last evaluation result
    saw_evaluating: bool = False
    """An evaluation was observed while it ran, since the last iteration line."""
    asides: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_ASIDES))
    """After which iterations a save or an evaluation was observed."""
    aside_count: int = 0
    probed_asides: set[JobPhase] = field(default_factory=set)
    """Those of SAVING and EVALUATING that the probe has shown, and so will show again."""
    bad_validation_at: int | None = None  # iteration of the first validation with NaN or infinity
    ended_at: float | None = None
    printed_end: PrintedEnd | None = None
    """Set if only printed text reports the end; it is reverted if training goes on."""
    streams: set[str] = field(default_factory=set)  # streams that took part in this attempt

    @property
    def began_at(self) -> float:
        """When the attempt began: files written before this time are not from it."""
        return self.started_at - self.late_seconds

    @property
    def last_progress(self) -> float:
        """When an iteration was finished or a phase began; 0: unknown."""
        return max(self.progress_at, self.phase_since, self.started_at)

    @property
    def waits_since(self) -> float:
        """The last progress, or the time when a person last released the run, if that is later."""
        return max(self.last_progress, self.released_at)

    @property
    def ended_itself(self) -> bool:
        """Whether all of its processes exited with 0 and no reason is printed or known."""
        ends = [gone.exit for gone in self.gone.values()]
        is_good = all(end.exit_code == 0 and not end.signal and not end.reason for end in ends)
        is_whole = bool(ends) and self.streams <= self.gone.keys()
        return is_good and is_whole and self.exit is None and not self.errors

    @property
    def is_finished(self) -> bool:
        """Whether training is done and saved: an exit during the last save loses that save."""
        return self.is_done and self.save is None


@dataclass(slots=True)
class KnownCheckpoint:
    """A checkpoint known from the log (saved, deleted), and from the folder if it is readable."""

    iteration: int
    saved_at: float | None = None  # when the log reported the save
    attempt: int | None = None  # the attempt that wrote it
    is_saved: bool = False  # the log reports the save: the best evidence without the folder
    stored: str | None = None
    """State in the folder: `complete`, `unverified`, `incomplete`, `missing`; None: unknown."""
    stored_reason: str | None = None
    written_at: float | None = None
    load_failed: bool = False  # an attempt failed to load it
    is_abandoned: bool = False

    @property
    def is_written(self) -> bool:
        """Whether the log reports the save, or the folder holds all of it."""
        return self.is_saved or self.stored == "complete"

    @property
    def made_at(self) -> float | None:
        """When it was written: by the folder if known, which is more exact than the log."""
        return self.saved_at if self.written_at is None else self.written_at


class SourceStatus(NamedTuple):
    is_up: bool
    since: float
    reason: str


@dataclass(slots=True)
class Stream:
    """One pod's view."""

    name: str
    attempt: int = 0  # the attempt it takes part in; if that is an earlier one, its events are late
    last_iteration: int | None = None
    last_stamp: str | None = None  # the time that its last iteration line printed
    has_quoted: bool = False  # it has printed lines of another run since that line
    last_at: float | None = None
    prints_iterations: bool = False
    prints_checkpoints: bool = False
    has_wrapper: bool = False
    """A wrapper started its command and will report the end, so printed text does not prove one."""
    printed_at_start: set[str] = field(default_factory=set)
    """Kinds of lines printed once per process start that were printed in this attempt."""
    confirmed: ConfirmedSigns | None = field(default=None, compare=False, repr=False)


class ConfirmedSigns(NamedTuple):
    """Reports of a pod's witnesses that its last snapshot only confirmed; see `state.steady`."""

    signs: Sequence[Observed]
    seen: Sequence[SignSeen]
    """The entry of each report in `Attempt.signs`."""
    attempt: int


@dataclass(slots=True)
class Job:
    run: str
    catalogue: Mapping[str, CatalogueEntry]
    now: float = 0.0  # time of the last observation or evaluation
    layout: Layout = field(default_factory=Layout)
    attempt: Attempt = field(default_factory=lambda: Attempt(1, 0.0))
    past: deque[Attempt] = field(default_factory=lambda: deque(maxlen=MAX_PAST_ATTEMPTS))
    """Ended attempts; only the newest steps, ranks and signs are kept."""
    best_iteration: int | None = None  # the furthest iteration of the current line of history
    earlier_steps: dict[int, Step] = field(default_factory=dict)
    """Steps that earlier attempts printed, to compare recomputed ones with."""
    checkpoints: dict[int, KnownCheckpoint] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)
    calibration: Calibration = field(default_factory=Calibration)
    ledger: GoodputLedger = field(default_factory=GoodputLedger)
    sources: dict[Source, SourceStatus] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """File names of streams that are files of a recording, whose pods are unknown."""
    has_started: bool = False  # anything was observed

    def pod_of(self, stream: str | None) -> str | None:
        return None if stream in self.files else stream

    def file_of(self, stream: str | None) -> str | None:
        """Return the file name of a stream; None: it is a pod, or the only file."""
        return self.files.get(stream or "") if len(self.files) > 1 else None

    def has_wrapper(self, stream: str) -> bool:
        return stream in self.streams and self.streams[stream].has_wrapper

    def suspended_since(self) -> float | None:
        """When a signal had stopped all processes of all pods; None: at least one is running."""
        signs = self.attempt.signs
        held = {
            stream: seen.since
            for (source, _, stream), seen in signs.items()
            if source is SignSource.PROCESS and seen.sign.state is SignState.SUSPENDED
        }
        watched = {stream for source, _, stream in signs if source in _OF_PROCESSES}
        return max(held.values()) if held and len(held) == len(watched) else None

    def end_of(self, attempt: Attempt) -> int:
        """Return the last iteration that an attempt has finished, or from which it resumed.

        If the line of the last step was lost, a checkpoint of that step counts.
        """
        saved = (each for each in self.checkpoints.values() if each.is_written)
        own = (each.iteration for each in saved if each.attempt == attempt.number)
        return max(attempt.iteration or 0, attempt.resumed_from or 0, *own)

    @property
    def ended_itself_twice(self) -> bool:
        """Whether the attempt resumed and exited with 0 at the same place as the previous one.

        It made no step beyond that place, so the program is done by its own rules.
        """
        now, before = self.attempt, self.past[-1] if self.past else None
        if before is None or not (now.ended_itself and before.ended_itself):
            return False
        if not now.resumed_from or now.load in ("failed", "random"):
            return False
        ends = self.end_of(now), self.end_of(before)
        if ends[0] > now.resumed_from:
            return ends[0] == ends[1]
        return ends[0] < ends[1] + (self.layout.log_interval or 1)

    @property
    def is_alone(self) -> bool:
        """Whether the job has one rank, which waits for no other rank and uses no fabric."""
        return self.layout.world_size == 1

    def sees(self, source: Source) -> bool:
        state = self.sources.get(source)
        return state is not None and state.is_up
