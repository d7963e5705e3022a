# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Excerpts in which something else than the last error says how the run ended, or went on."""

from __future__ import annotations

from pathlib import Path

from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from support.runs.recorded import read


def test_a_step_that_hyperpod_tried_again_is_a_new_attempt(tmp_path: Path) -> None:
    before = [f"Batch {n} Loss: {9 - n}.0" for n in range(1, 6)]
    failed = "2: RuntimeError: CUDA error: uncorrectable ECC error encountered"
    retried = "[Auto Resume] Info: JobID: 7 StepID: 0 Replaced faulty nodes. Retrying step"
    after = [f"Batch {n} Loss: {9 - n}.0" for n in range(5, 9)]
    report = read(tmp_path, *before, failed, retried, *after)
    assert report.decision.cause is not Cause.HARDWARE
    assert report.decision.action is Action.NONE
    assert read(tmp_path, *before, failed).decision.cause is Cause.HARDWARE
