# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Text and colour of values that encode a state."""

from __future__ import annotations

from dashboards.board import State, Step
from dashboards.promql import PHASES, SEVERITIES
from mwatch.model.phase import JobPhase

_COLORS = {
    JobPhase.QUEUED: "text",
    JobPhase.SCHEDULING: "text",
    JobPhase.STARTING: "light-blue",
    JobPhase.LOADING: "blue",
    JobPhase.FIRST_STEP: "light-green",
    JobPhase.TRAINING: "green",
    JobPhase.EVALUATING: "purple",
    JobPhase.SAVING: "yellow",
    JobPhase.ASYNC_FINALIZE: "light-yellow",
    JobPhase.STOPPING: "orange",
    JobPhase.ENDED: "dark-red",
}
PHASE_STATES = {code: State(phase.value, _COLORS[phase]) for code, phase in enumerate(PHASES, 1)}
SEVERITY_STATES = {
    code: State(word, color)
    for code, (word, color) in enumerate(zip(SEVERITIES, ("blue", "orange", "red"), strict=True), 1)
}
GOOD_UP = {0: State("down", "red"), 1: State("up", "green")}
SOURCE_STATES = {**GOOD_UP, 2: State("not there", "text")}
GOOD_NO = {0: State("no", "green"), 1: State("yes", "red")}
LEADS = {0: State("standby", "orange"), 1: State("leader", "green")}
MODE = {0: State("observing", "blue"), 1: State("acting", "green")}
ABOVE_ZERO_IS_BAD = (Step(None, "green"), Step(0.5, "red"))
