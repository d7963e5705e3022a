# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The iteration lines of Megatron's forks and relatives."""

from __future__ import annotations

import math

import pytest

from mwatch.model.event import Iteration, Overflow
from support.builders.events import log, many, megatron_line, none, one, steps

COUNTERS = " number of skipped iterations:   0 | number of nan iterations:   0 |"
ARGONNE = (
    "[2025-11-10 12:29:58,134910][I][megatron/training:1693:training_log]"
    " iteration=  136004/  136100 | consumed_samples=   417804288 | consumed_tokens=1711326363648"
    " | elapsed_time_per_iteration_ms=3415.3 | learning_rate=2.0127e-05 | global_batch_size= 3072"
    " | lm loss=12.316531 | loss_scale=1.0 | grad_norm=0.125 | actual_seqlen= 4096 |"
    " number_of_skipped_iterations=  0 | number_of_nan_iterations=  0 |"
    " samples_per_second=899.474 |"
)
NEOX = (
    " samples/sec: 5.310 | iteration      100/  320000 | elapsed time per iteration (ms): 1234.5 |"
    " learning rate: 1.000E-05 | approx flops per GPU: 45.1TFLOPS | MFU: 41.20% | HFU: 43.10% |"
    f" lm_loss: 1.234567E+01 | loss scale: 4096.0 |{COUNTERS}"
)
PRIMUS = (
    "[20251121 12:10:29][rank-31/32][INFO ] [--------trainer.py:2488] :  iteration    12125/"
    "   36000 | consumed samples:      3104000 | elapsed time per iteration (ms): 2701.3/2712.7 |"
    " hip mem usage/free/total/usage_ratio: 227.35GB/28.63GB/255.98GB/88.81% |"
    " throughput per GPU (TFLOP/s/GPU): 210.5/217.3 |"
    " tokens per GPU (tokens/s/GPU): 12130.4/12525.5 | learning rate: 1.678537E-04 |"
    " global batch size:   256 | lm loss: 2.176138E+00 | loss scale: 1.0 | grad norm: 0.462 |"
    f"{COUNTERS}"
)
SWIFT = (
    " [2025-12-01 16:59:08] iteration     1530/    1926 | consumed samples:        24480 |"
    " elapsed time per iteration (ms): 85938.4 | memory(GiB): 71.45 |"
    " elapsed time: 1d 6h 54m 11s | remaining time: 7h 59m 54s | learning rate: 4.344225E-06 |"
    " global batch size:    16 | lm loss: 3.453634E-01 | load_balancing_loss: 2.375732E+00 |"
    f" loss scale: 1.0 | grad norm: 14.278 |{COUNTERS}"
)
NANOTRON = (
    "10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: 327281 / 378950 |"
    " consumed_tokens: 85.8G | elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: 22.8K |"
    " tokens_per_sec_per_gpu: 11.4K | global_batch_size: 64 | lm_loss: 2.78 | lr: 1e-05 |"
    " model_tflops_per_gpu: 38.3 | hardware_tflops_per_gpu: 37.1 | grad_norm: 1.47"
)


def test_microsoft_deepspeed_adds_tokens_and_rates_and_has_no_grad_norm() -> None:
    event = one(
        "iteration        1/  317892 | consumed samples:           96 |"
        " consumed tokens:       393216 | elapsed time per iteration (ms): 25849.1 |"
        " learning rate: 3.764E-04 | global batch size:    96 | lm loss: 1.413242E+01 |"
        f" loss scale: 1.0 | actual seqlen:  4096 |{COUNTERS} samples per second: 3.736 |"
        " tokens per gpu per second (tgs): 611.842 | TFLOPs: 31.23 |",
        Iteration,
    )
    assert event.flavour == "deepspeed"
    assert event.losses == {"lm loss": 14.13242}
    assert (event.grad_norm, event.timestamp) == (None, None)
    assert (event.elapsed_ms, event.global_batch_size, event.skipped) == (25849.1, 96, 0)
    assert event.extra["consumed tokens"] == 393216
    assert event.extra["actual seqlen"] == 4096
    assert event.extra["samples per second"] == 3.736
    assert event.extra["tokens per gpu per second (tgs)"] == 611.842


def test_a_deepspeed_line_with_a_nan_norm_and_no_loss() -> None:
    event = one(
        " iteration     5426/  250000 | consumed samples:        43408 | consumed tokens:"
        "     88899584 | elapsed time per iteration (ms): 4247.9 | learning rate: 2.657E-04 |"
        " global batch size:     8 | loss scale: 1.0 | grad norm: nan | actual seqlen:  2048 |"
        f"{COUNTERS} samples per second: 1.331 | TFLOPs: 72.64 |",
        Iteration,
    )
    assert event.losses == {}
    assert event.grad_norm is not None
    assert math.isnan(event.grad_norm)


