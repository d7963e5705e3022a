# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every threshold, with its unit and its reason, as one tree. A policy file (TOML) has the same
structure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from mwatch.model.phase import DeadlineSlot

_TEN_YEARS = 10 * 366 * 86400.0
Seconds = Annotated[
    float, Meta(ge=0.0, le=_TEN_YEARS, description="a number of seconds from 0 to 316224000")
]
Share = Annotated[float, Meta(ge=0.0, le=1.0, description="a number from 0 to 1")]
Ratio = Annotated[float, Meta(ge=0.0, le=1e6, description="a number from 0 to 1e6")]
Factor = Annotated[float, Meta(ge=1.0, le=1e6, description="a number from 1 to 1e6")]
Amount = Annotated[float, Meta(ge=0.0, le=1e9, description="a number from 0 to 1e9")]
Count = Annotated[int, Meta(ge=0, le=10**9, description="a whole number from 0 to 1e9")]


@dataclass(frozen=True, slots=True)
class DeadlineSettings:
    default_seconds: Seconds  # used until durations of this job are known
    factor: Factor
    floor_seconds: Seconds
    ceiling_seconds: Seconds

    def __post_init__(self) -> None:
        if self.floor_seconds > self.ceiling_seconds:
            raise ValueError(
                f"floor_seconds ({self.floor_seconds:g}) is above ceiling_seconds "
                f"({self.ceiling_seconds:g}); raise the ceiling or lower the floor"
            )


@dataclass(frozen=True, slots=True)
class Deadlines:
    """When a phase counts as stalled; ActSettings determines when to act on that."""

    quantile: Share = 0.95
    starting: DeadlineSettings = DeadlineSettings(3600, 3, 300, 7200)  # index build: up to an hour
    loading: DeadlineSettings = DeadlineSettings(1800, 3, 120, 7200)
    first_step: DeadlineSettings = DeadlineSettings(1800, 3, 120, 3600)  # compile, graph capture
    training: DeadlineSettings = DeadlineSettings(1800, 2, 5, 7200)  # between iteration lines
    first_save: DeadlineSettings = DeadlineSettings(1800, 3, 600, 7200)  # 50 s; later ones 0.7 s
    saving: DeadlineSettings = DeadlineSettings(1800, 3, 300, 7200)  # storage may be slow
    async_finalize: DeadlineSettings = DeadlineSettings(1800, 3, 180, 7200)
    evaluating: DeadlineSettings = DeadlineSettings(3600, 3, 120, 7200)  # silent until its result
    stopping: DeadlineSettings = DeadlineSettings(900, 3, 120, 3600)  # a last save is part of it

    def of(self, slot: DeadlineSlot) -> DeadlineSettings:
        found: DeadlineSettings = getattr(self, slot.value.replace("-", "_"))
        return found


@dataclass(frozen=True, slots=True)
class HangSettings:
    probe_floor_seconds: Seconds = 5.0
    """With the probe, a stall while training is detected after max(this, factor x p99 step)."""
    probe_factor: Factor = 3.0
    log_intervals: Amount = 2.0  # from the log alone: in usual gaps between iteration lines
    beat_silence_seconds: Seconds = 8.0
    """The probe writes once a second, and one or two polls may fail. A rank that is silent for
    longer is stopped or holds the GIL."""
    clock_seconds: Seconds = 10.0  # possible difference between the clocks of two pods, if unknown
    sign_seconds: Seconds = 120.0  # how long the report of a witness is valid
    suspended_seconds: Seconds = 300.0
    """Time for a person who stopped the whole command (Ctrl-Z, kill -STOP) to continue it."""
    look_seconds: Seconds = 1.0
    """Interval of evaluations and beats; limits are shortened by it, so that they are kept."""
    dying_seconds: Seconds = 60.0
    """Time for a failing process to exit; observed: 22 s from the error to the end."""
    blind_after_seconds: Seconds = 60.0  # time for a new process to print something
    unknown_lines: Count = 3
    """If this many lines from the first on have no loss, the format counts as unknown."""


@dataclass(frozen=True, slots=True)
class SlowSettings:
    ratio: Ratio = 1.3
    """Step time against the job's own baseline; ramps of the batch size are normalised."""
    lines: Count = 8  # lines in a row
    seconds: Seconds = 10.0  # minimum duration of these lines: steps of milliseconds are noisy
    straggler_ratio: Ratio = 1.15
    """Time of one rank against the others, by `--log-straggler` or the probe."""
    straggler_seconds: Seconds = 0.05  # a smaller difference is noise, whatever the ratio
    baseline_lines: Count = 20


