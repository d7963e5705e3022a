# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Upstream Megatron's iteration line, release by release."""

from __future__ import annotations

import math

import pytest

from mwatch.model.event import Iteration
from support.builders.events import MICRO_STAMP, log, megatron_line, none, one, steps

COUNTERS = " number of skipped iterations:   0 | number of nan iterations:   0 |"


def test_the_line_of_the_contract_gives_the_event_of_the_contract() -> None:
    lines = [megatron_line(number) for number in range(594, 611)]
    event = steps(log(*lines))[-1]
    assert event == Iteration(
        iteration=610, total_iterations=500000, timestamp="2025-09-07T23:58:47",
        consumed_samples=19520, elapsed_ms=436.7, learning_rate=5.999998e-05,
        global_batch_size=32, losses={"lm loss": 6.002230}, loss_scale=131072.0,
        grad_norm=0.791, num_zeros=None, params_norm=None, throughput_tflops=None, skipped=0,
        nan=0, covers=1, first_of_process=False, extra={}, rank=None, file="trainer.log",
        line=17, flavour="megatron",
    )  # fmt: skip


def test_the_first_commits_printed_an_epoch_and_a_rate_without_colon() -> None:
    event = one(
        " epoch  0 | iteration      100/    1000 | elapsed time per iteration (ms): 512.3 |"
        " learning rate 1.0E-4 | lm loss: 9.871234E+00 | loss scale: 65536.0 |\n",
        Iteration,
    )
    assert (event.iteration, event.total_iterations, event.elapsed_ms) == (100, 1000, 512.3)
    assert event.learning_rate == 1e-4
    assert event.losses == {"lm loss": 9.871234}
    assert event.loss_scale == 65536.0


def test_v1_0_has_no_samples_no_batch_size_and_no_counters() -> None:
    event = one(
        " iteration      100/    1000 | elapsed time per iteration (ms): 123.4 |"
        " learning rate: 1.500E-04 | lm loss: 9.123456E+00 | loss scale: 1024.0 |\n",
        Iteration,
    )
    assert event.learning_rate == 1.5e-4
    assert event.losses == {"lm loss": 9.123456}
    assert event.loss_scale == 1024.0
    assert event.consumed_samples is event.global_batch_size is event.skipped is event.nan is None
    assert event.timestamp is None


def test_the_counters_came_in_september_2020() -> None:
    event = one(
        " iteration        1/    1000 | elapsed time per iteration (ms): 123742.4 |"
        " learning rate: 1.826E-05 | lm loss: 1.628882E+01 | loss scale: 1024.0 |"
        f"{COUNTERS}\n",
        Iteration,
    )
    assert (event.skipped, event.nan, event.elapsed_ms) == (0, 0, 123742.4)


def test_v2_0_has_samples_and_batch_size() -> None:
    event = one(
        " iteration       20/ 1000000 | consumed samples:           80 |"
        " elapsed time per iteration (ms): 140.6 | learning rate: 2.867E-08 |"
        " global batch size:     4 | lm loss: 1.678547E+01 | sop loss: 8.764853E-01 |"
        f" loss scale: 32768.0 |{COUNTERS}\n",
        Iteration,
    )
    assert (event.consumed_samples, event.global_batch_size) == (80, 4)
    assert event.losses == {"lm loss": 16.78547, "sop loss": 0.8764853}
    assert event.grad_norm is None


def test_v2_5_has_norms_and_zeros() -> None:
    event = one(
        " iteration    29050/  311541 | consumed samples:     10728784 |"
        " elapsed time per iteration (ms): 22148.5 | learning rate: 9.477E-05 |"
        " global batch size:  1024 | lm loss: 7.234628E+00 | loss scale: 8192.0 |"
        f" grad norm: 0.243 | num zeros: 0.0 | params norm: 2712.415 |{COUNTERS}\n",
        Iteration,
    )
    assert (event.grad_norm, event.num_zeros, event.params_norm) == (0.243, 0.0, 2712.415)
    assert event.losses == {"lm loss": 7.234628}