def test_bigscience_prints_seconds_and_no_loss_scale_in_bf16() -> None:
    event = one(
        " [default7]: iteration    12695/  115311 | consumed samples:      9841584 |"
        " consumed tokens:  20155564032 | elapsed time per iteration (s): 172.13 |"
        " learning rate: 5.362E-05 | global batch size:  2048 | lm loss: 2.868587E+00 |"
        f" grad norm: 0.385 | num zeros: 0.0 |{COUNTERS} samples per second: 18.171 |"
        " TFLOPs: 178.36 |",
        Iteration,
    )
    assert event.elapsed_ms == pytest.approx(172130.0)
    assert (event.loss_scale, event.rank, event.grad_norm) == (None, None, 0.385)
    assert event.losses == {"lm loss": 2.868587}
    assert event.flavour == "deepspeed"


def test_bigscience_of_2021_prints_milliseconds_and_a_scale() -> None:
    event = one(
        "iteration     8738/  159576 | consumed samples:       488048 |"
        " elapsed time per iteration (ms): 61947.6 | learning rate: 6.884E-05 |"
        " global batch size:   176 | lm loss: 3.816357E+00 | loss scale: 65536.0 |"
        f" grad norm: 288331.577 | num zeros: 0.0 |{COUNTERS}\n",
        Iteration,
    )
    assert (event.elapsed_ms, event.loss_scale) == (61947.6, 65536.0)


def test_argonne_prints_key_equals_value_through_a_logger() -> None:
    event = one(ARGONNE, Iteration)
    assert (event.iteration, event.total_iterations) == (136004, 136100)
    assert event.timestamp == "2025-11-10T12:29:58.134910"
    assert (event.consumed_samples, event.elapsed_ms) == (417804288, 3415.3)
    assert (event.learning_rate, event.global_batch_size) == (2.0127e-05, 3072)
    assert event.losses == {"lm loss": 12.316531}
    assert (event.loss_scale, event.grad_norm) == (1.0, 0.125)
    assert (event.skipped, event.nan) == (0, 0)
    assert event.flavour == "deepspeed"


def test_gpt_neox_puts_the_iteration_second() -> None:
    event = one(NEOX, Iteration)
    assert (event.iteration, event.total_iterations) == (100, 320000)
    assert event.losses == {"lm_loss": 12.34567}
    assert event.throughput_tflops == 45.1
    assert event.extra == {"samples/sec": 5.31, "MFU": 41.2, "HFU": 43.1}


def test_gpt_neox_prints_a_nan_loss() -> None:
    losses = one(NEOX.replace("1.234567E+01", "NAN"), Iteration).losses
    assert list(losses) == ["lm_loss"]
    assert math.isnan(losses["lm_loss"])


def test_primus_prints_pairs_of_instant_and_average() -> None:
    event = one(PRIMUS, Iteration)
    assert (event.iteration, event.rank) == (12125, 31)
    assert event.timestamp == "2025-11-21T12:10:29"
    assert (event.elapsed_ms, event.throughput_tflops) == (2701.3, 210.5)
    assert 2712.7 in event.extra.values()
    assert 217.3 in event.extra.values()
    memory = event.extra["hip mem usage/free/total/usage_ratio"]
    assert memory == "227.35GB/28.63GB/255.98GB/88.81%"
    assert event.losses == {"lm loss": 2.176138}


def test_newer_primus_prints_the_average_in_brackets() -> None:
    line = PRIMUS.replace(
        "throughput per GPU (TFLOP/s/GPU): 210.5/217.3",
        "compute per GPU (TFLOP/s/GPU): 210.5 (avg 217.3)",
    ).replace("tokens per GPU (tokens/s/GPU)", "tokens/s/GPU inst/harmonic mean")
    event = one(line, Iteration)
    assert event.throughput_tflops == 210.5
    assert 217.3 in event.extra.values()
    assert event.extra["tokens/s/GPU inst/harmonic mean"] == "12130.4/12525.5"


def test_ms_swift_prints_durations_and_a_key_that_begins_like_another() -> None:
    event = one(SWIFT, Iteration)
    assert event.elapsed_ms == 85938.4
    assert event.extra == {
        "memory(GiB)": 71.45,
        "elapsed time": "1d 6h 54m 11s",
        "remaining time": "7h 59m 54s",
    }
    assert event.losses == {"lm loss": 0.3453634, "load_balancing_loss": 2.375732}


def test_many_lines_of_ms_swift_read_alike() -> None:
    lines = [SWIFT.replace("1530/", f"{number}/") for number in range(1530, 1540)]
    found = steps(log(*lines))
    assert [event.iteration for event in found] == list(range(1530, 1540))
    assert {event.extra["remaining time"] for event in found} == {"7h 59m 54s"}


