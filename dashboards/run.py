# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One run: phase, findings, training metrics, speed, checkpoints."""

from __future__ import annotations

from dashboards.board import Board, Panel, Query, Row, Step
from dashboards.incidents import open_incidents
from dashboards.marks import marks
from dashboards.promql import (
    ONE_RUN,
    age,
    controller_first,
    equal,
    mfu,
    of,
    per_run,
    phase_code,
    rate,
    severity_code,
    silence,
)
from dashboards.run_numbers import MFU_TEXT, NUMBERS, SPEEDS
from dashboards.states import ABOVE_ZERO_IS_BAD, GOOD_NO, MODE, PHASE_STATES, SEVERITY_STATES

_ITERATION = per_run(of("mwatch_iteration", ONE_RUN))
_PLANNED = per_run(of("mwatch_planned_iterations", ONE_RUN))
_STEP = per_run(f"quantile_over_time(0.5, {of('mwatch_step_seconds', ONE_RUN)}[1h])")
_SECONDS = of("mwatch_rank_seconds_total", ONE_RUN)
_COLLECTIVE = of("mwatch_rank_seconds_total", ONE_RUN, equal("phase", "collective"))
_DEADLINE = per_run(of("mwatch_hang_deadline_seconds", ONE_RUN))
_SAVED = of("mwatch_checkpoint_iteration", ONE_RUN)

