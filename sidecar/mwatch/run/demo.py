# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch demo`: a small training that fails in several ways and is recovered each time.

With torch, everything but the size is real: two ranks of Megatron-core's GPT over gloo. Without it,
a stand-in trains nothing and prints what Megatron prints, in two processes. Signals, checkpoints,
engine, wrapper and probe are real in both. Thresholds meant for jobs of hours are shortened. Each
fault is announced before it happens. A fault counts as recovered if it was detected after it
happened, and training resumed from the right checkpoint and passed the iteration it had reached.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mwatch.engine.engine import Assessment
from mwatch.errors import InputError
from mwatch.evidence.incident_store import IncidentFiles
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.incident import IncidentRecord
from mwatch.model.job import Job
from mwatch.model.settings import ActSettings, CheckpointSettings, DeadlineSettings, Settings
from mwatch.report import story_json
from mwatch.report.html import page
from mwatch.run import folder as run_folder
from mwatch.run.assemble import MakeView, RunRequest, ShownRun, run
from mwatch.run.folder import RunFolder
from mwatch.run.process import TrainerOutput
from mwatch.watch.watcher import RunObserver

_NEEDED = ("torch", "megatron.core")
_SAVE_INTERVAL = 20
_INTERRUPTED = frozenset({129, 130, 143})
_REAL = (
    *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    *("-m", "mwatch_gpt"),
)
_STAND_IN = ("-m", "mwatch_gpt.stand_in")
STAND_IN_TEXT = "a stand-in: it trains nothing, and prints what Megatron prints"


@dataclass(frozen=True, slots=True)
class DemoFault:
    title: str
    flags: tuple[str, ...]
    """Values of the trainer's `--fault`; the last one brings the run down."""
    causes: frozenset[Cause]
    resume_from: int
    """The checkpoint that mwatch should choose."""

    @property
    def iteration(self) -> int:
        """The iteration at which the fault brings the run down."""
        return int(self.flags[-1].partition("@")[2].partition(":")[0])


@dataclass(frozen=True, slots=True)
class Training:
    """One run. The NaN fault needs bf16: fp16 skips such steps until its loss scale collapses."""

    name: str
    precision: tuple[str, ...]
    iterations: int
    """Enough to continue for some seconds after the last fault."""
    faults: tuple[DemoFault, ...]
    program: tuple[str, ...] = _REAL
    """Arguments for the Python interpreter."""


TRAININGS = (
    Training(
        "demo-bf16",
        ("--bf16",),
        220,
        (
            DemoFault(
                "a rank stops (SIGSTOP)", ("sigstop@45:rank=1",), frozenset({Cause.HANG}), 40
            ),
            DemoFault("a weight becomes NaN", ("nan@85",), frozenset({Cause.NAN}), 80),
        ),
    ),
    Training(
        "demo-fp16",
        ("--fp16", "--initial-loss-scale", "4096", "--loss-scale-window", "100"),
        240,
        (
            DemoFault(
                "the loss scale collapses",
                ("loss-scale-collapse@25",),
                frozenset({Cause.LOSS_SCALE_COLLAPSE}),
                20,
            ),
            DemoFault(
                "a rank is killed (SIGKILL)", ("kill@165:rank=0",), frozenset({Cause.KILLED}), 160
            ),
            DemoFault(
                "a rank is killed, and the newest checkpoint is corrupt",
                ("corrupt-checkpoint@200", "kill@205:rank=1"),
                frozenset({Cause.KILLED, Cause.CHECKPOINT}),
                180,
            ),
        ),
    ),
)
STAND_IN = Training(
    "demo-stand-in",
    ("--bf16",),
    150,
    (
        DemoFault("a rank stops (SIGSTOP)", ("sigstop@45:rank=1",), frozenset({Cause.HANG}), 40),
        DemoFault("the loss becomes NaN", ("nan@65",), frozenset({Cause.NAN}), 60),
        DemoFault(
            "killed, last checkpoint corrupt",
            ("corrupt-checkpoint@100", "kill@105:rank=1"),
            frozenset({Cause.KILLED, Cause.CHECKPOINT}),
            80,
        ),
    ),
    _STAND_IN,
)


class Row(NamedTuple):
    """The outcome of one fault."""

    title: str
    happened_at: float | None
    record: IncidentRecord | None
    is_recovered: bool

    @property
    def detected_after(self) -> float | None:
        detected = self.record.times.detected if self.record else None
        if detected is None or self.happened_at is None:
            return None
        return max(0.0, detected - self.happened_at)


class DemoResult(NamedTuple):
    folders: Sequence[RunFolder]
    rows: Sequence[Row]
    seconds: float
    exit_codes: Sequence[int]
    """One per training."""
    is_stand_in: bool = False

    @property
    def interrupted_by(self) -> int | None:
        """The exit code of an interrupted training, if any."""
        return next((code for code in self.exit_codes if code in _INTERRUPTED), None)

    @property
    def is_fine(self) -> bool:
        return not any(self.exit_codes) and all(row.is_recovered for row in self.rows)


