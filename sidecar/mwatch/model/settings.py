# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every threshold, with its unit and its reason. One tree; a policy file (TOML) has its shape."""

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
    default_seconds: Seconds  # Before this job has shown how long it takes
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
    """When a phase counts as stalled. Acting on it is another matter: see ActSettings."""

    quantile: Share = 0.95
    starting: DeadlineSettings = DeadlineSettings(3600, 3, 300, 7200)  # index build: up to an hour
    loading: DeadlineSettings = DeadlineSettings(1800, 3, 120, 7200)
    first_step: DeadlineSettings = DeadlineSettings(1800, 3, 120, 3600)  # compile, graph capture
    training: DeadlineSettings = DeadlineSettings(1800, 2, 5, 7200)  # between iteration lines
    first_save: DeadlineSettings = DeadlineSettings(1800, 3, 600, 7200)  # seen: 50 s, then 0.7 s
    saving: DeadlineSettings = DeadlineSettings(1800, 3, 300, 7200)  # shared storage has bad hours
    async_finalize: DeadlineSettings = DeadlineSettings(1800, 3, 180, 7200)
    evaluating: DeadlineSettings = DeadlineSettings(3600, 3, 120, 7200)  # silent until its result
    stopping: DeadlineSettings = DeadlineSettings(900, 3, 120, 3600)  # a last save is part of it

    def of(self, slot: DeadlineSlot) -> DeadlineSettings:
        found: DeadlineSettings = getattr(self, slot.value.replace("-", "_"))
        return found


@dataclass(frozen=True, slots=True)
class HangSettings:
    probe_floor_seconds: Seconds = 5.0
    """With the probe a stall while training is seen after max(this, factor x p99 step)."""
    probe_factor: Factor = 3.0
    log_intervals: Amount = 2.0
    """From the log alone: after this many usual gaps between iteration lines."""
    beat_silence_seconds: Seconds = 8.0
    """The probe writes once a second, and a poll or two may fail; a rank that is silent for longer
    is stopped or holds the GIL."""
    clock_seconds: Seconds = 10.0
    """By which the clocks of two pods may differ, where nothing tells how they do."""
    sign_seconds: Seconds = 120.0  # How long the word of an independent witness counts
    look_seconds: Seconds = 1.0
    """Looks and beats come so often: a limit is shortened by it, to be kept and not just met."""
    dying_seconds: Seconds = 60.0
    """A process that has raised needs time to come down; seen: 22 s from the error to the end."""
    blind_after_seconds: Seconds = 60.0
    """A process that has just been started needs not have said anything yet."""
    unknown_lines: Count = 3
    """So many lines without any loss, from the first one on, are of a format we do not know."""


@dataclass(frozen=True, slots=True)
class SlowSettings:
    ratio: Ratio = 1.3
    """Step time against the job's own baseline; ramps of the batch size are normalised."""
    lines: Count = 8  # For so many lines in a row
    seconds: Seconds = 10.0  # And for so long: steps of milliseconds are noisy
    straggler_ratio: Ratio = 1.15
    """Of one rank against the others, as `--log-straggler` or the probe tells."""
    straggler_seconds: Seconds = 0.05
    """A rank that is slower by less than that is noise, whatever the ratio."""
    baseline_lines: Count = 20


