# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where the time went: goodput, what was lost and to what, and what restarts are left."""

from __future__ import annotations

from dashboards.board import Board, Panel, Query, Row, Step
from dashboards.fleet import GOODPUT as _RATIO
from dashboards.fleet import RESTARTS
from dashboards.marks import marks
from dashboards.promql import MANY_RUNS, Shape, of, per_run, rate, spoken

_RANKS = per_run(of("mwatch_world_size", MANY_RUNS))
_GOOD = (Step(None, "red"), Step(0.8, "yellow"), Step(0.9, "green"))
_NAME = "{{namespace}} {{run}}"


def _lost(shape: Shape = str) -> str:
    return spoken("mwatch_badput_seconds_total", MANY_RUNS, "reason", shape=shape)


def _in_range(series: str) -> str:
    return f"increase({series}[$__range])"


NOW = Row(
    "Now",
    (
        Panel(
            "Goodput of the fleet", "number",
            (Query(f"sum({_RATIO} * {_RANKS}) / sum({_RANKS} and {_RATIO})"),), "percentunit",
            "Each run counts by its ranks.", alerts=("MwatchGoodputLow",), steps=_GOOD,
            width=6, height=5, low=0, high=1,
        ),
        Panel(
            "Time lost", "number", (Query(f"sum({_lost()})"),), "s",
            "Wall time of all runs that did not go into new iterations, since they began.",
            width=6, height=5,
        ),
        Panel(
            "Rank hours lost", "number",
            (
                Query(
                    f"sum({_lost()}\n"
                    f" * on (namespace, run) group_left () {_RANKS}) / 3600"
                ),
            ),
            "none", "The same, each hour times the ranks that lost it: GPU hours, as a rule.",
            width=6, height=5,
        ),
        Panel(
            "Restarts left", "number",
            (Query(spoken("mwatch_restart_budget_remaining", MANY_RUNS, how="min"), _NAME),),
            "none", "In the window of the budget. At 0 the next incident stops the run.",
            alerts=("MwatchRestartBudgetSpent",),
            steps=(Step(None, "red"), Step(1, "orange"), Step(2, "green")), width=6, height=5,
        ),
    ),
)  # fmt: skip
COURSE = Row(
    "Course",
    (
        Panel(
            "Goodput", "lines", (Query(_RATIO, _NAME),), "percentunit",
            "Share of wall time in sound iterations done for the first time, since the run "
            "began.", alerts=("MwatchGoodputLow",), steps=_GOOD, width=12, low=0, high=1,
        ),
        Panel(
            "Loss of time by reason", "stacked",
            (
                Query(
                    f"sum by (reason) ({_lost(rate)}) > 0",
                    "{{reason}}",
                ),
            ),
            "none",
            "Runs that were losing time, by what it went into: 1 is one run that did nothing else. "
            "Time is booked when it is known what it was, so a stall comes late and at once.",
            alerts=("MwatchGoodputLow", "MwatchSlow"), width=12,
        ),
        Panel(
            "Lost in the time shown, by reason", "totals",
            (
                Query(
                    f"sum by (reason) ({_lost(_in_range)}) > 0",
                    "{{reason}}",
                ),
            ),
            "s", "hang_undetected, detecting and waiting_to_act are the price of a stall; "
            "recomputed is what was lost since the last checkpoint; bad_steps had a loss of NaN or "
            "infinity, or were skipped.", width=12,
        ),
        Panel(
            "Lost since the run began", "table",
            (Query(f"{_lost()} > 0", "Lost", "s"),), "s",
            "By run and reason.", width=12,
        ),
    ),
)  # fmt: skip
RESTARTING = Row(
    "Restarts",
    (
        Panel(
            "Restarts in the time shown", "totals", (Query(RESTARTS, _NAME),), "none",
            "Attempts that were begun after the first.",
            alerts=("MwatchRestartsFrequent", "MwatchCrashLoop"),
        ),
        Panel(
            "Attempt", "lines", (Query(per_run(of("mwatch_attempt", MANY_RUNS)), _NAME),), "none",
            "Number of the attempt.",
        ),
        Panel(
            "Incidents", "table",
            (
                Query(
                    spoken("mwatch_incidents_total", MANY_RUNS, "cause", "action") + " > 0",
                    "Incidents", "none",
                ),
            ),
            "none", "By cause, and by what was done, or would have been.",
        ),
    ),
)  # fmt: skip

BOARD = Board(
    "goodput",
    "mwatch-goodput",
    "mwatch / Goodput",
    "Where the time of the runs went.",
    (NOW, COURSE, RESTARTING),
    many_runs=True,
    annotations=marks(MANY_RUNS),
)
