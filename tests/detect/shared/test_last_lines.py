# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Progress and trouble in the last lines of a log, in whatever form they are printed."""

from __future__ import annotations

import pytest

from mwatch.detect.shared.last_lines import (
    counted_until,
    host_memory_full,
    slow_network,
    slowed,
    started_anew,
    stood_still,
)
from mwatch.model.finding import Cause


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


def test_a_count_that_rises_in_any_form_is_progress() -> None:
    rounds = [f"Federated round {n}. Test acc 0.{n}" for n in (41, 42, 43)]
    assert counted_until(enumerate(rounds, 1)) == 2
    assert counted_until(enumerate(rounds[:2], 1)) == 0, "one more line may be of another rank"
    assert counted_until(enumerate([rounds[0]] * 5, 1)) == 0
    timed = [f"[2026-04-15 09:12:{10 + n}] [Rank 0] step={n}, skipped=0" for n in range(3)]
    assert counted_until(enumerate(timed, 1)) == 2, "the time before the count is not its name"
    errors = [f"rank {n}: error in step {n}" for n in range(5)]
    assert counted_until(enumerate(errors, 1)) == 0


@pytest.mark.parametrize(
    "last",
    [
        "$ nvidia-smi",
        "$ date; nvidia-smi",
        "(base) root@gpu-4:~# ps -o etime,cmd -C python",
        "-- nvidia-smi on gpu-4, 25 minutes after the last line --",
        "# (had waited 25 minutes at this point)",
        "  0%|          | 0/345 [22:31<?, ?it/s]",
        "  0%|          | 0/345 [1:02:31<?, ?it/s]",
    ],
)
def test_somebody_looks_why_nothing_comes_any_more(last: str) -> None:
    found = stood_still(enumerate(["epoch 2: loss 1.9", last], 1))
    assert found is not None and (found.cause, found.line) == (Cause.HANG, 2)


def test_a_table_of_nccl_tests_without_a_row_is_a_standstill() -> None:
    head = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
    row = "           8             2     float     sum      -1    31.20    0.00    0.00      0"
    found = stood_still(enumerate([head, "Launch mode Group/CGMD"], 1))
    assert found is not None and (found.cause, found.line) == (Cause.HANG, 1)
    assert stood_still(enumerate([head, row], 1)) is None


@pytest.mark.parametrize(
    "last",
    ["  0%|          | 0/345 [00:31<?, ?it/s]", "  1%| 3/345 [22:31<9:00, 4s/it]", "ps done"],
)
def test_a_bar_that_has_just_begun_or_moves_is_no_standstill(last: str) -> None:
    assert stood_still(enumerate(["epoch 2: loss 1.9", last], 1)) is None


def test_a_start_from_scratch_is_reported_only_if_there_was_a_checkpoint() -> None:
    scratch = "No checkpoint found, starting from step 0"
    for before in (
        "Discovered latest checkpoint at /ckpt/step-18000",
        "got exception while trying to load /ckpt/checkpoint_last.pt",
        "Saving checkpoint to /ckpt/global_step_140/actor",
        "[INFO] [default] Restarting worker group",
        "[INFO] Restart 8 workers, remaining restarts 2",
        "  restart_count=1",
    ):
        anew = started_anew([(1, before), (2, scratch), (3, "step 1")])
        assert anew is not None
        assert (anew.cause, anew.line) == (Cause.STARTED_FROM_RANDOM, 2)
    assert started_anew([(1, "Preparing to load checkpoint /c/last.pt"), (2, scratch)]) is None


@pytest.mark.parametrize("first", ["step 0 | rec 4.91", "| step          | 0   |", "x - step:  1 "])
def test_a_checkpoint_that_was_asked_for_by_its_number_was_not_loaded(first: str) -> None:
    for command in ("--resume_checkpoint models/model090000.pt", "--checkpoint.load_step=500"):
        anew = started_anew(enumerate([f"$ python train.py {command}", first], 1))
        assert anew is not None
        assert (anew.cause, anew.line) == (Cause.STARTED_FROM_RANDOM, 2)
        goes_on = [f"$ python train.py {command}", "step 90001 | rec 0.91"]
        assert started_anew(enumerate(goes_on, 1)) is None
    for other in ("--seed 42", "--max-restarts 10", "--resume-retries 10"):
        assert started_anew(enumerate([f"$ python train.py {other}", first], 1)) is None