def test_modellink_misspells_the_batch_size_and_pads_values() -> None:
    line = megatron_line(stamp=None).replace("global batch size:", "gloabl batch size:     ")
    event = one(line.replace("grad norm:", "grad norm:      "), Iteration)
    assert (event.global_batch_size, event.grad_norm) == (32, 0.791)


def test_nanotron_prints_si_suffixes_and_no_last_bar() -> None:
    event = one(NANOTRON, Iteration)
    assert (event.iteration, event.total_iterations) == (327281, 378950)
    assert event.timestamp == "2025-10-17T16:31:56"
    assert event.elapsed_ms == pytest.approx(11500.0)
    assert (event.learning_rate, event.grad_norm, event.global_batch_size) == (1e-05, 1.47, 64)
    assert event.losses == {"lm_loss": 2.78}
    assert event.extra["consumed_tokens"] == pytest.approx(85.8e9)
    assert event.throughput_tflops == 38.3
    assert event.extra["hardware_tflops_per_gpu"] == 37.1


def test_bridge_is_known_by_its_attention_logit() -> None:
    line = megatron_line().replace(
        " number of skipped", " max attention logit: 12.345 | number of skipped"
    )
    event = one(line, Iteration)
    assert (event.flavour, event.extra) == ("bridge", {"max attention logit": 12.345})


def test_bridge_is_known_by_its_step_time_line_which_is_no_iteration() -> None:
    step_time = "Step Time : 9.09s GPU utilization: 663.5MODEL_TFLOP/s/GPU"
    none(log(step_time), Iteration)
    assert one(log(step_time, megatron_line()), Iteration).flavour == "bridge"


def test_the_deepspeed_engine_prints_steps_with_a_literal_nan() -> None:
    event = one("steps: 228 loss: nan iter time (s): 35.472 samples/sec: 76.642\n", Iteration)
    assert (event.iteration, event.total_iterations, event.flavour) == (228, None, "deepspeed")
    assert event.elapsed_ms == pytest.approx(35472.0)
    assert math.isnan(event.losses["loss"])
    assert event.extra == {"samples/sec": 76.642}


def test_the_log_dist_step_line_of_deepspeed_is_no_iteration_line() -> None:
    none(
        "[2022-01-19 13:09:13,305] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=6,"
        " lr=[6e-05], mom=[(0.9, 0.95)]\n",
        Iteration,
    )


@pytest.mark.parametrize(
    ("message", "before", "after", "hysteresis"),
    [
        (
            "[INFO] [loss_scaler.py:188:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step."
            " Attempted loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1",
            65536.0, 65536.0, 1,
        ),
        (
            "[INFO] [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step."
            " Attempted loss scale: 65536, reducing to 32768",
            65536.0, 32768.0, None,
        ),
        (
            "[INFO] [stage_1_and_2.py:1644:step] [deepscale] OVERFLOW! Rank 0 Skipping step."
            " Attempted loss scale: 1048576.0, reducing to 1048576.0",
            1048576.0, 1048576.0, None,
        ),
        (
            "[INFO] [fused_optimizer.py:1:step] Overflow detected. Skipping step."
            " Attempted loss scale: 1, reducing to 1",
            1.0, 1.0, None,
        ),
        ("[INFO] [bf16_optimizer.py:1:step] [deepspeed] OVERFLOW! Rank 0 Skipping step.",
         None, None, None),
    ],
)  # fmt: skip
def test_an_overflow_line_shows_the_scales(
    message: str, before: float | None, after: float | None, hysteresis: int | None
) -> None:
    event = one(f"[2022-01-19 13:09:13,305] {message}\n", Overflow)
    assert (event.scale_before, event.scale_after) == (before, after)
    assert event.hysteresis == hysteresis
    assert event.timestamp == "2022-01-19T13:09:13.305"


def test_overflow_lines_between_iteration_lines_are_all_read() -> None:
    overflow = "[2022-01-19 13:09:13,305] [INFO] [x.py:1:step] [deepscale] OVERFLOW! Rank 0"
    text = log(*(part for n in range(5) for part in (megatron_line(n + 7), overflow)))
    assert [event.line for event in many(text, Overflow)] == [2, 4, 6, 8, 10]
    assert [event.iteration for event in steps(text)] == [7, 8, 9, 10, 11]


def test_a_run_without_an_end_prints_no_total() -> None:
    event = one(
        " iteration      123 | consumed samples:  500 | elapsed time per iteration (ms): 12.5 |"
        " lm loss: 2.000000E+00 | grad norm: 1.000 |\n",
        Iteration,
    )
    assert (event.iteration, event.total_iterations, event.elapsed_ms) == (123, None, 12.5)


def test_a_checkpoint_or_validation_line_is_no_step_without_a_total() -> None:
    none(" validation loss at iteration 50 | lm loss value: 1.0E+00 |\n", Iteration)