@dataclass(frozen=True, slots=True)
class NumberSettings:
    loss_missing_lines: Count = 1
    """A vanished loss is proof enough at once: a mean of finite numbers is finite."""
    loss_missing_unsure_lines: Count = 3
    """Where a line may have been cut off, or a loss scaler outside Megatron skips the step."""
    loss_near_zero: Amount = 0.05
    """Megatron hides negative means too: a loss so near zero may only have changed its sign."""
    loss_zero_sigmas: Amount = 6.0  # Nearer to zero than so many times its own noise is near, too
    grad_norm_factor: Factor = 50.0
    """Runaway: so many times the usual norm, for grad_norm_lines in a row."""
    grad_norm_lines: Count = 5
    grad_norm_floor: Amount = 1.0
    """The usual clipping norm: below it nothing runs away, whatever the factor."""
    grad_norm_inf_lines: Count = 2
    """An infinite norm of finite gradients clips them to zero: one such step hurts nothing."""
    spike_sigmas: Amount = 8.0
    spike_ratio: Ratio = 1.3
    """A spike is above both, for spike_lines in a row: short spikes heal by themselves."""
    spike_lines: Count = 20
    stuck_lines: Count = 200
    """The loss has not fallen over so many lines, and not moved by more than its noise."""
    stuck_repeats: Count = 20
    """Lines with the very same loss: real batches never agree to the last printed digit."""
    stuck_initial_loss: Amount = 5.0
    """Of a model that knows nothing: log of its vocabulary (256 words: 5.5, 32000: 10.4)."""
    skip_window_iterations: Count = 1000
    skip_rate: Share = 0.05  # Equilibrium of the scaler is about 0.002; bf16 skips nothing at all
    skip_rate_lost: Share = 0.5
    """Fewer than half of the steps count: the run is not merely slow but lost."""
    skip_least: Count = 20  # Fewer skips than this make no rate
    warm_down_skips: Count = 40
    """From 2^32 the scaler needs 16 to 18 skips to settle, and 33 to reach 1.0."""
    collapse_halvings: Count = 4
    collapse_window_iterations: Count = 20
    slide_halvings: Count = 8
    """One slide of so many halvings without a growth does not end by itself."""
    diverged_sigmas: Amount = 8.0
    diverged_lines: Count = 2
    diverged_ratio: Ratio = 0.02  # Kernels that add in another order drift apart by less than this
    baseline_lines: Count = 50


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    overdue_factor: Factor = 3.0  # Times the usual distance between two checkpoints
    margin_iterations: Count = 1
    """A rollback goes to a checkpoint older than the first bad sign by at least this: with 1
    and a first bad iteration 451, checkpoint 450 (written before it was done) is the newest."""
    max_rollbacks: Count = 3
    """In the life of a job: more of them is an unstable recipe, which only a person can fix."""
    settle_seconds: Seconds = 900.0
    """A folder that was written to so lately may still be growing, whoever writes it."""


@dataclass(frozen=True, slots=True)
class ActSettings:
    restarts_per_window: Count = 5
    window_seconds: Seconds = 6 * 3600.0
    backoff_first_seconds: Seconds = 10.0
    """Before the first restart too: the line that names the root cause may still be under way."""
    backoff_factor: Factor = 2.0
    backoff_max_seconds: Seconds = 900.0
    max_without_progress: Count = 3
    """Restarts in a row that did not pass the furthest iteration: a loop, not a recovery."""
    max_same_fingerprint: Count = 3
    """The same thing so often without progress in between: a restart does not fix it."""
    max_reruns: Count = 3
    """Exit 16 in a row without progress; Megatron asks again when it gets the same GPU."""
    same_samples_iterations: Count = 20
    """Numbers that go bad again up to so many iterations after the last time: the same data."""
    long_run_iterations: Count = 200
    """Out of memory after so many good iterations: a leak or fragmentation, not the model."""
    default_restart_cost_seconds: Seconds = 300.0
    """Of a job that has not shown its own: acting on a stall waits until it has cost as much."""
    min_restart_cost_seconds: Seconds = 30.0
    """A storage stall of half a minute that heals is not worth a restart of any job."""
    stall_factor: Factor = 1.25
    """Times the cost of a restart: what is measured leaves out the end of the old processes and
    the wait for new ones, and a stall that heals just after the kill has cost both."""
    max_stall_seconds: Seconds = 1800.0
    """However much a restart costs: what has not healed in half an hour rarely does."""
    lost_pod_seconds: Seconds = 60.0  # What a pod said last may reach us so long after it is gone


@dataclass(frozen=True, slots=True)
class Settings:
    deadlines: Deadlines = field(default_factory=Deadlines)
    hang: HangSettings = field(default_factory=HangSettings)
    slow: SlowSettings = field(default_factory=SlowSettings)
    numbers: NumberSettings = field(default_factory=NumberSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    act: ActSettings = field(default_factory=ActSettings)
