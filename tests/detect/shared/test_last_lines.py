# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Progress and trouble in the last lines of a log, in whatever form they are printed."""

from __future__ import annotations

import pytest

from mwatch.detect.shared.last_lines import (
    completed,
    counted_until,
    empty_shards,
    host_memory_full,
    keeps_failing,
    members_missing,
    prepares_data,
    started_anew,
    stood_still,
    stopped_short,
    trials_pending,
)
from mwatch.model.cause import Cause


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
        "[u1@login2 runs]$ ssh gpu-7 nvidia-smi --query-gpu=utilization.gpu --format=csv",
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


def test_a_kill_while_the_optimizer_fills_the_host_is_for_lack_of_memory() -> None:
    lines = [
        "[INFO] CPU Offload: True",
        "[INFO] Before initializing optimizer states",
        "[INFO] CPU Virtual Memory:  used = 41.86 GB, percent = 44.4%",
    ]
    assert host_memory_full(enumerate(lines, 1)) == (Cause.OOM, 3, lines[2])
    after = "[INFO] After initializing optimizer states"
    assert host_memory_full(enumerate([*lines, after], 1)) is None


def test_images_counted_with_their_rate_are_progress() -> None:
    lines = [f"[1,0]<stdout>:{n}0\timages/sec: 130.{n} +/- 0.4" for n in range(1, 5)]
    failed = "ssh: Could not resolve hostname worker-0"
    assert counted_until(enumerate([failed, *lines], 1)) == 4


def test_members_that_never_came_are_a_hang_if_nothing_follows() -> None:
    came = [f"initializing ddp: GLOBAL_RANK: {n}, MEMBER: {n + 1}/8" for n in (2, 0, 3, 1)]
    assert members_missing(enumerate(came, 1)) == (Cause.HANG, 4, came[3])
    assert members_missing(enumerate([*came, "$ squeue -u me", "7 R"], 1)) is not None
    assert members_missing(enumerate([*came, "  | Name | Type"], 1)) is None
    all_came = [f"GLOBAL_RANK: {n}, MEMBER: {n + 1}/4" for n in range(4)]
    assert members_missing(enumerate(all_came, 1)) is None


def test_a_listed_shard_without_content_is_no_checkpoint() -> None:
    row = "-rw-r--r--  1 train train {} Mar  3 04:12 checkpoint_last-shard{}.pt"
    lines = ["$ ls -la /ckpt", row.format(583649007, 1), row.format("        0", 2)]
    assert empty_shards(enumerate(lines, 1)) == (Cause.CHECKPOINT, 3, lines[2])
    assert empty_shards(enumerate(lines[:2], 1)) is None


def test_a_bar_of_examples_that_is_far_from_full_prepares_data() -> None:
    form = "Running tokenizer:  8%|x | {}/4318802 [29:58<6:09:11, 180.29 examples/s][E timeout"
    assert prepares_data([(3, form.format(325000))]) == (Cause.HANG, 3, form.format(325000))
    assert prepares_data([(3, form.format(4318802))]) is None
    assert prepares_data([(3, form.format(325000)), (4, "step 1 loss 2.5")]) is None


@pytest.mark.parametrize("reached", [48, 96])
def test_exit_code_0_far_from_the_announced_steps_is_an_early_end(reached: int) -> None:
    lines = ["Total training steps: 96", f"wandb:   train/global_step {reached}", "$ echo $?", "0"]
    found = stopped_short(list(enumerate(lines, 1)))
    assert (found is not None) is (reached == 48)


def test_the_same_warning_again_and_again_at_the_end_is_a_peer_that_is_gone() -> None:
    form = "[2024-05-01 10:{:02d}:00] WARNING: {} failed to send a heartbeat: connection refused"
    tries = [form.format(minute, "node-7") for minute in range(8)]
    assert keeps_failing(enumerate(tries, 1)) == (Cause.FABRIC, 1, tries[0])
    assert keeps_failing(enumerate(tries[:3], 1)) is None
    of_ranks = [form.format(0, f"rank-{rank}") for rank in "abcdefgh"]
    assert keeps_failing(enumerate(of_ranks, 1)) is None, "each of them once"
    over = [f"step {n} loss {9 - n}" for n in range(8)]
    assert keeps_failing(enumerate([*tries, *over], 1)) is None