def test_core_v0_5_has_throughput_and_no_stamp() -> None:
    event = one(
        megatron_line(stamp=None, before_rate=" throughput per GPU (TFLOP/s/GPU): 134.0 |"),
        Iteration,
    )
    assert (event.throughput_tflops, event.timestamp) == (134.0, None)


def test_core_v0_7_prints_a_decoupled_learning_rate_that_is_no_loss() -> None:
    line = megatron_line().replace(
        " global batch size", " decoupled learning rate: 1.000000E-04 | global batch size"
    )
    event = one(line, Iteration)
    assert event.losses == {"lm loss": 6.002230}
    assert event.extra == {"decoupled learning rate": 1e-4}


def test_core_v0_9_prints_skipped_samples() -> None:
    line = megatron_line().replace(
        " elapsed time per", " skipped samples:          160 | elapsed time per"
    )
    event = one(line, Iteration)
    assert event.extra == {"skipped samples": 160}
    assert event.consumed_samples == 19520


def test_core_v0_13_prints_energy_and_power() -> None:
    line = megatron_line(
        before_rate=" throughput per GPU (TFLOP/s/GPU): 134.0 | energy per GPU (J/iter/GPU):"
        " 1234.5 | power per GPU (W/GPU): 612.3 |"
    )
    event = one(line, Iteration)
    assert event.throughput_tflops == 134.0
    assert event.extra == {
        "energy per GPU (J/iter/GPU)": 1234.5,
        "power per GPU (W/GPU)": 612.3,
    }


def test_core_v0_16_prints_microseconds() -> None:
    event = one(megatron_line(stamp=MICRO_STAMP), Iteration)
    assert event.timestamp == "2026-01-07T23:58:47.123456"


def test_core_v0_17_may_leave_out_the_learning_rate() -> None:
    event = one(megatron_line(change={"learning rate": None}), Iteration)
    assert event.learning_rate is None
    assert (event.global_batch_size, event.losses) == (32, {"lm loss": 6.002230})


def test_core_v0_19_prints_moe_metrics_and_rl_tail_fields_as_extras() -> None:
    line = megatron_line(
        stamp=MICRO_STAMP,
        losses=" lm loss: 2.000000E+00 | load_balancing_loss: 1.100000E+00 | max_violation: 0.25 |",
        tail=" toks/s: 123456 | toks/s/gpu: 15432 | packing_eff: 97.3% | avg_seq_len: 812 |",
    )
    event = one(line, Iteration)
    assert event.losses == {"lm loss": 2.0, "load_balancing_loss": 1.1}
    assert event.extra == {
        "max_violation": 0.25,
        "toks/s": 123456,
        "toks/s/gpu": 15432,
        "packing_eff": 97.3,
        "avg_seq_len": 812,
    }


def test_moe_and_mtp_losses_keep_their_names_and_their_order() -> None:
    event = one(
        "[2026-05-28 22:26:20] iteration       29/    6069 | consumed samples:        14848 |"
        " elapsed time per iteration (ms): 26813.0 | learning rate: 5.142171E-05 |"
        " global batch size:   512 | lm loss: 8.168451E-01 |"
        " seq_load_balancing_loss: 1.755342E+00 | mtp_1 loss: 1.777466E+00 |"
        f" mtp_2 loss: 1.763632E+00 | loss scale: 1.0 | grad norm: 0.218 |{COUNTERS}\n",
        Iteration,
    )
    assert list(event.losses.items()) == [
        ("lm loss", 0.8168451),
        ("seq_load_balancing_loss", 1.755342),
        ("mtp_1 loss", 1.777466),
        ("mtp_2 loss", 1.763632),
    ]


@pytest.mark.parametrize("key", ["reward", "z_loss", "indexer loss", "loss", "lm-loss"])
def test_a_loss_is_known_by_place_and_format_not_by_name(key: str) -> None:
    event = one(megatron_line(losses=f" {key}: 1.500000E+00 |"), Iteration)
    assert event.losses == {key: 1.5}


@pytest.mark.parametrize("place", ["before_rate", "tail"])
def test_a_number_in_loss_format_outside_the_losses_is_an_extra(place: str) -> None:
    segment = " entropy: 1.500000E+00 |"
    line = (
        megatron_line(before_rate=segment)
        if place == "before_rate"
        else megatron_line(tail=segment)
    )
    event = one(line, Iteration)
    assert event.losses == {"lm loss": 6.002230}
    assert event.extra == {"entropy": 1.5}


