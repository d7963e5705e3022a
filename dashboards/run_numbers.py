# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Training metrics, with the healthy ranges that operators use.

Loss: falling; spikes of 10 to 20 % are normal. Gradient norm: 0.1 to 10; 0 or above 100 is bad.
Loss scale: 1 in bf16; in fp16 a fast fall is underflow. Step time: stable. The share of zero
gradients is a common signal too, but Megatron prints it only on request and mwatch does not export
it.
"""

from __future__ import annotations

from dashboards.board import Panel, Query, Row, Step
from dashboards.promql import ONE_RUN, mfu, of, per_run

_LOSS = of("mwatch_loss", ONE_RUN)
_SCALE = of("mwatch_loss_scale", ONE_RUN)
_STEP = of("mwatch_step_seconds", ONE_RUN)
_GREEN, _YELLOW, _ORANGE, _RED = "green", "yellow", "orange", "red"

LOSS = Panel(
    "Loss",
    "lines",
    (Query(per_run(_LOSS, "loss"), "{{loss}}"),),
    "none",
    "Each loss of the newest iteration line. It should fall. Megatron does not print a NaN loss: "
    "its curve ends.",
    alerts=("MwatchLossMissing", "MwatchLossStuck", "MwatchResumeDiverged", "MwatchNumbersSuspect"),
)
LOSS_SPIKE = Panel(
    "Loss relative to its 30-minute median",
    "lines",
    (
        Query(
            f"{per_run(_LOSS, 'loss')}\n"
            f" / {per_run(f'quantile_over_time(0.5, {_LOSS}[30m])', 'loss')} - 1",
            "{{loss}}",
        ),
    ),
    "percentunit",
    "Spikes of 10 to 20 % are normal and recover by themselves; larger ones that last do not.",
    alerts=("MwatchLossSpike",),
    steps=(Step(None, _GREEN), Step(0.2, _YELLOW), Step(0.5, _RED)),
)
GRAD_NORM = Panel(
    "Gradient norm",
    "lines",
    (Query(per_run(of("mwatch_grad_norm", ONE_RUN)), "gradient norm"),),
    "none",
    "Healthy: 0.1 to 10. Bad: 0, above 100, or infinite.",
    alerts=("MwatchLossMissing", "MwatchNumbersSuspect"),
    steps=(
        Step(None, _RED),
        Step(1e-6, _YELLOW),
        Step(0.1, _GREEN),
        Step(10, _YELLOW),
        Step(100, _RED),
    ),
    is_logarithmic=True,
)
LOSS_SCALE = Panel(
    "Loss scale",
    "lines",
    (Query(per_run(_SCALE), "loss scale"),),
    "none",
    "1 in bf16. In fp16 it starts high, halves many times in the first steps, then stays stable.",
    alerts=("MwatchLossScaleCollapse",),
    is_logarithmic=True,
)
HALVINGS = Panel(
    "Halvings of the loss scale in 15 minutes",
    "lines",
    (Query(f"log2({per_run(f'max_over_time({_SCALE}[15m])')}\n / {per_run(_SCALE)})", "halvings"),),
    "none",
    "Current scale below its maximum of the last 15 minutes, in powers of two. Repeated halving is "
    "underflow.",
    alerts=("MwatchLossScaleCollapse",),
    steps=(Step(None, _GREEN), Step(3, _YELLOW), Step(8, _RED)),
)
SKIPS = Panel(
    "Skipped and NaN iterations",
    "bars",
    (
        Query(
            per_run(
                f"increase({of('mwatch_skipped_iterations_total', ONE_RUN)}[$__rate_interval])"
            ),
            "skipped",
        ),
        Query(
            per_run(f"increase({of('mwatch_nan_iterations_total', ONE_RUN)}[$__rate_interval])"),
            "NaN",
        ),
    ),
    "none",
    "Skipped updates. Normal: about 2 in 1000, and up to 18 at the start of an fp16 run.",
    alerts=("MwatchLossScaleCollapse", "MwatchNumbersSuspect"),
)
LEARNING_RATE = Panel(
    "Learning rate",
    "lines",
    (Query(per_run(of("mwatch_learning_rate", ONE_RUN)), "learning rate"),),
    "sci",
    "Follows the schedule. Constant while samples are consumed: every update is skipped.",
    width=6,
)
STEP = Panel(
    "Step time and its 1-hour median",
    "lines",
    (
        Query(per_run(_STEP), "one iteration", "s"),
        Query(per_run(f"quantile_over_time(0.5, {_STEP}[1h])"), "1-hour median", "s"),
    ),
    "s",
    "Healthy: stable. A single spike is a save or an evaluation; a new level is a slow rank, a "
    "throttled GPU, or slow data loading.",
    alerts=("MwatchSlow",),
    width=6,
)
SPEED = Panel(
    "Tokens per second",
    "lines",
    (Query(per_run(of("mwatch_tokens_per_second", ONE_RUN)), "tokens/s"),),
    "short",
    "Global batch size times sequence length, divided by the time of an iteration.",
    width=6,
)
MFU_TEXT = (
    "Model FLOP/s utilisation: printed TFLOP/s per GPU divided by the peak of the GPU in dense "
    "16-bit arithmetic, also for FP8. Unknown if the trainer does not print its throughput "
    "(--log-throughput), or without NVML, or for a GPU that mwatch does not know."
)
FLOPS = Panel(
    "TFLOP/s per GPU and MFU",
    "lines",
    (
        Query(per_run(of("mwatch_throughput_tflops", ONE_RUN)), "TFLOP/s"),
        Query(mfu(ONE_RUN), "MFU", "percentunit"),
    ),
    "none",
    f"Printed by Megatron with --log-throughput; empty without that flag. {MFU_TEXT}",
    when_empty="not printed",
    width=6,
)

NUMBERS = Row(
    "Training metrics",
    (LOSS, LOSS_SPIKE, GRAD_NORM, LOSS_SCALE, HALVINGS, SKIPS),
)
SPEEDS = Row("Speed", (STEP, SPEED, FLOPS, LEARNING_RATE))
