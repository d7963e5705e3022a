# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every threshold, with its unit and its reason. One tree; a policy file (TOML) has its shape."""

from __future__ import annotations

from dataclasses import dataclass, field

from mwatch.model.phase import Slot


@dataclass(frozen=True, slots=True)
class DeadlineSettings:
    default_seconds: float
    """Before this job has shown how long it takes."""
    factor: float
    floor_seconds: float
    ceiling_seconds: float


@dataclass(frozen=True, slots=True)
class Deadlines:
    """When a phase counts as stalled. Acting on it is another matter: see ActSettings."""

    quantile: float = 0.95
    starting: DeadlineSettings = DeadlineSettings(3600, 3, 300, 7200)  # index build: up to an hour
    loading: DeadlineSettings = DeadlineSettings(1800, 3, 120, 7200)
    first_step: DeadlineSettings = DeadlineSettings(1800, 3, 120, 3600)  # compile, graph capture
    training: DeadlineSettings = DeadlineSettings(1800, 2, 5, 7200)  # between iteration lines
    first_save: DeadlineSettings = DeadlineSettings(1800, 3, 180, 7200)  # seen: 18 s, then 0.7 s
    saving: DeadlineSettings = DeadlineSettings(1800, 3, 120, 7200)
    async_finalize: DeadlineSettings = DeadlineSettings(1800, 3, 180, 7200)
    evaluating: DeadlineSettings = DeadlineSettings(3600, 3, 120, 7200)  # silent until its result
    stopping: DeadlineSettings = DeadlineSettings(900, 3, 120, 3600)  # a last save is part of it

    def of(self, slot: Slot) -> DeadlineSettings:
        found: DeadlineSettings = getattr(self, slot.value.replace("-", "_"))
        return found


@dataclass(frozen=True, slots=True)
class HangSettings:
    probe_floor_seconds: float = 5.0
    """With the probe a stall while training is seen after max(this, factor x p99 step)."""
    probe_factor: float = 3.0
    log_intervals: float = 2.0
    """From the log alone: after this many usual gaps between iteration lines."""
    beat_silence_seconds: float = 5.0
    """The probe writes once a second; a rank silent for longer is stopped or holds the GIL."""
    sign_seconds: float = 120.0
    """How long the word of an independent witness counts."""


@dataclass(frozen=True, slots=True)
class SlowSettings:
    ratio: float = 1.3
    """Step time against the job's own baseline; ramps of the batch size are normalised."""
    lines: int = 8
    """For so many lines in a row."""
    straggler_ratio: float = 1.15
    """Of one rank against the others, as `--log-straggler` or the probe tells."""
    baseline_lines: int = 20


@dataclass(frozen=True, slots=True)
class NumberSettings:
    loss_missing_lines: int = 1
    """A vanished loss is proof enough at once: a mean of finite numbers is finite."""
    grad_norm_factor: float = 50.0
    """Runaway: so many times the usual norm, for grad_norm_lines in a row."""
    grad_norm_lines: int = 5
    spike_sigmas: float = 8.0
    spike_ratio: float = 1.3
    """A spike is above both, for spike_lines in a row: short spikes heal by themselves."""
    spike_lines: int = 20
    stuck_lines: int = 200
    """The loss has not fallen over so many lines, and not moved by more than its noise."""
    skip_window_iterations: int = 1000
    skip_rate: float = 0.05
    """Equilibrium of the scaler is about 0.002; bf16 skips nothing at all."""
    warm_down_skips: int = 40
    """From 2^32 the scaler needs 16 to 18 skips to settle, and 33 to reach 1.0."""
    collapse_halvings: int = 4
    collapse_window_iterations: int = 20
    diverged_sigmas: float = 8.0
    diverged_lines: int = 2
    baseline_lines: int = 50


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    overdue_factor: float = 3.0
    """Times the usual distance between two checkpoints."""
    margin_iterations: int = 1
    """A rollback goes to a checkpoint older than the first bad sign by at least this."""
    max_rollbacks: int = 3


@dataclass(frozen=True, slots=True)
class ActSettings:
    restarts_per_window: int = 5
    window_seconds: float = 6 * 3600.0
    backoff_first_seconds: float = 10.0
    backoff_factor: float = 2.0
    backoff_max_seconds: float = 900.0
    max_without_progress: int = 3
    """Restarts in a row that did not pass the furthest iteration: a loop, not a recovery."""
    max_same_fingerprint: int = 3
    default_restart_cost_seconds: float = 300.0
    """Of a job that has not shown its own: acting on a stall waits until it has cost as much."""
    min_restart_cost_seconds: float = 30.0
    """A storage stall of half a minute that heals is not worth a restart of any job."""
    lost_pod_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    deadlines: Deadlines = field(default_factory=Deadlines)
    hang: HangSettings = field(default_factory=HangSettings)
    slow: SlowSettings = field(default_factory=SlowSettings)
    numbers: NumberSettings = field(default_factory=NumberSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    act: ActSettings = field(default_factory=ActSettings)
