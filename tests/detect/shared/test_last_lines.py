# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Progress and trouble in the last lines of a log, in whatever form they are printed."""

from __future__ import annotations

import pytest

from mwatch.detect.shared.last_lines import (
    bad_numbers,
    counted_until,
    jumped,
    nothing_learnt,
    slow_network,
    slowed,
    spiked,
    started_anew,
    stood_still,
)
from mwatch.model.finding import Cause


def test_losses_that_stay_bad_are_seen_in_a_line_of_any_form() -> None:
    good, bad = "q9 step=1 loss=1.84 tgs=8", "q9 step=2 loss=nan tgs=8"
    found = bad_numbers(enumerate([good, bad, bad], 1))
    assert found is not None
    assert (found.cause, found.line) == (Cause.NAN, 2)
    assert bad_numbers(enumerate([bad, bad, good], 1)) is None
    assert bad_numbers(enumerate([good, bad], 1)) is None


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


@pytest.mark.parametrize(
    "line",
    [
        "Train: 1 [  50/2502 (  2%)]  Loss:       nan (   nan)  Time: 0.298s",
        "[32mloss:     nan  [33mmemory: 66.12GiB",
        " eval_ppl=tensor(nan) eval_epoch_loss=tensor(nan, device='cuda:0')",
        "WARNING: received a nan loss, setting loss value to 0",
        "(trainer:582) WARNING: The grad norm is nan. Skipping updating the model.",
    ],
)
def test_numbers_that_are_not_finite_are_seen_in_many_forms(line: str) -> None:
    bad = bad_numbers([(1, "loss=0.7"), (2, line), (3, line)])
    assert bad is not None
    assert (bad.cause, bad.line) == (Cause.NAN, 2)


def test_one_loss_that_is_bad_is_seen_beside_another_that_is_good() -> None:
    lines = ["val_loss: nan", "train_loss: 1.2", "val_loss: nan", "train_loss: 1.1"]
    bad = bad_numbers(enumerate(lines, 1))
    assert bad is not None
    assert bad.line == 1


def test_a_nan_that_is_followed_by_good_losses_is_over() -> None:
    warned = ["the grad norm is nan, skipped", "the grad norm is nan, skipped", "loss: 2.0"]
    assert bad_numbers(enumerate(warned, 1)) is None


def test_a_loss_and_a_gradient_of_zero_in_each_line_train_nothing() -> None:
    line = "{'loss': 0.0, 'grad_norm': 0.0, 'learning_rate': 3e-08}"
    found = nothing_learnt(enumerate(["begin", line, line, line], 1))
    assert found is not None
    assert (found.cause, found.line) == (Cause.DATA, 2)
    assert nothing_learnt(enumerate([line, line], 1)) is None
    for other in (
        "{'loss': 0.1, 'grad_norm': 0.0}",
        "{'loss': 0.0, 'grad_norm': 0.02}",
        "{'loss': 0.0, 'grad_norm': 0.0, 'reward': 0.0}",
    ):
        assert nothing_learnt(enumerate([line, line, line, other], 1)) is None


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


def test_a_loss_that_jumped_from_a_steady_level_is_a_spike_though_it_came_back() -> None:
    def spike(*losses: float) -> bool:
        found = spiked(enumerate((f"step {at} loss {loss}" for at, loss in enumerate(losses)), 1))
        assert found is None or found.cause is Cause.LOSS_SPIKE
        return found is not None

    assert spike(2.97, 2.96, 2.97, 5.88, 6.41, 5.1, 3.7, 3.2)
    assert spike(4.02, 4.01, 4.03, 5.12, 6.88, 7.44, 7.52), "within three lines"
    assert not spike(2.97, 2.96, 2.97, 5.88, 2.95, 2.96), "one line"
    assert not spike(2.97, 4.1, 2.2, 5.88, 6.41, 3.2), "never steady"
    assert not spike(0.11, 0.1, 0.11, 0.4, 0.5, 0.2), "small numbers"
    assert not spike(2.97, 2.96, 2.97, float("nan"), float("nan"), 2.9)


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


@pytest.mark.parametrize(
    "form",
    [
        "Epoch 1 | iter 12800 step 200 | loss train: {}, val: n/a",
        "{{'loss': {}, 'learning_rate': 1e-05, 'epoch': 0.1}}",
        "[update 12] Loss {} (2.0) lr 1e-4 loss_scale=1024",
    ],
)
def test_losses_that_jump_and_stay_are_seen_in_lines_of_any_form(form: str) -> None:
    fell = [4.2, 4.1, 4.0, 3.9, 3.8, 3.8]
    found = jumped(enumerate([form.format(loss) for loss in [*fell, 6.9, 7.4, 7.2, 7.3]], 1))
    assert found is not None
    assert (found.cause, found.line) == (Cause.LOSS_SPIKE, 7)


@pytest.mark.parametrize(
    "losses",
    [
        [4.2, 4.1, 4.0, 3.9, 3.8, 3.8, 7.4, 7.2, 4.1],
        [4.2, 4.1, 4.0, 3.9, 3.8, 3.8, 12.4, 9.2, 8.1],
        [0.01, 0.02, 0.01, 0.03, 0.01, 0.02, 0.2, 0.2, 0.2],
        [2.0, 9.0, 2.0, 9.0, 2.0, 9.0, 9.0, 9.0, 9.0],
        [4.0, 3.9, 8.0, 8.1, 8.0],
    ],
    ids=["back", "coming back", "next to nothing", "noise", "too few"],
)
def test_losses_that_come_back_or_are_noisy_have_not_jumped(losses: list[float]) -> None:
    assert jumped((n, f"loss: {loss}") for n, loss in enumerate(losses, 1)) is None


def test_one_evaluation_that_is_not_finite_is_enough() -> None:
    assert bad_numbers([(1, "{'eval_loss': nan}")]) is not None
    assert bad_numbers([(1, "{'loss': nan}")]) is None
