# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Steps that are added as columns are the same as those added one by one, however they are read."""

from __future__ import annotations

from itertools import islice

from mwatch.model.job import StepWindow
from support.builders.job import placed_lines


def test_steps_are_made_when_they_are_read_and_then_kept() -> None:
    lines = placed_lines(8, {"lm loss": [2.0] * 8}, {})
    steps = StepWindow([lines.step(0)], maxlen=5)
    steps.extend_later(lines, 1, 8)
    assert len(steps) == 5
    assert [each.iteration for each in islice(reversed(steps), 2)] == [8, 7]
    assert steps[-1] is steps[4]
    assert [each.iteration for each in steps] == [4, 5, 6, 7, 8]
    assert list(steps) == [lines.step(index) for index in range(3, 8)]
    assert steps[0].losses == {"lm loss": 2.0}
