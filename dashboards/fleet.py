# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""All runs on one page, to find the ones that need attention."""

from __future__ import annotations

from dashboards.board import Board, Panel, Query, Row, Step
from dashboards.incidents import open_incidents
from dashboards.marks import marks
from dashboards.promql import (
    BY_RUN,
    CONTROLLERS,
    MANY_RUNS,
    controller_first,
    equal,
    mfu,
    of,
    per_run,
    phase_code,
    severity_code,
    silence,
)
from dashboards.states import ABOVE_ZERO_IS_BAD, LEADS, PHASE_STATES, SEVERITY_STATES

_NAME = "{{cluster}} {{namespace}} {{run}}"
_ITERATION = per_run(of("mwatch_iteration", MANY_RUNS))
_PLANNED = per_run(of("mwatch_planned_iterations", MANY_RUNS))
_STEP = per_run(of("mwatch_step_seconds", MANY_RUNS))
_LOOK = of("mwatch_last_look_timestamp_seconds", MANY_RUNS)
_TRAINING = per_run(of("mwatch_phase", MANY_RUNS, equal("phase", "training")))
_WORST = f"max by ({BY_RUN}) ({severity_code(MANY_RUNS)})"
_ATTEMPT = of("mwatch_attempt", MANY_RUNS)
_INCIDENTS = controller_first("mwatch_incidents_total", MANY_RUNS, "cause", "action")
GOODPUT = controller_first("mwatch_goodput_ratio", MANY_RUNS)
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
        _number("Runs", f"count({per_run(_LOOK)})", "Runs that a sidecar or controller watches."),
        _number(
            "Ranks in training",
            f"sum({per_run(of('mwatch_world_size', MANY_RUNS))} * {_TRAINING}) or vector(0)",
            "Ranks of all runs in the training phase. A rank is usually one GPU.",
        ),
        _number(
            "Runs with a critical finding", f"count({_WORST} == 3) or vector(0)",
            "Runs that have failed or are wasting GPU time.", "MwatchCrashed", bad=True,
        ),
        _number(
            "Blind runs",
            f"sum({per_run(of('mwatch_blind', MANY_RUNS), how='min')}) or vector(0)",
            "Runs without data on their progress. A blind run is not known to be healthy.",
            "MwatchBlind", bad=True,
        ),
    ),
)  # fmt: skip
RUNS = Row(
    "Run details",
    (
        open_incidents(MANY_RUNS),
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
                    controller_first("mwatch_restart_budget_remaining", MANY_RUNS, how="min"),
                    "Restarts left", "none",
                ),
                Query(mfu(MANY_RUNS), "MFU", "percentunit"),
            ),
            "none",
            "Phase, progress, goodput and worst finding of each run. To go: remaining time at the "
            "current step time. MFU: empty if throughput or GPU are not known.",
            alerts=("MwatchStalled", "MwatchRunVanished", "MwatchRestartHeld"), width=24, height=10,
        ),
        Panel(
            "Phase of each run", "band", (Query(phase_code(MANY_RUNS), _NAME),),
            "none", "One row per run.", alerts=("MwatchRestartUnfinished",), states=PHASE_STATES,
            width=12, height=9,
        ),
        Panel(
            "Findings of each run", "band",
            (Query(severity_code(MANY_RUNS), _NAME + " {{finding}}"),), "none",
            "Runs that stall together usually share storage, a switch or a node: check those "
            "before you restart anything.",
            alerts=("MwatchManyRunsStalled",), states=SEVERITY_STATES, width=12, height=9,
            when_empty="nothing is wrong",
        ),
    ),
)  # fmt: skip
COURSE = Row(
    "Over time",
    (
        Panel(
            "Progress", "lines",
            (Query(f"{_ITERATION}\n / {_PLANNED}", _NAME),), "percentunit",
            "A flat line: no progress. A falling line: the run resumed from an older checkpoint.",
            low=0, high=1,
        ),
        Panel(
            "Goodput", "lines",
            (Query(GOODPUT, _NAME),),
            "percentunit", "Share of wall time spent on valid iterations, repeats excluded.",
            alerts=("MwatchGoodputLow",), low=0, high=1,
            steps=(Step(None, "red"), Step(0.8, "yellow"), Step(0.9, "green")),
        ),
        Panel(
            "Restarts", "totals", (Query(RESTARTS, _NAME),), "none",
            "Attempts started in the selected range, not counting the first.",
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
            "none", "All runs, counted since their sidecars or controllers started.", width=24,
            when_empty="none",
        ),
    ),
    is_collapsed=True,
)  # fmt: skip


def _by_state(metric: str) -> str:
    return f"max by (cluster, namespace, state) ({of(metric, CONTROLLERS)})"


CONTROLLER = Row(
    "Controllers",
    (
        Panel(
            "Leader by namespace", "band",
            (Query(f"max by (cluster, namespace) ({of('mwatch_controller_leader', CONTROLLERS)})",
                   "{{cluster}} {{namespace}}"),),
            "none",
            "Whether a controller holds the Lease of the namespace. A gap: no controller runs.",
            alerts=("MwatchControllerAbsent", "MwatchControllerNoLeader"), states=LEADS,
        ),
        Panel(
            "Jobs by mode", "stacked",
            (Query(_by_state("mwatch_controller_jobs"),
                   "{{cluster}} {{namespace}} {{state}}"),),
            "none", "act: the controller may restart the job. observe: it only reports.",
        ),
        Panel(
            "Pods answering the controller", "stacked",
            (Query(_by_state("mwatch_controller_pods"),
                   "{{cluster}} {{namespace}} {{state}}"),),
            "none", "Running pods of watched jobs. The controller has no data from silent pods.",
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