@pytest.mark.parametrize(
    ("command", "listed"),
    [
        ("$ ls /ckpt", "checkpoint-50  runs"),
        ("me@node7:~$ ls -l /ckpt/mp_rank_00", "gpt--val_loss=2.91-step=6000.ckpt"),
        ("$ aws s3 ls s3://bucket/run/", "                           PRE ba12000/"),
    ],
)
def test_a_listing_shows_that_there_was_a_checkpoint(command: str, listed: str) -> None:
    scratch = "INFO: composer: No previous autoresume checkpoint found"
    for lines in ([command, listed, scratch], [scratch, "step 1", command, listed]):
        anew = started_anew(enumerate(lines, 1))
        assert anew is not None
        assert anew.text == scratch
    assert started_anew(enumerate([command, "runs  events.out", scratch], 1)) is None
    saved = [scratch, "Saved checkpoint at /ckpt/checkpoint-50"]
    assert started_anew(enumerate(saved, 1)) is None


@pytest.mark.parametrize(
    ("line", "is_model"),
    [
        ("WARNING: could not find the metadata file /nfs/models/q-8b/latest_train_state.pt", True),
        ("Unable to find latest file at pretrained/neox-20b/latest, if trying to load", True),
        ("Unable to find latest file at /data/llama-7b-hf/latest, if trying to load", True),
        ("WARNING: could not find the metadata file /data/ckpt/345m/latest_iteration.txt", False),
        ("Unable to find latest file at checkpoints/latest, if trying to load latest", False),
    ],
)
def test_a_model_to_begin_with_that_is_missing_is_a_start_from_random(
    line: str, is_model: bool
) -> None:
    assert (started_anew([(1, line), (2, "step 1")]) is not None) is is_model


def test_a_count_in_brackets_is_progress() -> None:
    lines = [f"Epoch: [ 0] [{step:5d}/10000] d_loss {2 - step}" for step in range(4)]
    assert counted_until(enumerate(["Failed to find a checkpoint", *lines], 1)) == 4


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
    found = slowed(enumerate(map(form.format, [31, 83, 140, 199, 258, 317]), 1))
    assert found is not None
    assert (found.cause, found.line) == (Cause.SLOW, 6)
    for other in ([31, 83, 140, 199], [31, 33, 34, 35, 36, 37], [31, 83, 140, 90, 258, 317]):
        assert slowed(enumerate(map(form.format, other), 1)) is None
    total = [f"step {count} time: {30 * count} s" for count in range(1, 9)]
    assert slowed(enumerate(total, 1)) is None, "time since the start"


def test_a_start_from_scratch_after_steps_that_were_cut_off_lost_them() -> None:
    steps = ["step 8590 loss 2.61", "step 8600 loss 2.60"]
    cut = (
        "slurmstepd: error: *** STEP 7.0 ON n3 CANCELLED AT 2023-02-07T03:00:31 DUE TO REQUEUE ***"
    )
    anew = "No existing checkpoint found in /out"
    found = started_anew(enumerate([*steps, cut, anew], 1))
    assert found == (Cause.STARTED_FROM_RANDOM, 4, anew)
    assert started_anew(enumerate([*steps, "all epochs are done", anew], 1)) is None
    assert started_anew(enumerate([cut, anew], 1)) is None


@pytest.mark.parametrize(
    "form",
    [
        "[INFO] CPU Virtual Memory:  used = 462.01 GB, percent = {}%",
        "host memory usage: {} %",
        "RAM usage 461/503 GB ({}%)",
    ],
)
def test_the_last_report_of_the_host_s_memory_counts(form: str) -> None:
    full, free = form.format("91.8"), form.format("65.8")
    assert host_memory_full(enumerate([free, full, "step 3"], 1)) == (Cause.OOM, 2, full)
    assert host_memory_full(enumerate([full, free], 1)) is None


def test_a_machine_without_a_fast_network_has_lost_none() -> None:
    lines = [
        "algo-1:119:119 [0] NCCL WARN NET/OFI Only EFA provider is supported",
        "algo-1:119:119 [0] NCCL WARN NET/OFI aws-ofi-nccl initialization failed",
        "algo-1:119:119 [0] NCCL INFO Using network Socket",
        "algo-2:98:98 [0] NCCL INFO Using network Socket",
    ]
    assert slow_network(enumerate(lines, 1)) is None
    assert slow_network(enumerate(lines[1:], 1)) is not None
