# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Time that never jumps."""

from __future__ import annotations

import time

import pytest

from mwatch.runtime.clock import Clock


def test_setting_the_clock_changes_no_duration_and_is_known_as_drift(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    before = clock.now()
    assert before == pytest.approx(time.time(), abs=1)
    wall = time.time()
    monkeypatch.setattr(time, "time", lambda: wall + 3600)
    assert clock.now() - before < 60
    assert clock.drift() == pytest.approx(3600, abs=60)