class Announcer:
    """A view that announces each fault: the first one at the start of the training, each other
    one when a new attempt has passed the iteration of the fault before it."""

    def __init__(self, view: RunObserver, training: Training) -> None:
        self._view = view
        self._is_stand_in = training.program == _STAND_IN
        self._faults = deque(training.faults)
        self._past: int | None = None
        self._has_restarted = False

    def __getattr__(self, name: str) -> Callable[..., None]:
        call: Callable[..., None] = getattr(self._view, name)
        return call

    def began(self, number: int, resume_from: int | None, reason: str) -> None:
        self._view.began(number, resume_from, reason)
        if self._past is None:
            if self._is_stand_in:
                self._view.noted(f"the trainer is {STAND_IN_TEXT}")
            self._announce()
        else:
            self._has_restarted = True

    def looked(self, job: Job, assessment: Assessment) -> None:
        self._view.looked(job, assessment)
        if self._has_restarted and (job.attempt.iteration or 0) > (self._past or 0):
            self._announce()

    def _announce(self) -> None:
        if self._faults:
            fault = self._faults.popleft()
            self._past = fault.iteration
            self._has_restarted = False
            text = f"about to break: {fault.title}, at iteration {fault.iteration}"
            self._view.noted(f"{text}; should resume from checkpoint {fault.resume_from}")


def settings() -> Settings:
    """Settings for a job of minutes: a restart costs seconds, so long waits gain nothing."""
    usual = Settings()
    act = ActSettings(
        restarts_per_window=12,
        max_same_fingerprint=12,
        backoff_first_seconds=1.0,
        backoff_factor=1.0,
        default_restart_cost_seconds=5.0,
        min_restart_cost_seconds=2.0,
        stall_factor=1.0,
    )
    saves = DeadlineSettings(60, 3, 15, 120)
    deadlines = replace(usual.deadlines, first_save=saves, saving=saves)
    checkpoints = CheckpointSettings(max_rollbacks=5)
    return replace(usual, act=act, deadlines=deadlines, checkpoints=checkpoints)


def demo(
    *,
    quick: bool,
    is_stand_in: bool | None,
    parent: Path,
    port: int | None,
    output: TrainerOutput,
    view: MakeView,
) -> DemoResult:
    """`quick`: only two faults. `is_stand_in`: see `choose`."""
    is_stand_in = choose(is_stand_in=is_stand_in)
    began = time.monotonic()
    folders: list[RunFolder] = []
    rows: list[Row] = []
    codes: list[int] = []
    for training in _trainings(quick=quick, is_stand_in=is_stand_in):
        folder = run_folder.make(parent, training.name, (), time.time())
        request = RunRequest(
            argv=command(folder, training),
            folder=folder,
            is_act=True,
            settings=settings(),
            port=port,
            grace_seconds=5.0,
            output=output,
        )
        ended = run(request, partial(_announced, view, training))
        folder.report.write_text(page.render(story_json.read(folder.story)), "utf-8")
        folders.append(folder)
        rows += _rows(folder, training.faults)
        codes.append(ended.exit_code)
        if ended.exit_code in _INTERRUPTED:
            break
    return DemoResult(folders, rows, time.monotonic() - began, codes, is_stand_in)


def choose(*, is_stand_in: bool | None) -> bool:
    """Return whether to use the stand-in. None: use it if the real trainer is not installed.

    Raise InputError if the real one is requested but not installed.
    """
    missing = [name for name in _NEEDED if not _is_there(name)]
    if missing and is_stand_in is False:
        fix = "run pip install 'mwatch[demo]' (several gigabytes), or `make demo` in a checkout"
        raise InputError(f"--real needs {' and '.join(missing)}, not installed; {fix}")
    return bool(missing) if is_stand_in is None else is_stand_in


def _trainings(*, quick: bool, is_stand_in: bool) -> Sequence[Training]:
    if is_stand_in:
        return (replace(STAND_IN, faults=STAND_IN.faults[:2]) if quick else STAND_IN,)
    return TRAININGS[:1] if quick else TRAININGS


def _announced(view: MakeView, training: Training, shown: ShownRun) -> RunObserver:
    observer: Any = Announcer(view(shown), training)
    return observer  # type: ignore[no-any-return]


def command(folder: RunFolder, training: Training) -> list[str]:
    flags = [flag for fault in training.faults for flag in fault.flags]
    save = str(folder.path / "checkpoints")
    trainer = [
        *("--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4"),
        *("--seq-length", "64", "--micro-batch-size", "2", "--global-batch-size", "4"),
        *("--lr", "1e-3", "--train-iters", str(training.iterations), "--log-interval", "1"),
        *("--save", save, "--load", save, "--save-interval", str(_SAVE_INTERVAL)),
        *("--eval-interval", "1000", "--eval-iters", "1", *training.precision),
        *("--no-check-for-nan-in-loss-and-grad", "--fault-state", str(_markers(folder))),
        *(part for flag in flags for part in ("--fault", flag)),
    ]
    return [sys.executable, *training.program, *trainer]


def _markers(folder: RunFolder) -> Path:
    return folder.path / "faults"


def _rows(folder: RunFolder, faults: Sequence[DemoFault]) -> list[Row]:
    records = list(IncidentFiles(folder.incidents).read().records)
    acted = [each for each in records if each.is_carried_out]
    rows = []
    for fault in faults:
        at = _happened_at(folder, fault)
        mine = next((each for each in acted if at and (each.times.detected or 0) >= at), None)
        if mine is not None:
            acted.remove(mine)
        rows.append(Row(fault.title, at, mine, _is_recovered(fault, mine)))
    return rows


def _happened_at(folder: RunFolder, fault: DemoFault) -> float | None:
    """Read the marker that the trainer writes just before it injects a fault."""
    name = fault.flags[-1].replace(":", ".")
    for marker in sorted(_markers(folder).glob(f"{name}.by-rank-*")):
        try:
            return float(marker.read_text("utf-8").split()[0])
        except (OSError, ValueError, IndexError):
            continue
    return None


def _is_recovered(fault: DemoFault, record: IncidentRecord | None) -> bool:
    return (
        record is not None
        and record.action is Action.RESTART
        and record.cause in fault.causes
        and record.resume_from == fault.resume_from
        and record.times.first_new_iteration is not None
    )


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
