# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every threshold, with its unit and its reason. One tree; a policy file (TOML) has its shape."""

from __future__ import annotations

from dataclasses import dataclass, field

from mwatch.model.phase import DeadlineSlot


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
    probe_floor_seconds: float = 5.0
    """With the probe a stall while training is seen after max(this, factor x p99 step)."""
    probe_factor: float = 3.0
    log_intervals: float = 2.0
    """From the log alone: after this many usual gaps between iteration lines."""
    beat_silence_seconds: float = 8.0
    """The probe writes once a second, and a poll or two may fail; a rank that is silent for longer
    is stopped or holds the GIL."""
    clock_seconds: float = 10.0
    """By which the clocks of two pods may differ, where nothing tells how they do."""
    sign_seconds: float = 120.0
    """How long the word of an independent witness counts."""
    look_seconds: float = 1.0
    """Looks and beats come so often: a limit is shortened by it, to be kept and not just met."""
    dying_seconds: float = 60.0
    """A process that has raised needs time to come down; seen: 22 s from the error to the end."""
    blind_after_seconds: float = 60.0
    """A process that has just been started needs not have said anything yet."""
    unknown_lines: int = 3
    """So many lines without any loss, from the first one on, are of a format we do not know."""


@dataclass(frozen=True, slots=True)
class SlowSettings:
    ratio: float = 1.3
    """Step time against the job's own baseline; ramps of the batch size are normalised."""
    lines: int = 8
    """For so many lines in a row."""
    seconds: float = 10.0
    """And for so long: steps of milliseconds are noisy."""
    straggler_ratio: float = 1.15
    """Of one rank against the others, as `--log-straggler` or the probe tells."""
    straggler_seconds: float = 0.05
    """A rank that is slower by less than that is noise, whatever the ratio."""
    baseline_lines: int = 20


@dataclass(frozen=True, slots=True)
class NumberSettings:
    loss_missing_lines: int = 1
    """A vanished loss is proof enough at once: a mean of finite numbers is finite."""
    loss_missing_unsure_lines: int = 3
    """Where a line may have been cut off, or a loss scaler outside Megatron skips the step."""
    loss_near_zero: float = 0.05
    """Megatron hides negative means too: a loss so near zero may only have changed its sign."""
    loss_zero_sigmas: float = 6.0
    """Nearer to zero than so many times its own noise is near, too."""
    grad_norm_factor: float = 50.0
    """Runaway: so many times the usual norm, for grad_norm_lines in a row."""
    grad_norm_lines: int = 5
    grad_norm_floor: float = 1.0
    """The usual clipping norm: below it nothing runs away, whatever the factor."""
    grad_norm_inf_lines: int = 2
    """An infinite norm of finite gradients clips them to zero: one such step hurts nothing."""
    spike_sigmas: float = 8.0
    spike_ratio: float = 1.3
    """A spike is above both, for spike_lines in a row: short spikes heal by themselves."""
    spike_lines: int = 20
    stuck_lines: int = 200
    """The loss has not fallen over so many lines, and not moved by more than its noise."""
    stuck_repeats: int = 20
    """Lines with the very same loss: real batches never agree to the last printed digit."""
    stuck_initial_loss: float = 5.0
    """Of a model that knows nothing: log of its vocabulary (256 words: 5.5, 32000: 10.4)."""
    skip_window_iterations: int = 1000
    skip_rate: float = 0.05
    """Equilibrium of the scaler is about 0.002; bf16 skips nothing at all."""
    skip_rate_lost: float = 0.5
    """Fewer than half of the steps count: the run is not merely slow but lost."""
    skip_least: int = 20
    """Fewer skips than this make no rate."""
    warm_down_skips: int = 40
    """From 2^32 the scaler needs 16 to 18 skips to settle, and 33 to reach 1.0."""
    collapse_halvings: int = 4
    collapse_window_iterations: int = 20
    slide_halvings: int = 8
    """One slide of so many halvings without a growth does not end by itself."""
    diverged_sigmas: float = 8.0
    diverged_lines: int = 2
    diverged_ratio: float = 0.02
    """Kernels that add in another order drift apart by less than this."""
    baseline_lines: int = 50


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    overdue_factor: float = 3.0
    """Times the usual distance between two checkpoints."""
    margin_iterations: int = 1
    """A rollback goes to a checkpoint older than the first bad sign by at least this: with 1
    and a first bad iteration 451, checkpoint 450 (written before it was done) is the newest."""
    max_rollbacks: int = 3
    """In the life of a job: more of them is an unstable recipe, which only a person can fix."""
    settle_seconds: float = 900.0
    """A folder that was written to so lately may still be growing, whoever writes it."""


@dataclass(frozen=True, slots=True)
class ActSettings:
    restarts_per_window: int = 5
    window_seconds: float = 6 * 3600.0
    backoff_first_seconds: float = 10.0
    """Before the first restart too: the line that names the root cause may still be under way."""
    backoff_factor: float = 2.0
    backoff_max_seconds: float = 900.0
    max_without_progress: int = 3
    """Restarts in a row that did not pass the furthest iteration: a loop, not a recovery."""
    max_same_fingerprint: int = 3
    """The same thing so often without progress in between: a restart does not fix it."""
    max_reruns: int = 3
    """Exit 16 in a row without progress; Megatron asks again when it gets the same GPU."""
    same_samples_iterations: int = 20
    """Numbers that go bad again up to so many iterations after the last time: the same data."""
    long_run_iterations: int = 200
    """Out of memory after so many good iterations: a leak or fragmentation, not the model."""
    default_restart_cost_seconds: float = 300.0
    """Of a job that has not shown its own: acting on a stall waits until it has cost as much."""
    min_restart_cost_seconds: float = 30.0
    """A storage stall of half a minute that heals is not worth a restart of any job."""
    stall_factor: float = 1.25
    """Times the cost of a restart: what is measured leaves out the end of the old processes and
    the wait for new ones, and a stall that heals just after the kill has cost both."""
    max_stall_seconds: float = 1800.0
    """However much a restart costs: what has not healed in half an hour rarely does."""
    lost_pod_seconds: float = 60.0
    """What a pod said last may reach us so long after it is gone."""


@dataclass(frozen=True, slots=True)
class Settings:
    deadlines: Deadlines = field(default_factory=Deadlines)
    hang: HangSettings = field(default_factory=HangSettings)
    slow: SlowSettings = field(default_factory=SlowSettings)
    numbers: NumberSettings = field(default_factory=NumberSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    act: ActSettings = field(default_factory=ActSettings)