def test_trials_of_which_none_ever_runs_do_not_fit() -> None:
    waits, runs = "Number of trials: 1/1 (1 PENDING)", "Number of trials: 1/1 (1 RUNNING)"
    assert trials_pending(enumerate([waits, waits], 1)) == (Cause.UNSCHEDULABLE, 2, waits)
    assert trials_pending(enumerate([waits], 1)) is None
    assert trials_pending(enumerate([waits, waits, runs], 1)) is None


def test_a_model_of_a_hub_that_was_not_there_is_a_start_from_scratch() -> None:
    missing = "[WARNING] Unable to find latest file at {}/latest, if trying to load latest"
    anew = "Loading checkpoint and starting from iteration 0"
    for folder, is_anew in (("EleutherAI/gpt-neox-20b", True), ("/data/run-7/out", False)):
        lines = [missing.format(folder), anew]
        assert (started_anew(enumerate(lines, 1)) is not None) is is_anew


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_restart_that_finds_no_checkpoint_lost_it(attempt: int) -> None:
    lines = ["No previous autoresume checkpoint found", f"restart_attempt: {attempt}", "step 1"]
    assert (started_anew(enumerate(lines, 1)) is not None) is (attempt == 1)


def test_a_model_that_begins_from_scratch_below_its_newest_checkpoint_lost_it() -> None:
    lines = [
        "Discovered latest checkpoint at gs://b/r4/step-412",
        "Initializing model from scratch.",
    ]
    assert started_anew(enumerate(lines, 1)) is not None
    assert started_anew(enumerate(lines[1:], 1)) is None


@pytest.mark.parametrize("done", [1, 7])
def test_a_kill_while_weights_are_loaded_is_for_lack_of_memory(done: int) -> None:
    bar = f"Loading checkpoint shards:  14%|#4        | {done}/7 [00:21<02:09, 21.61s/it]"
    assert (host_memory_full([(1, bar)]) is not None) is (done == 1)
    assert host_memory_full([(1, bar), (2, "step 1 loss 2.5")]) is None


@pytest.mark.parametrize(
    ("line", "is_anew"),
    [
        ("UserWarning: No checkpoint file found at `resume_from_checkpoint` a/last.ckpt.", True),
        ("INFO | trainer | No existing checkpoint found /ckpts/opt/reshard-shard0.pt", True),
        ("INFO | trainer | No existing checkpoint found ckpts/checkpoint_last.pt", False),
    ],
)
def test_a_file_to_begin_with_that_was_not_there(line: str, is_anew: bool) -> None:
    assert (started_anew([(1, line), (2, "step 1 loss 9.1")]) is not None) is is_anew


def test_work_that_goes_on_beside_it_is_no_sign_of_a_hang() -> None:
    steps = (1, "step 7 | loss 2.1")
    assert stood_still([steps, (2, "$ # nothing else happens")]) is not None
    assert stood_still([steps, (2, "$ # nothing else runs on these nodes")]) is None


def bar(count: int, of: int) -> str:
    return f"  4%|x         | {count}/{of} [24:51<9:42:08,  2.33s/it]"


_DRY = "There seems not to be a single sample in your epoch_iterator, stopping training at step 34!"


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (["Total optimization steps = 15,625", bar(640, 15625), "Training completed."], 2),
        (["Total optimization steps = 15,625", bar(15620, 15625), "Training completed."], None),
        (["Total optimization steps = 600", bar(600, 600), bar(3, 40)], None),  # of an evaluation
        ([f"[W] {_DRY}", "{'train_runtime': 2307.4, 'train_loss': 0.0}"], 1),
        ([_DRY, "step 35 loss 2.1"], None),
        (["Total optimization steps = 1,200", "Continuing training from global step 2314"], 2),
        (["Total optimization steps = 9,200", "Continuing training from global step 2314"], None),
    ],
)
def test_a_run_that_reports_its_end_far_from_it(lines: list[str], line: int | None) -> None:
    found = stopped_short(list(enumerate(lines, 1)), is_done=True)
    assert (found and found.line) == line
    assert found is None or found.cause is Cause.FINISHED_EARLY


def test_a_run_that_resumes_at_an_epoch_and_counts_from_the_first() -> None:
    resumes, first = "Resuming from /out/net--epoch=812-last.ckpt", "Epoch 0:   0%|  | 1/205"
    assert started_anew([(1, resumes), (2, first)]) is not None
    assert started_anew([(1, resumes), (2, "Epoch 813:   0%|  | 1/205")]) is None
    assert started_anew([(1, resumes.replace("812", "0")), (2, first)]) is None