@pytest.mark.parametrize(
    ("losses", "skipped", "expected"),
    [
        ("", "  1", {}),  # all steps skipped
        ("", "  0", {}),  # NaN, -inf or negative
        (" lm loss: 0.000000E+00 |", "  1", {"lm loss": 0.0}),  # v0.17: all skipped
        (" lm loss: INF |", "  0", {"lm loss": math.inf}),
        (" lm loss: 2.500000E+00 |", "  0", {"lm loss": 2.5}),
    ],
)
def test_a_loss_that_is_not_printed_is_absent_and_never_carried_forward(
    losses: str, skipped: str, expected: dict[str, float]
) -> None:
    change = {"number of skipped iterations": skipped}
    healthy = megatron_line(609)
    event = steps(log(healthy, megatron_line(610, losses=losses, change=change)))[1]
    assert event.losses == expected
    assert event.skipped == int(skipped)


def test_a_skipped_step_has_no_grad_norm() -> None:
    event = one(
        "   iteration        1/  508626 | consumed samples:          288 |"
        " elapsed time per iteration (ms): 255940.5 | learning rate: 0.000E+00 |"
        " global batch size:   288 | loss scale: 4294967296.0 |"
        " number of skipped iterations:   1 | number of nan iterations:   0 |\n",
        Iteration,
    )
    assert (event.grad_norm, event.loss_scale, event.skipped) == (None, 4294967296.0, 1)
    assert event.losses == {}


@pytest.mark.parametrize(("text", "value"), [("nan", math.nan), ("inf", math.inf)])
def test_the_grad_norm_may_be_nan_or_infinite(text: str, value: float) -> None:
    event = one(megatron_line(change={"grad norm": text}), Iteration)
    assert event.grad_norm is not None
    assert str(event.grad_norm) == str(value)


@pytest.mark.parametrize("text", ["0", "0.0", "881.0", "760881152.0"])
def test_num_zeros_is_read_as_int_or_float(text: str) -> None:
    line = megatron_line().replace(" number of skipped", f" num zeros: {text} | number of skipped")
    assert one(line, Iteration).num_zeros == float(text)


def test_totals_of_eight_digits_leave_no_blank_after_the_slash() -> None:
    event = one(megatron_line(25, 73242187), Iteration)
    assert (event.iteration, event.total_iterations) == (25, 73242187)
    event = one(megatron_line(123456789, 987654321), Iteration)
    assert (event.iteration, event.total_iterations) == (123456789, 987654321)


def test_a_line_cut_before_its_last_bar_keeps_its_whole_segments() -> None:
    event = one(
        " iteration       20/ 1000000 | consumed samples:           80 |"
        " elapsed time per iteration (ms): 140.6 | learning rate: 2.867E-08 |"
        " global batch size:     4 | lm loss: 1.678547E+01 | loss scale: 32768.0 |"
        " grad norm: 253.625 | number of skipp",
        Iteration,
    )
    assert (event.grad_norm, event.skipped, event.nan) == (253.625, None, None)


def test_half_a_number_at_the_end_of_a_cut_line_is_dropped() -> None:
    line = megatron_line()
    cut = line[: line.index("lm loss") + len("lm loss: 6.0")]
    event = one(cut + "\n", Iteration)
    assert event.losses == {}
    assert event.learning_rate == 5.999998e-05


def test_a_head_alone_is_an_iteration_with_nothing_else() -> None:
    event = one(" iteration       20/ 1000000 |\n", Iteration)
    assert (event.iteration, event.total_iterations, event.losses) == (20, 1000000, {})


def test_a_head_without_its_bar_is_no_event() -> None:
    none(" iteration       20/ 1000\n", Iteration)


def test_an_unreadable_value_keeps_its_text_in_extra() -> None:
    event = one(megatron_line(change={"grad norm": "<unset>"}), Iteration)
    assert event.grad_norm is None
    assert event.extra == {"grad norm": "<unset>"}
