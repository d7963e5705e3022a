# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where the time went: goodput, lost time by reason, and the remaining restart budget."""

from __future__ import annotations

from dashboards.board import Board, Panel, Query, Row, Step
from dashboards.fleet import GOODPUT as _RATIO
from dashboards.fleet import RESTARTS
from dashboards.marks import marks
from dashboards.promql import BY_RUN, MANY_RUNS, Shape, controller_first, of, per_run, rate

_RANKS = per_run(of("mwatch_world_size", MANY_RUNS))
_GOOD = (Step(None, "red"), Step(0.8, "yellow"), Step(0.9, "green"))
_NAME = "{{cluster}} {{namespace}} {{run}}"


def _lost(shape: Shape = str) -> str:
    return controller_first("mwatch_badput_seconds_total", MANY_RUNS, "reason", shape=shape)


def _in_range(series: str) -> str:
    return f"increase({series}[$__range])"


NOW = Row(
    "Now",
    (
        Panel(
            "Goodput of the fleet", "number",
            (Query(f"sum({_RATIO} * {_RANKS}) / sum({_RANKS} and {_RATIO})"),), "percentunit",
            "Average over all runs, weighted by their number of ranks.",
            alerts=("MwatchGoodputLow",), steps=_GOOD,
            width=6, height=5, low=0, high=1,
        ),
        Panel(
            "Time lost", "number", (Query(f"sum({_lost()})"),), "s",
            "Wall time of all runs not spent on new iterations, since they started.",
            width=6, height=5,
        ),
        Panel(
            "Rank hours lost", "number",
            (
                Query(
                    f"sum({_lost()}\n"
                    f" * on ({BY_RUN}) group_left () {_RANKS}) / 3600"
                ),
            ),
            "short", "Lost time multiplied by the ranks of each run: usually GPU hours.",
            width=6, height=5,
        ),
        Panel(
            "Restarts left", "number",
            (Query(controller_first("mwatch_restart_budget_remaining", MANY_RUNS, how="min"),
            _NAME),),
            "none",
            "Restarts left in the budget window. At 0 mwatch does not restart the run again.",
            alerts=("MwatchRestartBudgetSpent",),
            steps=(Step(None, "red"), Step(1, "orange"), Step(2, "green")), width=6, height=5,
        ),
    ),
)  # fmt: skip
COURSE = Row(
    "Over time",
    (
        Panel(
            "Goodput", "lines", (Query(_RATIO, _NAME),), "percentunit",
            "Share of wall time spent on valid iterations since the run started, repeats "
            "excluded.", alerts=("MwatchGoodputLow",), steps=_GOOD, width=12, low=0, high=1,
        ),
        Panel(
            "Time lost by reason", "stacked",
            (
                Query(
                    f"sum by (reason) ({_lost(rate)}) > 0",
                    "{{reason}}",
                ),
            ),
            "none",
            "Number of runs losing time, by reason: 1 is one run that does nothing else. Time is "
            "booked once its reason is known, so a stall appears late and all at once.",
            alerts=("MwatchGoodputLow", "MwatchSlow"), width=12,
        ),
        Panel(
            "Time lost in the selected range, by reason", "totals",
            (
                Query(
                    f"sum by (reason) ({_lost(_in_range)}) > 0",
                    "{{reason}}",
                ),
            ),
            "s", "hang_undetected, detecting and waiting_to_act: cost of stalls. recomputed: work "
            "since the last checkpoint, done again. bad_steps: skipped, or NaN or infinite loss.",
            width=12,
        ),
        Panel(
            "Time lost since the start of the run", "table",
            (Query(f"{_lost()} > 0", "Lost", "s"),), "s",
            "By run and reason.", width=12,
        ),
    ),
)  # fmt: skip
RESTARTING = Row(
    "Restarts",
    (
        Panel(
            "Restarts in the selected range", "totals", (Query(RESTARTS, _NAME),), "none",
            "Attempts started, not counting the first.",
            alerts=("MwatchRestartsFrequent", "MwatchCrashLoop"),
        ),
        Panel(
            "Attempt", "lines", (Query(per_run(of("mwatch_attempt", MANY_RUNS)), _NAME),), "none",
            "Number of the current attempt.",
        ),
        Panel(
            "Incidents", "table",
            (
                Query(
                    controller_first("mwatch_incidents_total", MANY_RUNS, "cause",
                    "action") + " > 0",
                    "Incidents", "none",
                ),
            ),
            "none", "By cause, and by the action taken (in mode observe: the action proposed).",
        ),
    ),
    is_collapsed=True,
)  # fmt: skip

BOARD = Board(
    "goodput",
    "mwatch-goodput",
    "mwatch / Goodput",
    "Where the time of the runs went: goodput and lost time.",
    (NOW, COURSE, RESTARTING),
    many_runs=True,
    annotations=marks(MANY_RUNS),
)
