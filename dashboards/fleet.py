# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""All runs at a glance: which one needs somebody."""

from __future__ import annotations

from dashboards.board import Board, Panel, Query, Row, Step
from dashboards.marks import marks
from dashboards.promql import (
    CONTROLLERS,
    MANY_RUNS,
    equal,
    of,
    per_run,
    phase_code,
    severity_code,
    silence,
    spoken,
)
from dashboards.states import ABOVE_ZERO_IS_BAD, LEADS, PHASE_STATES, SEVERITY_STATES

_ITERATION = per_run(of("mwatch_iteration", MANY_RUNS))
_PLANNED = per_run(of("mwatch_planned_iterations", MANY_RUNS))
_STEP = per_run(of("mwatch_step_seconds", MANY_RUNS))
_LOOK = of("mwatch_last_look_timestamp_seconds", MANY_RUNS)
_TRAINING = per_run(of("mwatch_phase", MANY_RUNS, equal("phase", "training")))
_WORST = f"max by (namespace, run) ({severity_code(MANY_RUNS)})"
_ATTEMPT = of("mwatch_attempt", MANY_RUNS)
_INCIDENTS = spoken("mwatch_incidents_total", MANY_RUNS, "cause", "action")
GOODPUT = spoken("mwatch_goodput_ratio", MANY_RUNS)
RESTARTS = (
    f"{per_run(f'max_over_time({_ATTEMPT}[$__range])')}\n"
    f" - {per_run(f'min_over_time({_ATTEMPT}[$__range])', how='min')}"
)


def _number(title: str, expr: str, description: str, *alerts: str, bad: bool = False) -> Panel:
    return Panel(
        title, "number", (Query(expr),), "none", description, alerts=alerts, width=6, height=4,
        steps=ABOVE_ZERO_IS_BAD if bad else (),
    )  # fmt: skip


NOW = Row(
    "Now",
    (
        _number("Runs", f"count({per_run(_LOOK)})", "Runs that somebody watches."),
        _number(
            "Ranks in training",
            f"sum({per_run(of('mwatch_world_size', MANY_RUNS))} * {_TRAINING}) or vector(0)",
            "Ranks of all runs that are training now; a rank is a GPU as a rule.",
        ),
        _number(
            "Runs with a critical finding", f"count({_WORST} == 3) or vector(0)",
            "Runs that are lost or losing.", "MwatchCrashed", bad=True,
        ),
        _number(
            "Blind runs",
            f"sum({per_run(of('mwatch_blind', MANY_RUNS), how='min')}) or vector(0)",
            "Runs that no watcher can see. Blind is not healthy.", "MwatchBlind", bad=True,
        ),
    ),
)  # fmt: skip
RUNS = Row(
    "Run by run",
    (
        Panel(
            "All runs", "table",
            (
                Query(phase_code(MANY_RUNS), "Phase"),
                Query(_ITERATION, "Iteration", "none"),
                Query(f"{_ITERATION}\n / {_PLANNED}", "Progress", "percentunit"),
                Query(f"({_PLANNED} - {_ITERATION}) * {_STEP}", "To go", "s"),
                Query(_STEP, "Step", "s"),
                Query(
                    silence(MANY_RUNS), "Silent for", "s",
                ),
                Query(GOODPUT, "Goodput", "percentunit"),
                Query(_WORST, "Worst finding"),
                Query(per_run(_ATTEMPT), "Attempt", "none"),
                Query(
                    spoken("mwatch_restart_budget_remaining", MANY_RUNS, how="min"),
                    "Restarts left", "none",
                ),
            ),
            "none",
            "Each run with its phase, progress, estimated time to go at the present step time, "
            "goodput and worst finding.",
            alerts=("MwatchStalled", "MwatchRunVanished", "MwatchRestartHeld"), width=24, height=10,
        ),
        Panel(
            "Phase of each run", "band", (Query(phase_code(MANY_RUNS), "{{namespace}} {{run}}"),),
            "none", "A row for each run.", alerts=("MwatchRestartUnfinished",), states=PHASE_STATES,
            width=12, height=9,
        ),
        Panel(
            "Findings of each run", "band",
            (Query(severity_code(MANY_RUNS), "{{run}} {{finding}}"),), "none",
            "Several runs that stall together share storage, a switch or a node: look at those "
            "before you restart any.",
            alerts=("MwatchManyRunsStalled",), states=SEVERITY_STATES, width=12, height=9,
            when_empty="nothing is wrong",
        ),
    ),
)  # fmt: skip
COURSE = Row(
    "Course",
    (
        Panel(
            "Progress", "lines",
            (Query(f"{_ITERATION}\n / {_PLANNED}", "{{namespace}} {{run}}"),), "percentunit",
            "A line that is flat makes no progress; one that falls went back to a checkpoint.",
            low=0, high=1,
        ),
        Panel(
            "Goodput", "lines",
            (Query(GOODPUT, "{{namespace}} {{run}}"),),
            "percentunit", "Share of wall time in sound iterations done for the first time.",
            alerts=("MwatchGoodputLow",), low=0, high=1,
            steps=(Step(None, "red"), Step(0.8, "yellow"), Step(0.9, "green")),
        ),
        Panel(
            "Restarts", "totals", (Query(RESTARTS, "{{namespace}} {{run}}"),), "none",
            "Attempts that were begun in the time shown, after the first.",
            alerts=("MwatchRestartsFrequent",),
        ),
        Panel(
            "Incidents by cause", "lines",
            (
                Query(
                    f"sum by (cause, action) ({_INCIDENTS}) > 0",
                    "{{cause}}: {{action}}",
                ),
            ),
            "none", "Over all runs, since their watchers were started.", width=24,
            when_empty="none",
        ),
    ),
)  # fmt: skip

CONTROLLER = Row(
    "Controllers",
    (
        Panel(
            "May act", "band",
            (Query(f"max by (namespace) ({of('mwatch_controller_leader', CONTROLLERS)})",
                   "{{namespace}}"),),
            "none", "Whether a controller of the namespace holds its Lease. A gap: there is none.",
            alerts=("MwatchControllerAbsent", "MwatchControllerNoLeader"), states=LEADS,
        ),
        Panel(
            "Jobs of the controller", "stacked",
            (Query(f"max by (namespace, state) ({of('mwatch_controller_jobs', CONTROLLERS)})",
                   "{{namespace}} {{state}}"),),
            "none", "Watched jobs: act may be restarted by it, observe is only reported.",
        ),
        Panel(
            "Pods that answer", "stacked",
            (Query(f"max by (namespace, state) ({of('mwatch_controller_pods', CONTROLLERS)})",
                   "{{namespace}} {{state}}"),),
            "none", "Running pods of watched jobs. Of silent ones the controller sees nothing.",
            alerts=("MwatchControllerPodsSilent",),
        ),
    ),
)  # fmt: skip

BOARD = Board(
    "fleet",
    "mwatch-fleet",
    "mwatch / Fleet",
    "All runs: phase, progress, goodput, findings, restarts.",
    (NOW, RUNS, COURSE, CONTROLLER),
    many_runs=True,
    annotations=marks(MANY_RUNS),
)
