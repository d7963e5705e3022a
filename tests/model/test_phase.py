# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which deadline belongs to which phase."""

from __future__ import annotations

import pytest

from mwatch.model.phase import DeadlineSlot, JobPhase, slot_of


def test_the_first_save_of_a_process_is_its_own_case() -> None:
    assert slot_of(JobPhase.SAVING, 0) is DeadlineSlot.FIRST_SAVE
    assert slot_of(JobPhase.SAVING, 1) is DeadlineSlot.SAVING


@pytest.mark.parametrize("phase", [JobPhase.QUEUED, JobPhase.SCHEDULING, JobPhase.ENDED])
def test_what_is_not_of_the_trainer_has_no_deadline(phase: JobPhase) -> None:
    assert slot_of(phase, 0) is None


def test_every_other_phase_has_one_of_its_name() -> None:
    named = {slot_of(phase, 1) for phase in JobPhase} - {None}
    assert named == set(DeadlineSlot) - {DeadlineSlot.FIRST_SAVE}