@dataclass(frozen=True, slots=True)
class NumberSettings:
    loss_missing_lines: Count = 1
    """One line without a loss is proof: a mean of finite numbers is finite."""
    loss_missing_unsure_lines: Count = 3
    """The same if a line may be cut off, or if a loss scaler outside Megatron skips the step."""
    loss_near_zero: Amount = 0.05
    """Megatron also hides negative means: a loss near zero may only have changed its sign."""
    loss_zero_sigmas: Amount = 6.0  # a loss within so many times its own noise is also near zero
    grad_norm_factor: Factor = 50.0
    """Runaway: this many times the usual norm, for grad_norm_lines in a row."""
    grad_norm_lines: Count = 5
    grad_norm_floor: Amount = 1.0  # the usual clipping norm: a smaller norm is never a runaway
    grad_norm_inf_lines: Count = 2
    """An infinite norm of finite gradients clips them to zero: one such step is harmless."""
    spike_sigmas: Amount = 8.0
    spike_ratio: Ratio = 1.3
    """A spike is above both, for spike_lines in a row: short spikes recover by themselves."""
    spike_lines: Count = 20
    spike_rise: Amount = 0.3
    """A smaller rise is reported and not acted on: a loss of a few tenths reaches the ratio with a
    rise that does little harm."""
    spike_rise_near_zero: Amount = 1.0
    """The same for a loss that was below loss_near_zero: the objectives of reinforcement learning
    begin there and grow."""
    stuck_lines: Count = 200
    """Lines over which the loss has neither fallen nor moved by more than its noise."""
    stuck_repeats: Count = 20
    """Lines with the same loss: losses of real batches differ in the last printed digit."""
    stuck_initial_loss: Amount = 5.0
    """Loss of an untrained model: log of its vocabulary (256 words: 5.5, 32000: 10.4)."""
    skip_window_iterations: Count = 1000
    skip_rate: Share = 0.05  # equilibrium of the scaler is about 0.002; bf16 skips nothing
    skip_rate_lost: Share = 0.5  # with fewer than half of the steps the run is lost, not just slow
    skip_least: Count = 20  # fewer skips are too few for a rate
    warm_down_skips: Count = 40
    """From 2^32 the scaler needs 16 to 18 skips to settle, and 33 to reach 1.0. If skips are not
    counted, so many steps with a bad gradient norm may be skips."""
    collapse_halvings: Count = 4
    collapse_window_iterations: Count = 20
    slide_halvings: Count = 8  # halvings without a growth in between do not end by themselves
    diverged_sigmas: Amount = 8.0
    diverged_lines: Count = 2
    diverged_ratio: Ratio = 0.02  # kernels with another order of summation differ by less
    baseline_lines: Count = 50


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    overdue_factor: Factor = 3.0  # times the usual distance between two checkpoints
    margin_iterations: Count = 1
    """A rollback goes to a checkpoint at least this much older than the first bad iteration: with 1
    and a first bad iteration 451, checkpoint 450 (written before 451 was done) is the newest."""
    max_rollbacks: Count = 3  # per job; more mean an unstable recipe, which only a person can fix
    settle_seconds: Seconds = 900.0
    """A folder that was written to more recently may still be growing."""


@dataclass(frozen=True, slots=True)
class ActSettings:
    restarts_per_window: Count = 5
    window_seconds: Seconds = 6 * 3600.0
    backoff_first_seconds: Seconds = 10.0
    """Applies to the first restart too: the line with the root cause may not have arrived yet."""
    backoff_factor: Factor = 2.0
    backoff_max_seconds: Seconds = 900.0
    max_without_progress: Count = 3
    """Restarts in a row that did not pass the furthest iteration: a loop, not a recovery."""
    max_same_fingerprint: Count = 3
    """Occurrences of the same problem without progress, after which a restart does not fix it."""
    max_reruns: Count = 3
    """Exit 16 in a row without progress; Megatron asks again when it gets the same GPU."""
    same_samples_iterations: Count = 20
    """Numbers that go bad again within so many iterations are blamed on the same data."""
    long_run_iterations: Count = 200
    """Out of memory after so many good iterations means a leak or fragmentation; the model fits."""
    default_restart_cost_seconds: Seconds = 300.0
    """Used until the job's own cost is known. A stall is acted on once it has cost as much."""
    min_restart_cost_seconds: Seconds = 30.0
    """No job is restarted for a storage stall of half a minute that recovers."""
    stall_factor: Factor = 1.25
    """A stall must cost this many times a restart: the measured cost leaves out the end of the old
    processes and the wait for new ones, and a stall that would have recovered just after the kill
    costs both."""
    max_stall_seconds: Seconds = 1800.0  # upper limit: a stall of half an hour rarely recovers
    stalled_again_factor: Factor = 4.0
    """The wait grows by this factor with each restart that ended in the same stall at the same
    place: a long evaluation recurs, and finishes if it gets enough time."""
    restart_stalled_from_beginning: bool = False
    """Restart a stall that may recover although there is no checkpoint and all progress is lost."""
    lost_pod_seconds: Seconds = 60.0  # the last output of a pod may arrive so long after its end


@dataclass(frozen=True, slots=True)
class Settings:
    deadlines: Deadlines = field(default_factory=Deadlines)
    hang: HangSettings = field(default_factory=HangSettings)
    slow: SlowSettings = field(default_factory=SlowSettings)
    numbers: NumberSettings = field(default_factory=NumberSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    act: ActSettings = field(default_factory=ActSettings)
