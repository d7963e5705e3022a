# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One run: what it is doing, its numbers, its speed, its checkpoints."""

from __future__ import annotations

from dashboards.board import Board, Panel, Query, Row, Step
from dashboards.marks import marks
from dashboards.promql import (
    ONE_RUN,
    age,
    equal,
    of,
    per_run,
    phase_code,
    rate,
    severity_code,
    silence,
    spoken,
)
from dashboards.run_numbers import NUMBERS, SPEEDS
from dashboards.states import ABOVE_ZERO_IS_BAD, GOOD_NO, MODE, PHASE_STATES, SEVERITY_STATES

_ITERATION = per_run(of("mwatch_iteration", ONE_RUN))
_PLANNED = per_run(of("mwatch_planned_iterations", ONE_RUN))
_SECONDS = of("mwatch_rank_seconds_total", ONE_RUN)
_COLLECTIVE = of("mwatch_rank_seconds_total", ONE_RUN, equal("phase", "collective"))
_SAVED = of("mwatch_checkpoint_iteration", ONE_RUN)

NOW = Row(
    "Now",
    (
        Panel(
            "Iteration", "number", (Query(_ITERATION),), "none",
            "Iterations finished, by the log or by the probe.", width=4, height=4,
        ),
        Panel(
            "Progress", "number", (Query(f"{_ITERATION}\n / {_PLANNED}"),), "percentunit",
            "Share of the planned iterations (train_iters).", width=4, height=4, low=0, high=1,
        ),
        Panel(
            "Since the last progress", "number", (Query(silence(ONE_RUN)),), "s",
            "Time since the iteration rose or the phase changed, to be held against the deadline "
            "of the phase (see the panel on silence).",
            alerts=("MwatchStalled",), width=4, height=4,
        ),
        Panel(
            "Goodput", "number", (Query(spoken("mwatch_goodput_ratio", ONE_RUN)),),
            "percentunit", "Share of wall time in sound iterations done for the first time.",
            alerts=("MwatchGoodputLow",), width=4, height=4, low=0, high=1,
        ),
        Panel(
            "Attempt", "number", (Query(per_run(of("mwatch_attempt", ONE_RUN))),), "none",
            "Number of the attempt that is watched, from 1.", width=4, height=4,
        ),
        Panel(
            "Blind", "number", (Query(per_run(of("mwatch_blind", ONE_RUN), how="min")),), "none",
            "Yes: no watcher of this run can see how it is. That is neither healthy nor hung.",
            alerts=("MwatchBlind",), states=GOOD_NO, steps=ABOVE_ZERO_IS_BAD, width=4, height=4,
        ),
    ),
)  # fmt: skip
STATE = Row(
    "What it is doing, and what is wrong",
    (
        Panel(
            "Phase", "band", (Query(phase_code(ONE_RUN), "{{run}}"),), "none",
            "What the job is doing. Each phase has a deadline of its own.",
            states=PHASE_STATES, width=24, height=4,
        ),
        Panel(
            "Findings", "band", (Query(severity_code(ONE_RUN), "{{finding}}"),), "none",
            "Each thing that is wrong, by the detector that found it and its worst severity. "
            "Empty: nothing is wrong that mwatch can see (see Blind).",
            alerts=("MwatchCrashed", "MwatchFinishedEarly", "MwatchCrashLoop"),
            states=SEVERITY_STATES, width=24, when_empty="nothing is wrong",
        ),
        Panel(
            "Silence against the deadline", "lines",
            (
                Query(silence(ONE_RUN), "since the last progress"),
                Query(per_run(of("mwatch_hang_deadline_seconds", ONE_RUN)), "deadline"),
            ),
            "s",
            "A run that is silent for longer than the deadline of its phase is stalled.",
            alerts=("MwatchStalled", "MwatchProgressOverdue"), width=12,
        ),
        Panel(
            "Iteration by each witness", "lines",
            (
                Query(_ITERATION, "log and probe"),
                Query(per_run(of("mwatch_tensorboard_iteration", ONE_RUN)), "TensorBoard"),
                Query(per_run(of("mwatch_rank_iteration", ONE_RUN), how="min"), "slowest rank"),
            ),
            "none",
            "Witnesses that do not depend on each other. TensorBoard's is there where event files "
            "are written.",
            alerts=("MwatchStalled",), width=12,
        ),
    ),
)  # fmt: skip
COMMUNICATION = Row(
    "Communication",
    (
        Panel(
            "Communication share against the run's own baseline", "lines",
            (
                Query(
                    f"{per_run(rate(_COLLECTIVE), how='sum')}\n"
                    f" / {per_run(rate(_SECONDS), how='sum')}",
                    "now",
                ),
                Query(
                    f"{per_run(f'increase({_COLLECTIVE}[6h])', how='sum')}\n"
                    f" / {per_run(f'increase({_SECONDS}[6h])', how='sum')}",
                    "average of 6 hours",
                ),
            ),
            "percentunit",
            "Share of time that ranks were seen in a collective, by their stacks. A rise above the "
            "run's own average is a slow rank or a slow network, not more to send.",
            alerts=("MwatchStraggler", "MwatchSlow"), width=12, low=0, high=1,
        ),
        Panel(
            "Where the ranks are", "stacked",
            (Query(f"{per_run(rate(_SECONDS), 'phase', how='sum')}", "{{phase}}"),),
            "none",
            "Ranks by what their main thread was seen doing.", width=12,
        ),
    ),
)  # fmt: skip
CHECKPOINTS = Row(
    "Checkpoints",
    (
        Panel(
            "Newest checkpoint", "lines",
            (Query(per_run(_SAVED, "kind"), "{{kind}}"), Query(_ITERATION, "iteration")),
            "none",
            "latest: the newest there is. good: the newest that is whole and of the line that is "
            "being continued; a restart resumes there.",
            alerts=(
                "MwatchCheckpointIncomplete", "MwatchCheckpointUnloadable",
                "MwatchStartedFromRandom", "MwatchResumeDiverged",
            ), width=6,
        ),
        Panel(
            "Age of the checkpoint", "lines",
            (
                Query(
                    age(per_run(of("mwatch_checkpoint_timestamp_seconds", ONE_RUN), "kind")),
                    "{{kind}}",
                ),
            ),
            "s", "What a crash now would lose, at most.",
            alerts=("MwatchCheckpointOverdue",), width=6,
        ),
        Panel(
            "Size of the checkpoint", "lines",
            (
                Query(per_run(of("mwatch_checkpoint_size_bytes", ONE_RUN), "kind"), "{{kind}}"),
            ),
            "bytes", "One that is much smaller than the one before is not whole.", width=6,
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
            "bytes", "There must be room for one more.",
            alerts=("MwatchStorageFull", "MwatchStorageFilling"), width=6,
        ),
    ),
)  # fmt: skip
BUDGET = Row(
    "Acting",
    (
        Panel(
            "Mode", "number", (Query(per_run(of("mwatch_acting", ONE_RUN))),), "none",
            "Whether anybody acts on this run.", states=MODE, width=6, height=5,
        ),
        Panel(
            "Restarts left", "number",
            (Query(spoken("mwatch_restart_budget_remaining", ONE_RUN, how="min")),), "none",
            "In the window of the budget. At 0 the next incident stops the run.",
            alerts=("MwatchRestartBudgetSpent", "MwatchCrashLoop"),
            steps=(Step(None, "red"), Step(1, "orange"), Step(2, "green")), width=6, height=5,
        ),
        Panel(
            "Incidents", "totals",
            (
                Query(
                    spoken("mwatch_incidents_total", ONE_RUN, "cause", "action") + " > 0",
                    "{{cause}}: {{action}}",
                ),
            ),
            "none", "All so far, by cause and by what was done, or would have been.",
            width=12, height=5, when_empty="none",
        ),
    ),
)  # fmt: skip

BOARD = Board(
    "run",
    "mwatch-run",
    "mwatch / Run",
    "One training run: phase, findings, numbers, speed, checkpoints.",
    (NOW, STATE, NUMBERS, SPEEDS, COMMUNICATION, CHECKPOINTS, BUDGET),
    many_runs=False,
    annotations=marks(ONE_RUN),
)
