# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Slow steps, waits for data and slow networks in the last lines of a log of any form."""

from __future__ import annotations

import pytest

from mwatch.detect.shared.speed_lines import (
    compared,
    flushes_memory,
    slow_network,
    slowed,
    slows_down,
    waits_for_data,
)
from mwatch.model.cause import Cause


def test_a_network_that_nccl_gave_up_makes_slow_steps() -> None:
    gave_up = "h:1:2 [4] NCCL WARN NET/QUUX quux initialization failed"
    sockets = "h:1:2 [4] NCCL INFO Using network Socket"
    found = slow_network(enumerate([gave_up, sockets], 1))
    assert found is not None
    assert found.cause is Cause.SLOW
    assert slow_network(enumerate(["NCCL INFO NET/Plugin: No plugin found", sockets], 1)) is None
    unloaded = (
        "h:1:2 [4] NCCL INFO NET/Plugin: quux.so: version `Q_34' not found (required by y.so)"
    )
    newer = "h:1:2 [4] NCCL INFO Initialized NET plugin Socket"
    assert slow_network(enumerate([unloaded, newer], 1)) is not None


def test_one_machine_needs_no_network() -> None:
    gave_up = "h:1:2 [4] NCCL WARN NET/QUUX quux initialization failed"
    sockets = "h:1:2 [4] NCCL INFO Using network Socket"
    size = "{}:1:2 [4] NCCL INFO comm 0x5 rank 0 nranks {} cudaDev 0 - Init COMPLETE"

    def is_slow(*sizes: str) -> bool:
        return slow_network(enumerate([gave_up, sockets, *sizes], 1)) is not None

    assert not is_slow(size.format("h", 8))
    assert is_slow(size.format("h", 16)) and is_slow(size.format("h", 8), size.format("g", 8))


def bar(count: int, rate: str) -> str:
    return f"  0%|          | {count}/16224 [00:{count:02d}<9:01:00, {rate}, loss=1.8]"


def test_a_bar_that_becomes_much_slower_is_seen() -> None:
    fast = [bar(count, "2.00it/s") for count in range(1, 9)]
    slow = [bar(count, f"4{count % 3}.30s/it") for count in range(9, 14)]
    found = slowed(enumerate([*fast, *slow], 1))
    assert found is not None
    assert (found.cause, found.line) == (Cause.SLOW, 9)


@pytest.mark.parametrize(
    "rates",
    [
        ["2.00s/it"] * 6 + ["43.30s/it"] * 2,
        ["9.00s/it"] * 2 + ["2.00s/it"] * 6 + ["4.30s/it"] * 3,
        ["40.0it/s"] * 6 + ["4.0it/s"] * 3,
        ["2.00s/it"] * 2 + ["43.30s/it"] * 6,
    ],
    ids=["a pause", "a little", "milliseconds", "slow from the start"],
)
def test_a_bar_with_other_times_is_not_slow(rates: list[str]) -> None:
    lines = [bar(count, rate) for count, rate in enumerate(rates, 1)]
    assert slowed(enumerate(lines, 1)) is None


@pytest.mark.parametrize(
    "form",
    [
        "step: 4 tps: {:,}",
        "{{'tokens_per_second': {}.5}}",
        "samples/sec: {}.25 | iteration 4",
        "step 3200, loss = 2.27 ({}.4 examples/sec)",
        "Train | Epoch 1 | 100/2000 | {}.920 it/sec | ce 7.274",
    ],
)
def test_rates_that_fall_and_stay_low_are_slow(form: str) -> None:
    rates = [2200, 7100, 7000, 7200, 1600, 1650, 1620, 1640, 1600]
    found = slowed(enumerate(map(form.format, rates), 1))
    assert found is not None
    assert (found.cause, found.line) == (Cause.SLOW, 5)
    for other in ([7100] * 6 + [1600] * 2, [7100] * 2 + [1600] * 8, [1600] * 4 + [7100] * 4):
        assert slowed(enumerate(map(form.format, other), 1)) is None


@pytest.mark.parametrize(
    "form",
    ["elapsed time per iteration (ms): {}.4 |", "({} sec/batch)", "step_time: {}"],
)
def test_times_that_grow_from_line_to_line_are_slow(form: str) -> None:
    found = slows_down(enumerate(map(form.format, [31, 83, 140, 199, 258, 317]), 1))
    assert found is not None
    assert (found.cause, found.line) == (Cause.SLOW, 6)
    for other in ([31, 83, 140, 199], [31, 33, 34, 35, 36, 37], [31, 83, 140, 90, 258, 317]):
        assert slows_down(enumerate(map(form.format, other), 1)) is None
    total = [f"step {count} time: {30 * count} s" for count in range(1, 9)]
    assert slows_down(enumerate(total, 1)) is None, "time since the start"


def test_a_machine_without_a_fast_network_has_lost_none() -> None:
    lines = [
        "algo-1:119:119 [0] NCCL WARN NET/OFI Only EFA provider is supported",
        "algo-1:119:119 [0] NCCL WARN NET/OFI aws-ofi-nccl initialization failed",
        "algo-1:119:119 [0] NCCL INFO Using network Socket",
        "algo-2:98:98 [0] NCCL INFO Using network Socket",
    ]
    assert slow_network(enumerate(lines, 1)) is None
    assert slow_network(enumerate(lines[1:], 1)) is not None