NOW = Row(
    "Now",
    (
        Panel(
            "Iteration", "number", (Query(_ITERATION),), "none",
            "Finished iterations, from the log or the probe.", width=3, height=4,
        ),
        Panel(
            "Progress", "number", (Query(f"{_ITERATION}\n / {_PLANNED}"),), "percentunit",
            "Share of the planned iterations (train_iters).", width=3, height=4, low=0, high=1,
        ),
        Panel(
            "Time to go", "number",
            (Query(f"({_PLANNED} - {_ITERATION})\n * {_STEP}"),), "s",
            "Remaining iterations times the 1-hour median of the step time; without restarts.",
            width=3, height=4,
        ),
        Panel(
            "Silence", "number", (Query(f"{silence(ONE_RUN)}\n / {_DEADLINE}"),), "percentunit",
            "Time since the iteration rose or the phase changed, as a share of the deadline of the "
            "phase. At 100 % the run is stalled. In seconds: Time since progress and deadline.",
            alerts=("MwatchStalled",), width=3, height=4,
            steps=(Step(None, "green"), Step(0.5, "yellow"), Step(1, "red")),
        ),
        Panel(
            "Goodput", "number", (Query(controller_first("mwatch_goodput_ratio", ONE_RUN)),),
            "percentunit", "Share of wall time spent on valid iterations, repeats excluded.",
            alerts=("MwatchGoodputLow",), width=3, height=4, low=0, high=1,
            steps=(Step(None, "red"), Step(0.8, "yellow"), Step(0.9, "green")),
        ),
        Panel(
            "MFU", "number", (Query(mfu(ONE_RUN)),), "percentunit", MFU_TEXT,
            alerts=("MwatchSlow",), width=3, height=4, low=0, high=1, when_empty="unknown",
            steps=(Step(None, "red"), Step(0.2, "yellow"), Step(0.3, "green")),
        ),
        Panel(
            "Attempt", "number", (Query(per_run(of("mwatch_attempt", ONE_RUN))),), "none",
            "Number of the current attempt, starting at 1.", width=3, height=4,
            steps=(Step(None, "green"), Step(2, "yellow"), Step(5, "orange")),
        ),
        Panel(
            "Blind", "number", (Query(per_run(of("mwatch_blind", ONE_RUN), how="min")),), "none",
            "yes: mwatch has no data on the progress of this run. It may be healthy or hung.",
            alerts=("MwatchBlind",), states=GOOD_NO, steps=ABOVE_ZERO_IS_BAD, width=3, height=4,
        ),
    ),
)  # fmt: skip
STATE = Row(
    "State and findings",
    (
        open_incidents(ONE_RUN),
        Panel(
            "Phase", "band", (Query(phase_code(ONE_RUN), "{{run}}"),), "none",
            "Current phase of the job. Each phase has its own deadline.",
            states=PHASE_STATES, width=24, height=4,
        ),
        Panel(
            "Findings", "band", (Query(severity_code(ONE_RUN), "{{finding}}"),), "none",
            "Current findings by detector, with their worst severity. Empty: mwatch finds nothing "
            "wrong (check the panel Blind).",
            alerts=("MwatchCrashed", "MwatchFinishedEarly", "MwatchCrashLoop"),
            states=SEVERITY_STATES, width=24, when_empty="nothing is wrong",
        ),
        Panel(
            "Time since progress and deadline", "lines",
            (
                Query(silence(ONE_RUN), "since the last progress"),
                Query(_DEADLINE, "deadline"),
            ),
            "s",
            "A run without progress for longer than the deadline of its phase is stalled.",
            alerts=("MwatchStalled", "MwatchProgressOverdue"), width=12,
        ),
        Panel(
            "Iteration by source", "lines",
            (
                Query(_ITERATION, "log and probe"),
                Query(per_run(of("mwatch_tensorboard_iteration", ONE_RUN)), "TensorBoard"),
                Query(per_run(of("mwatch_rank_iteration", ONE_RUN), how="min"), "slowest rank"),
            ),
            "none",
            "Independent sources of the iteration. TensorBoard appears only if event files are "
            "written.",
            alerts=("MwatchStalled",), width=12,
        ),
    ),
)  # fmt: skip
COMMUNICATION = Row(
    "Communication",
    (
        Panel(
            "Communication share and its 6-hour average", "lines",
            (
                Query(
                    f"{per_run(rate(_COLLECTIVE), how='sum')}\n"
                    f" / {per_run(rate(_SECONDS), how='sum')}",
                    "now",
                ),
                Query(
                    f"{per_run(f'increase({_COLLECTIVE}[6h])', how='sum')}\n"
                    f" / {per_run(f'increase({_SECONDS}[6h])', how='sum')}",
                    "6-hour average",
                ),
            ),
            "percentunit",
            "Share of time that ranks spend in collectives, from their stacks. A rise above the "
            "average means a slow rank or a slow network, not more data to send.",
            alerts=("MwatchStraggler", "MwatchSlow"), width=12, low=0, high=1,
        ),
        Panel(
            "Ranks by activity", "stacked",
            (Query(f"{per_run(rate(_SECONDS), 'phase', how='sum')}", "{{phase}}"),),
            "none",
            "Number of ranks by what their main thread is doing.", width=12,
        ),
    ),
    is_collapsed=True,
)  # fmt: skip
CHECKPOINTS = Row(
    "Checkpoints",
    (
        Panel(
            "Newest checkpoint", "lines",
            (Query(per_run(_SAVED, "kind"), "{{kind}}"), Query(_ITERATION, "iteration")),
            "none",
            "latest: the newest checkpoint. good: the newest complete one that was not rolled "
            "back; a restart resumes from it.",
            alerts=(
                "MwatchCheckpointIncomplete", "MwatchCheckpointUnloadable",
                "MwatchStartedFromRandom", "MwatchResumeDiverged",
            ), width=6,
        ),
        Panel(
            "Checkpoint age", "lines",
            (
                Query(
                    age(per_run(of("mwatch_checkpoint_timestamp_seconds", ONE_RUN), "kind")),
                    "{{kind}}",
                ),
            ),
            "s", "The most work that a crash now would lose.",
            alerts=("MwatchCheckpointOverdue",), width=6,
        ),
        Panel(
            "Checkpoint size", "lines",
            (
                Query(per_run(of("mwatch_checkpoint_size_bytes", ONE_RUN), "kind"), "{{kind}}"),
            ),
            "bytes", "A checkpoint much smaller than the previous one is incomplete.", width=6,
        ),
        Panel(
            "Free space for checkpoints", "lines",
            (
                Query(per_run(of("mwatch_storage_free_bytes", ONE_RUN), how="min"), "free"),
                Query(per_run(of("mwatch_storage_size_bytes", ONE_RUN), how="min"), "size"),
                Query(
                    f"{per_run(of('mwatch_checkpoint_size_bytes', ONE_RUN))}", "one checkpoint"
                ),
            ),
            "bytes", "There must be space for at least one more checkpoint.",
            alerts=("MwatchStorageFull", "MwatchStorageFilling"), width=6,
        ),
    ),
)  # fmt: skip
BUDGET = Row(
    "Actions",
    (
        Panel(
            "Mode", "number", (Query(per_run(of("mwatch_acting", ONE_RUN))),), "none",
            "Whether mwatch may restart this run or only observes it.",
            states=MODE, width=6, height=5,
        ),
        Panel(
            "Restarts left", "number",
            (Query(controller_first("mwatch_restart_budget_remaining", ONE_RUN, how="min")),),
            "none",
            "Restarts left in the budget window. At 0 mwatch does not restart the run again.",
            alerts=("MwatchRestartBudgetSpent", "MwatchCrashLoop"),
            steps=(Step(None, "red"), Step(1, "orange"), Step(2, "green")), width=6, height=5,
        ),
        Panel(
            "Incidents", "totals",
            (
                Query(
                    controller_first("mwatch_incidents_total", ONE_RUN, "cause", "action") + " > 0",
                    "{{cause}}: {{action}}",
                ),
            ),
            "none",
            "All incidents so far, by cause and action (in mode observe: the action proposed).",
            width=12, height=5, when_empty="none",
        ),
    ),
)  # fmt: skip

BOARD = Board(
    "run",
    "mwatch-run",
    "mwatch / Run",
    "One training run: phase, findings, training metrics, speed, checkpoints.",
    (NOW, STATE, NUMBERS, SPEEDS, COMMUNICATION, CHECKPOINTS, BUDGET),
    many_runs=False,
    annotations=marks(ONE_RUN),
)