@pytest.mark.parametrize("after", [["closing loggers", "$ echo $?", "0"], [], ["step 9 loss 1.2"]])
def test_a_trainer_that_stops_early_is_done(after: list[str]) -> None:
    stops = "INFO: val/loss did not improve in the last 20 records. Signaling Trainer to stop."
    found = completed(list(enumerate(["step 8 loss 1.3", stops, *after], 1)))
    assert found == (None if "loss" in " ".join(after) else (Cause.FINISHED, 2, stops))


def test_workers_that_restart_and_find_no_checkpoint_lost_it() -> None:
    restarts = "[default] Worker group RESTARTING; 2/3 attempts left"
    scratch = "will not load any checkpoints and will start from random"
    assert started_anew([(1, restarts), (2, scratch)]) is not None
    assert started_anew([(1, "[default] Worker group STARTED"), (2, scratch)]) is None


def test_weights_that_are_loaded_after_all_are_no_start_from_scratch() -> None:
    missing = "WARNING: could not find the metadata file /mnt/models/glm/latest_iteration.txt"
    loaded = "> successfully loaded /mnt/models/glm/mp_rank_00_model_states.pt"
    assert started_anew([(1, missing), (2, "step 1 loss 9.1")]) is not None
    assert started_anew([(1, missing), (2, loaded), (3, "step 1 loss 2.1")]) is None


@pytest.mark.parametrize("save", ["/ck/phase1", "/ck/phase2"])
def test_weights_of_another_folder_that_were_not_there(save: str) -> None:
    lines = ["  load ........... /ck/phase1", f"  save ........... {save}"]
    lines += ["will not load any checkpoints and will start from random", "step 1 loss 9.1"]
    assert (started_anew(enumerate(lines, 1)) is not None) is (save == "/ck/phase2")


@pytest.mark.parametrize("cut", ["*** STEP 7.0 ON n1 CANCELLED AT 2020 DUE TO PREEMPTION ***", ""])
def test_the_first_epoch_again_after_a_cut(cut: str) -> None:
    lines = ["Epoch 53: 34%| 133/390, loss=0.2", cut, "Epoch 0: 100%| 390/390, loss=4.4"]
    assert (started_anew(enumerate(lines, 1)) is not None) is bool(cut)


def test_what_programs_print_when_they_end_does_not_hide_the_end() -> None:
    done = "training done: 5000 steps in 3h 12m"
    noise = ["[rank2]:[W520] WARNING: process group has NOT been destroyed before it is"] * 4
    assert completed(list(enumerate([done, *noise, "$"], 1))) == (Cause.FINISHED, 1, done)
    assert completed(list(enumerate([done, *["something else"] * 4], 1))) is None


def test_rows_of_a_benchmark_are_progress() -> None:
    rows = [f"    {size}      8388608     float     sum      -1   1204.3" for size in (1, 2, 3, 4)]
    assert counted_until(enumerate(["ssh: Could not resolve hostname w-1", *rows], 1)) == 4


@pytest.mark.parametrize(("share", "is_hang"), [(0, True), (100, True), (64, False)])
def test_a_table_of_gpus_that_work_is_no_standstill(share: int, is_hang: bool) -> None:
    row = f"|  0%   54C    P0   310W / 400W |  61022MiB / 81920MiB |  {share}%   Default |"
    lines = ["epoch 2: loss 1.9", "$ nvidia-smi", row]
    assert (stood_still(enumerate(lines, 1)) is not None) is is_hang


def test_steps_that_come_after_somebody_looked_are_no_standstill() -> None:
    lines = ["Starting training", "$ nvidia-smi", "0, 0 %, 1367 MiB", "iter: 19  loss: 5.1"]
    assert stood_still(enumerate(lines, 1)) is not None
    lines += [f"iter: {count}  loss: 3.3" for count in (39, 59, 79)]
    assert stood_still(enumerate(lines, 1)) is None


def test_a_trainer_whose_data_ran_out_ended_early() -> None:
    lines = ["step: 40  loss: 6.2", "Ran out of data; last step was canceled."]
    found = stopped_short(list(enumerate([*lines, "Training completed"], 1)))
    assert found is not None and found.cause is Cause.FINISHED_EARLY
    assert stopped_short(list(enumerate([*lines, "step: 50  loss: 6.1"], 1))) is None