_LEVEL = "elapsed time per iteration (ms): {} | global batch size: {} | lm loss: 2.4"


@pytest.mark.parametrize("between", [[], [88.1, 99.5, 110.4]], ids=["at once", "step by step"])
def test_times_that_went_to_a_higher_level_are_slow(between: list[float]) -> None:
    before, after = [73.1, 73.2, 74.1, 75.9, 73.3], [126.7, 128.2, 129.6, 126.4, 127.1]
    times = [*before, *between, *after]
    found = slowed(enumerate((_LEVEL.format(each, 1024) for each in times), 1))
    assert found is not None
    assert (found.cause, found.line) == (Cause.SLOW, 6)


@pytest.mark.parametrize(
    "times",
    [
        [73.1, 95.2, 74.1, 88.9, 73.3, 126.7, 128.2, 129.6, 126.4, 127.1],
        [73.1, 73.2, 74.1, 75.9, 73.3, 126.7, 128.2, 160.6, 126.4, 127.1],
        [73.1, 73.2, 74.1, 75.9, 73.3, 100.7, 101.2, 100.6, 100.4, 100.1],
        [73.1, 73.2, 74.1, 126.7, 128.2, 129.6, 126.4, 127.1],
    ],
    ids=["noisy before", "noisy after", "a little", "few before"],
)
def test_other_changes_of_times_are_no_higher_level(times: list[float]) -> None:
    assert slowed(enumerate((_LEVEL.format(each, 1024) for each in times), 1)) is None


def test_a_larger_batch_takes_longer_and_is_not_slow() -> None:
    small = [_LEVEL.format(73.0, 512)] * 6
    assert slowed(enumerate([*small, *[_LEVEL.format(146.0, 1024)] * 6], 1)) is None


def test_the_bar_of_a_download_is_no_step() -> None:
    lines = [bar(count, "2.00it/s") for count in range(1, 9)]
    lines += [bar(count, "43.30s/it") for count in range(9, 14)]
    assert slowed(enumerate(lines, 1), has_bars=False) is None


@pytest.mark.parametrize(
    "form",
    [
        "Train Epoch: {epoch} [ 4096/2905954] Data (t): {data} Batch (t): {step}, 79.3/s",
        "Epoch: [{epoch}][20/2503]\tTime {step} (0.3)\tData {data} (0.2)\tLoss 2.87 (2.87)",
        "Epoch(train) [{epoch}][50/100] time: {step}, data_time: {data}, memory: 9000",
        "epoch {epoch} loss:0.7 updt_s:0.311 data_s:{data}",
    ],
)
def test_steps_that_mostly_wait_for_data_are_slow(form: str) -> None:
    def is_slow(*waits: tuple[int, float, float]) -> bool:
        lines = (form.format(epoch=n, data=data, step=step) for n, data, step in waits)
        return waits_for_data(enumerate(lines, 1)) is not None

    quick = (0, 0.002, 0.69)
    assert is_slow((0, 44.1, 51.6), quick, (0, 40.4, 41.1), quick, (0, 41.4, 42.1))
    assert not is_slow((0, 44.1, 51.6), quick, quick, (0, 41.4, 42.1)), "once"
    assert not is_slow((0, 9.1, 12.6), quick, (1, 8.9, 10.4), quick, (2, 8.7, 10.1), quick)


@pytest.mark.parametrize("wait", [23411.02, 13.11])
def test_a_timer_of_the_input_that_takes_most_of_the_step(wait: float) -> None:
    line = f"time (ms) | forward: {3020 + wait} | backward: 7259.81 | batch_input: {wait}"
    assert (waits_for_data(enumerate([line] * 3, 1)) is not None) is (wait > 1000)


def test_an_allocator_that_gives_back_its_cache_in_each_step_makes_them_slow() -> None:
    line = "[WARNING] [stage3.py:2390:step] 4 pytorch allocator cache flushes since last step."
    assert flushes_memory(enumerate([line] * 3, 1)) == (Cause.SLOW, 1, line)
    assert flushes_memory(enumerate([line] * 2, 1)) is None


@pytest.mark.parametrize("last", [1.6, 1.2])
def test_steps_that_take_a_little_longer_each_time_become_slow(last: float) -> None:
    times = [1000 * (1 + (last - 1) * n / 9) for n in range(10)]
    lines = [f"step {n} | step time (ms): {each:.1f}" for n, each in enumerate(times, 1)]
    assert (slows_down(enumerate(lines, 1)) is not None) is (last > 1.5)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    "form", ["step: 20  wps: {:,}  mfu: 9%", "0/10, SamplesPerSec={}", "time: 1{0}  data_time: 0.1"]
)
def test_two_runs_that_somebody_put_side_by_side_are_compared(form: str, order: int) -> None:
    fast, slow = [form.format(6118)] * 2, [form.format(1587)] * 2
    if form.startswith("time"):
        fast, slow = ["time: 0.39  data_time: 0.1"] * 2, ["time: 5.36  data_time: 0.1"] * 2
    first, last = (fast, slow)[::order]
    found = compared(enumerate(["# one node", *first, "# the same on four nodes", *last], 1))
    assert found == (Cause.SLOW, 5 if order > 0 else 2, slow[0])
    assert compared(enumerate([*first, *last], 1)) is None, "steps of one run may differ"
    assert compared(enumerate([*first, "$ tail train.log", *first], 1)) is None
