# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The limit for a training step after a long save, evaluation or first step: none of them is one.

The histories are folded as they come: lines and records of a job whose steps take 0.13 s.
"""

from __future__ import annotations

import pytest

from mwatch.detect.shared.probe import NO_PROBES, probed_ranks
from mwatch.detect.shared.stall import patience
from mwatch.model.job import Job
from mwatch.model.phase import DeadlineSlot, JobPhase
from mwatch.model.settings import Settings
from support.builders.fold import Story, line, saved, saving

STEP = 0.13
LONG = 24.0
SETTINGS = Settings()
VALIDATION = " validation loss at iteration {} | lm loss value: 2.0E+00 | lm loss PPL: 7.0E+00 | "


class Run(Story):
    """One rank with a probe that writes once a second."""

    def __init__(self, interval: int) -> None:
        super().__init__()
        self.says("[before the start of training step] datetime: 2026-01-01 00:00:00")
        self._interval = interval
        self._beat_at = self.at
        self._spent = 0.0
        self._step = 0

    def goes_on(self, seconds: float, phase: str = "compute") -> None:
        until = self.at + seconds
        while self._beat_at + 1.0 <= until:
            self._beat_at += 1.0
            self.at = self._beat_at
            self.beats(0, self._step, phase, world_size=1)
        self.at = until

    def steps(self, count: int, seconds: float = STEP) -> Run:
        for _ in range(count):
            self.goes_on(seconds)
            self._step += 1
            self._spent += seconds
            if self._step % self._interval == 0:
                self.says(line(self._step, seconds=self._spent / self._interval))
                self._spent = 0.0
        return self

    def pauses(self, phase: str, *, is_printed: bool, is_timed: bool) -> Run:
        """Save or evaluate; `is_timed`: the next line's step time includes it."""
        if phase == "saving" and is_printed:
            self.says(saving(self._step))
        self.goes_on(LONG, phase)
        if is_printed:
            self.says(saved(self._step) if phase == "saving" else VALIDATION.format(self._step))
        self._spent += LONG * is_timed
        return self


def limits(job: Job) -> tuple[float, float]:
    """The allowed silence while the probe writes, and once it has stopped."""
    followed = patience(job, probed_ranks(job, SETTINGS), SETTINGS)
    dark = patience(job, NO_PROBES, SETTINGS)
    assert followed is not None and dark is not None
    return followed.seconds, dark.seconds


@pytest.mark.parametrize("phase", ["saving", "evaluating"])
@pytest.mark.parametrize("is_printed", [True, False])
@pytest.mark.parametrize("is_timed", [True, False])
@pytest.mark.parametrize(
    ("interval", "before", "after"),
    [(1, 2, 6), (1, 50, 10), (5, 5, 7), (5, 23, 100), (10, 23, 37), (25, 50, 110)],
)
def test_a_long_save_or_evaluation_is_no_step(
    phase: str, is_printed: bool, is_timed: bool, interval: int, before: int, after: int
) -> None:
    run = Run(interval).steps(before)
    run.pauses(phase, is_printed=is_printed, is_timed=is_timed).steps(after)
    run.goes_on(1.0)
    followed, dark = limits(run.job)
    most = max(6.0, 3 * interval * STEP)
    assert followed <= most and dark <= most
    slot = DeadlineSlot.FIRST_SAVE if phase == "saving" else DeadlineSlot.EVALUATING
    assert max(run.job.calibration.durations[slot], default=0.0) > LONG - 2, "learnt as what it is"
    assert max(run.job.calibration.durations[DeadlineSlot.TRAINING], default=0.0) < LONG / 2


def test_a_long_first_step_is_no_step() -> None:
    run = Run(1).steps(1, seconds=LONG).steps(9)
    run.goes_on(1.0)
    assert max(limits(run.job)) <= 6.0


def test_a_long_first_step_is_no_step_where_every_later_line_holds_a_save() -> None:
    run = Run(20).steps(1, seconds=8 * LONG)
    for _ in range(3):
        run.steps(20).pauses("saving", is_printed=True, is_timed=False)
    run.steps(20)
    run.goes_on(1.0)
    assert limits(run.job)[0] <= 6.0


def test_a_pause_that_nothing_shows_is_still_allowed_for() -> None:
    """The probe does not know this trainer's save, and the log does not print it."""
    run = Run(1).steps(30)
    run.pauses("compute", is_printed=False, is_timed=False).steps(30)
    assert run.job.attempt.probed_asides == set()
    assert limits(run.job)[1] > LONG


def test_without_records_since_the_last_line_a_save_may_be_under_way() -> None:
    run = Run(5).steps(20)
    run.pauses("saving", is_printed=False, is_timed=False).steps(20)
    run.job.attempt.ranks[0].at = run.job.attempt.steps[-1].at - 5
    assert run.job.attempt.probed_asides == {JobPhase.SAVING}
    allowed = patience(run.job, NO_PROBES, SETTINGS)
    assert allowed is not None and "no stream shows saves" in allowed.note
    assert allowed.seconds > LONG
