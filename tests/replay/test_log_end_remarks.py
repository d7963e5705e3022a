# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Excerpts whose last lines show what an error alone does not: remarks, numbers, other ranks."""

from __future__ import annotations

from pathlib import Path

from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.replay.log_end import LogEnd
from support.runs.recorded import read


def test_a_job_cancelled_after_somebody_looked_why_it_stands_still_was_hung(tmp_path: Path) -> None:
    cancelled = "slurmstepd: error: *** STEP 8.0 ON g7 CANCELLED AT 2026-08-19T05:40:11 ***"
    steps = [f"step {n} | loss {9 - n}.0" for n in range(1, 9)]
    assert read(tmp_path, *steps, cancelled).decision.cause is not Cause.HANG
    looked = read(tmp_path, *steps, "$ date; nvidia-smi", "0, 100 %, 71822 MiB", cancelled)
    assert (looked.decision.cause, looked.decision.action) == (Cause.HANG, Action.RESTART)
    assert looked.decision.is_advice


def test_an_exception_over_a_loss_that_is_not_finite_is_of_the_numbers(tmp_path: Path) -> None:
    raised = [
        "Traceback (most recent call last):",
        '  File "optimizer.py", line 495, in run',
        "    self.writer.add_histogram('losses', losses, it)",
        "ValueError: The histogram is empty, please file a bug report.",
    ]
    assert read(tmp_path, "speed=409, loss=2.0", *raised).decision.cause is Cause.USER_ERROR
    assert read(tmp_path, "speed=409, loss=nan", *raised).decision.cause is Cause.NAN


def test_a_missing_file_of_weights_is_a_matter_of_the_checkpoint(tmp_path: Path) -> None:
    missing = "FileNotFoundError: [Errno 2] No such file or directory: 'base/{}'"
    for name, cause in (("lit_model.pth", Cause.CHECKPOINT), ("train.jsonl", Cause.DATA)):
        assert read(tmp_path, missing.format(name)).decision.cause is cause


def test_a_remark_that_nothing_more_came_explains_ctrl_c(tmp_path: Path) -> None:
    steps = [f"step {n} | loss {9 - n}.0" for n in range(1, 9)]
    ended = ["^CTraceback (most recent call last):", "KeyboardInterrupt"]
    assert read(tmp_path, *steps, *ended).decision.cause is Cause.DELETED_BY_USER
    for remark in (
        "(no output for 3h, all 8 GPUs at 0%)",
        "# it hangs here",
        "nothing more is printed",
    ):
        hung = read(tmp_path, *steps, remark, *(f"[rank3]: {each}" for each in ended)).decision
        assert hung.cause is Cause.HANG
        assert hung.finding is not None
        assert hung.finding.culprit is None, "the rank that printed the interrupt is any rank"


def test_a_checkpoint_that_cannot_be_read_after_the_training_is_no_good_end(tmp_path: Path) -> None:
    lines = [
        "`Trainer.fit` stopped: `max_epochs=1` reached.",
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 77, in <module>',
        '    trainer.fit(model, ckpt_path="/data/last.ckpt")',
        "RuntimeError: PytorchStreamReader failed reading zip archive: not found",
    ]
    assert read(tmp_path, *lines).decision.cause is Cause.CHECKPOINT


def test_a_last_line_of_another_rank_does_not_hide_the_exception_of_the_one_that_failed(
    tmp_path: Path,
) -> None:
    bar = "Steps:   0%|          | {}/6000 [00:11<15:45:28,  9.46s/it, lr=1e-8, step_loss=0.131]"
    lines = [
        bar.format(1),
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 1261, in main',
        "    plot(",
        "TypeError: plot() missing 1 required positional argument: 'x'",
        bar.format(2),
        "[2024-02-08 11:20:41,845] torch.distributed.elastic.multiprocessing.api: [ERROR] failed "
        "(exitcode: 1) local_rank: 1 (pid: 2215) of binary: /opt/conda/bin/python",
    ]
    found = read(tmp_path, *lines).decision
    assert (found.cause, found.action) == (Cause.USER_ERROR, Action.STOP)


def test_a_traceback_that_the_end_of_the_file_closes_comes_before_the_exit(tmp_path: Path) -> None:
    """The launcher's last line is half a minute later: by then the exit alone was acted on."""
    raised = [
        '[rank9]:   File "/opt/megatron/core/experts.py", line 796, in forward',
        "[rank9]:     return torch.split(tokens, sizes)",
        "[rank9]: RuntimeError: split_with_sizes expects split_sizes to sum exactly to 16",
    ]
    ended = [
        "srun: error: g7: task 9: Exited with exit code 1",
        "slurmstepd: error: *** STEP 8.0 ON g6 CANCELLED AT 2026-08-19T05:40:41 ***",
    ]
    started = "[before the start of training step] datetime: 2026-08-19 05:40:02"
    found = read(tmp_path, started, *raised, *ended)
    assert (found.decision.cause, found.decision.action) == (Cause.USER_ERROR, Action.STOP)


def test_what_kubectl_describes_may_be_pasted_above_the_log(tmp_path: Path) -> None:
    described = [
        "Status:           Failed",
        "Reason:           Evicted",
        "Message:          Pod ephemeral local storage usage exceeds the total limit of containers",
        "      Exit Code:    137",
    ]
    steps = [f"step {n} | loss {9 - n}.0" for n in range(1, 4)]
    assert read(tmp_path, *described, *steps).decision.cause is Cause.STORAGE


def test_a_server_of_the_data_that_does_not_answer_is_worth_another_try(tmp_path: Path) -> None:
    raised = [
        "Traceback (most recent call last):",
        '  File "/opt/titan/trainer.py", line 612, in batch_generator',
        "    batch = next(data_iterator)",
        "{}: quux",
    ]
    steps = [f"step {n} | loss {9 - n}.0" for n in range(1, 9)]
    for name, cause in (("FSTimeoutError", Cause.STORAGE), ("QuuxError", Cause.DATA)):
        lines = [each.format(name) for each in raised]
        assert read(tmp_path, *steps, *lines).decision.cause is cause


def test_exit_code_0_in_the_last_lines_makes_complaints_harmless(tmp_path: Path) -> None:
    noise = (
        "[rank1]:[E614 11:40:52.330187714 ProcessGroupNCCL.cpp:1319] [PG 0 Rank 1] Failed to get "
        "exception dump flag from the global store.Connection reset by peer"
    )
    assert read(tmp_path, "[rank0] done in 3.11 s", noise).verdict.cause is Cause.FABRIC
    for end in ("exit=0", "launcher exit code 0", "exited with code 0", "Exit status: 0"):
        assert read(tmp_path, "[rank0] done in 3.11 s", noise, end).verdict.cause is Cause.FINISHED
    assert read(tmp_path, "x", noise, "exit code 01a").verdict.cause is Cause.FABRIC


def test_a_port_in_use_at_the_first_start_is_a_setting_and_later_a_leftover(tmp_path: Path) -> None:
    raised = "RuntimeError: Address already in use"
    exited = "srun: error: g7: task 3: Exited with exit code 1"
    steps = [f"step {n} | loss {9 - n}.0" for n in range(1, 9)]
    assert read(tmp_path, raised, exited).decision.action is Action.STOP
    assert read(tmp_path, *steps, raised, exited).decision.action is Action.RESTART


def test_who_was_killed_for_its_memory_explains_what_its_peers_see(tmp_path: Path) -> None:
    efa = (
        "w0:192:262 [2] process_err_completion:1562 NCCL WARN NET/OFI Request 0x7f08 completed "
        "with error. RC: 5. Error: Invalid receiver queue pair number (QPN)"
    )
    killed = (
        "mpirun noticed that process rank 11 with PID 0 on node w1 exited on signal 9 (Killed)."
    )
    assert read(tmp_path, efa, killed).decision.cause is Cause.FABRIC
    assert read(tmp_path, efa, killed, "      Reason:       OOMKilled").decision.cause is Cause.OOM


def test_a_bar_of_one_epoch_that_is_full_is_not_the_end_of_the_run(tmp_path: Path) -> None:
    lines = [
        "epoch 3: 100%|####| 812/812 [06:31<00:00,  2.07it/s, loss=0.311]",
        "Traceback (most recent call last):",
        '  File "train.py", line 188, in evaluate',
        "    out = model(images)",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running x",
    ]
    assert read(tmp_path, *lines).decision.cause is Cause.USER_ERROR


def test_an_assertion_of_a_library_before_the_first_step_comes_again(tmp_path: Path) -> None:
    ended = [
        "python: /opt/x/quux.cpp:191: int quux_t::wait(): Assertion `_pending > 0' failed.",
        "[ERROR] [launch.py:341:sigkill_handler] ['python', 'a.py'] exits with return code = -6",
    ]
    steps = [f"step {n} | loss {9 - n}.0" for n in range(1, 9)]
    assert read(tmp_path, *ended).decision.action is Action.STOP
    assert read(tmp_path, *steps, *ended).decision.action is Action.RESTART


def test_a_log_that_reports_its_end_is_finished_and_says_so_without_contradiction(
    tmp_path: Path,
) -> None:
    report = read(tmp_path, "Progress on:train 20.0it/20.0it", "task t/0 exited with code 0")
    assert report.verdict.cause is Cause.FINISHED
    assert report.verdict.summary.startswith("The last lines report the end of the run: ")
    assert report.advice.step == "nothing to do: training is done"
    assert report.decision.reason == "only the wording of the log suggests it"


def test_deepspeed_reports_that_its_processes_ended_well(tmp_path: Path) -> None:
    steps = [f"Epoch: 0 | Step: {n} | Actor Loss: 0.0{n}" for n in range(1, 9)]
    end = "[2026-07-05 09:40:31,877] [INFO] [launch.py:460:main] Process 7121 exits successfully."
    assert read(tmp_path, *steps, end).verdict.cause is Cause.FINISHED
    assert read(tmp_path, *steps).verdict.cause is not Cause.FINISHED


def test_a_file_that_ends_well_does_not_hide_the_complaint_of_another() -> None:
    tails = {"a.log": b"task t/0 exited with code 0\n", "b.log": b"CUDA out of memory\n"}
    found = LogEnd().from_words(tails, dict.fromkeys(tails, 1))
    assert found is not None and found.cause is Cause.OOM
    alone = LogEnd().from_words({"a.log": tails["a.log"]}, {"a.log": 1})
    assert alone is not None and alone.cause is Cause.FINISHED


def test_ranks_that_wait_for_the_preparation_of_data_would_wait_again(tmp_path: Path) -> None:
    bar = "Running tokenizer:   8%|x | {}/4318802 [29:58<6:09:11, 180.29 examples/s]"
    timeout = (
        "[E ProcessGroupNCCL.cpp:475] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for "
        "1800521 milliseconds before timing out."
    )
    report = read(tmp_path, bar.format(325000), timeout).decision
    assert (report.cause, report.action) == (Cause.HANG, Action.STOP)
    assert report.proposal is not None and "prepare the data" in report.proposal
    done = read(tmp_path, bar.format(4318802), timeout).decision
    assert (done.cause, done.action) == (Cause.HANG, Action.RESTART)


def test_the_hub_of_the_data_is_tried_again_only_by_a_run_that_has_read_from_it(
    tmp_path: Path,
) -> None:
    silent = "'(ReadTimeoutError)' thrown while requesting GET https://h.org/datasets/c4/x.json.gz"
    steps = [f"step: {n}  loss: {9 - n}.0  grad_norm: 0.2" for n in range(1, 9)]
    for before, action in (((), Action.STOP), (steps, Action.RESTART)):
        decision = read(tmp_path, *before, silent).decision
        assert (decision.cause, decision.action) == (Cause.DATA, action)


def test_losses_that_exploded_and_stay_high_call_for_a_stop(tmp_path: Path) -> None:
    losses = [9.8, 8.8, 7.9, 7.4, 7.2, 7.1, 9e4, 8e6, 9e7, 2e8]
    lines = [f"| quux {n} / 3182 loss={loss:.2f} (7.0), wps=9744" for n, loss in enumerate(losses)]
    decision = read(tmp_path, *lines).decision
    assert (decision.cause, decision.action) == (Cause.LOSS_SPIKE, Action.STOP)


def test_the_signal_to_an_agent_explains_the_rendezvous_that_it_closed(tmp_path: Path) -> None:
    signal = "W0410 15:02:33.771 2210 api.py:719] Received 15 death signal, shutting down workers"
    closed = "torch.distributed.elastic.rendezvous.api.RendezvousClosedError"
    assert read(tmp_path, signal, closed).decision.cause is Cause.KILLED
    assert read(tmp_path, closed).decision.cause is Cause.FABRIC


def test_a_pending_pod_and_a_node_that_is_not_ready_are_of_now(tmp_path: Path) -> None:
    steps = [f"step {n} | loss {9 - n}.0" for n in range(1, 5)]
    node = "gpu-1.lab   NotReady   <none>   214d   v1.26.9"
    assert read(tmp_path, node, *steps).decision.cause is Cause.LOST_POD
    pending = "gloo-b-worker-0     0/1     Pending   0          6m58s"
    assert read(tmp_path, pending).decision.cause is Cause.UNSCHEDULABLE


def test_warnings_of_one_kind_count_where_they_come_again_without_progress(tmp_path: Path) -> None:
    warning = (
        "2020-10-10 23:4{}:58 | WARNING | quux | ran out of memory with exception: CUDA out of "
        "memory. Tried to allocate 1.31 GiB"
    )
    for count, cause in ((2, Cause.UNKNOWN), (6, Cause.OOM)):
        assert read(tmp_path, *map(warning.format, range(count))).decision.cause is cause


def test_ctrl_c_that_an_agent_reports_is_by_hand(tmp_path: Path) -> None:
    signal = "[WARNING] Received {} death signal, shutting down workers"
    steps = [f"step {n} | loss {9 - n}.0" for n in range(1, 9)]
    for name, cause in (
        ("Signals.SIGINT", Cause.DELETED_BY_USER),
        ("2", Cause.DELETED_BY_USER),
        ("Signals.SIGTERM", Cause.KILLED),
        ("15", Cause.KILLED),
    ):
        assert read(tmp_path, *steps, signal.format(name)).decision.cause is cause


def test_a_check_that_fails_in_a_worker_which_read_well_before_is_about_the_data(
    tmp_path: Path,
) -> None:
    raised = [
        "AssertionError: Caught AssertionError in DataLoader worker process 11.",
        "Original Traceback (most recent call last):",
        '  File "/w/quux.py", line 712, in read',
        "    len(result) == count",
        "AssertionError",
    ]
    steps = [f"step {n} | loss {9 - n}.0" for n in range(1, 9)]
    assert read(tmp_path, *raised).decision.cause is Cause.USER_ERROR
    assert read(tmp_path, *steps, *raised).decision.cause is Cause.DATA


def test_a_manager_that_ended_at_once_needs_a_main_guard(tmp_path: Path) -> None:
    raised = [
        "Traceback (most recent call last):",
        '  File "/opt/m/filesystem_async.py", line 34, in {}',
        "    queue = ctx.Manager().Queue()",
        '  File "/usr/lib/python3.10/multiprocessing/connection.py", line 383, in _recv',
        "    raise EOFError",
        "EOFError",
    ]
    steps = [f"step {n} | loss {9 - n}.0" for n in range(1, 9)]
    for place, cause in (
        ("_get_write_results_queue", Cause.USER_ERROR),
        ("receive", Cause.CRASH),
    ):
        lines = [each.format(place) for each in raised]
        assert read(tmp_path, *steps, *lines).decision.cause is cause


def test_losses_that_jump_behind_a_new_start_are_of_random_weights(tmp_path: Path) -> None:
    def lines(start: str) -> list[str]:
        before = [f"{{'loss': 3.4{n}, 'epoch': 0.61}}" for n in range(6)]
        after = [f"{{'loss': {9 - n}.4, 'epoch': 0.01}}" for n in range(3)]
        return ["Saving model checkpoint to /out/checkpoint-12000", *before, start, *after]

    anew = read(tmp_path, *lines("Training new model from scratch - Total size=118.37M params"))
    assert anew.decision.cause is Cause.STARTED_FROM_RANDOM
    assert read(tmp_path, *lines("quux")).decision.cause is Cause.LOSS_SPIKE


def test_a_block_of_shared_memory_that_is_gone_is_tried_again(tmp_path: Path) -> None:
    gone = "FileNotFoundError: [Errno 2] No such file or directory: '/psm_c1d07a4e'"
    steps = [f"step {n} | loss {9 - n}.0" for n in range(1, 9)]
    decision = read(tmp_path, *steps, gone).decision
    assert (decision.cause, decision.action) == (Cause.DATA, Action.RESTART)


def test_an_actor_whose_node_was_preempted_was_preempted(tmp_path: Path) -> None:
    steps = [f"(RayTrainWorker pid=4127) step {n} loss={9 - n}.0" for n in range(1, 9)]
    failed = "ray.train.WorkerGroupError: Training failed due to worker errors:"
    taken = "the actor's node was preempted: GCE maintenance event TERMINATE_ON_HOST_MAINTENANCE"
    assert read(tmp_path, *steps, failed, taken).decision.cause is Cause.PREEMPTED


STEPS = [f"step {n} | loss {9 - n}.0" for n in range(1, 9)]


def test_a_pod_that_somebody_deleted_is_missing_in_its_job(tmp_path: Path) -> None:
    deleted = '$ kubectl -n ml delete pod gpt-worker-1\npod "gpt-worker-1" deleted'
    decision = read(tmp_path, *STEPS, *deleted.split("\n")).decision
    assert (decision.cause, decision.action) == (Cause.LOST_POD, Action.RESTART)
    assert decision.is_advice
    assert read(tmp_path, 'pod "gpu-test" deleted').decision.cause is Cause.UNKNOWN


def test_a_node_that_karpenter_takes_away_is_drained(tmp_path: Path) -> None:
    taken = 'controller.termination  Cordoned node  {"node": "ip-10-64-9-201"}'
    assert read(tmp_path, *STEPS, taken).decision.cause is Cause.DRAINED


def test_a_launcher_interrupted_after_the_end_of_its_run_has_finished(tmp_path: Path) -> None:
    interrupt = [
        "Traceback (most recent call last):",
        '  File "torch/distributed/run.py", line 637, in <module>',
        "KeyboardInterrupt",
    ]
    done = "300 epochs completed in 27.081 hours."
    decision = read(tmp_path, done, "^C", *interrupt).decision
    assert (decision.cause, decision.action) == (Cause.FINISHED, Action.NONE)
    assert read(tmp_path, "epoch 12", "^C", *interrupt).decision.cause is not Cause.FINISHED


def test_a_full_disk_behind_a_checkpoint_writer_stops_the_run(tmp_path: Path) -> None:
    failed = "RuntimeError: Worker failure: {}"
    raised = ["Traceback (most recent call last):", '  File "a.py", line 492, in retrieve']
    for reason, action in (
        ("[Errno 28] No space left on device", Action.STOP),
        ("[Errno 122] Disk quota exceeded", Action.STOP),
        ("[Errno 5] Input/output error", Action.RESTART),
    ):
        decision = read(tmp_path, *STEPS, *raised, failed.format(reason)).decision
        assert (decision.cause, decision.action) == (Cause.STORAGE, action), reason


def test_a_peer_that_npus_waited_for_is_named_before_the_error_that_follows(tmp_path: Path) -> None:
    waited = "EI0002: The wait execution of the Notify register times out."
    raised = [
        "Traceback (most recent call last):",
        '  File "train.py", line 291, in <module>',
        "RuntimeError: ACL stream synchronize failed, error code:107020",
    ]
    decision = read(tmp_path, *STEPS, waited, *raised).decision
    assert (decision.cause, decision.action) == (Cause.HANG, Action.RESTART)


def test_a_run_that_somebody_shows_to_be_slower_than_another_is_slow(tmp_path: Path) -> None:
    runs = ["# 1 node", *["step: 10  wps: 6,118"] * 3, "# 4 nodes", *["step: 10  wps: 1,587"] * 3]
    assert read(tmp_path, *runs).decision.cause is Cause.SLOW


def test_losses_that_rise_fast_to_the_last_line_are_a_spike(tmp_path: Path) -> None:
    losses = (4.0127, 4.0316, 5.4861, 7.119, 8.3047)
    lines = [f"Train loss/train/total: {loss}" for loss in losses]
    decision = read(tmp_path, *lines).decision
    assert (decision.cause, decision.action) == (Cause.LOSS_SPIKE, Action.STOP)
    assert read(tmp_path, *lines[:4]).decision.cause is Cause.UNKNOWN


def test_losses_that_are_higher_since_a_resume_have_not_jumped(tmp_path: Path) -> None:
    before = [f"{{'loss': {loss}, 'epoch': 0.44}}" for loss in (0.7712, 0.769, 0.7733, 0.7654)]
    after = [f"{{'loss': {loss}, 'epoch': 0.45}}" for loss in (3.41, 3.2, 3.09, 2.98, 2.93)]
    resumed = "  Continuing training from global step 9800"
    bar = " 45%|####      | 9801/21882 [06:31<00:08, 15.2it/s]"
    decision = read(tmp_path, *before, resumed, bar, *after).decision
    assert (decision.cause, decision.action) == (Cause.RESUME_DIVERGED, Action.STOP)
    assert read(tmp_path, *before, bar, *after).decision.cause is Cause.LOSS_SPIKE


def test_a_bar_that_is_drawn_once_more_is_no_progress(tmp_path: Path) -> None:
    bar = "Steps:   0%|          | {}/15070 [00:10<43:47:02, 10.46s/it, lr=1e-5, step_loss=0.133]"
    raised = [
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 604, in <module>',
        "    main()",
        "RuntimeError: Expected to have finished reduction in the prior iteration before",
    ]
    decision = read(tmp_path, bar.format(1), *raised, bar.format(1)).decision
    assert (decision.cause, decision.action) == (Cause.USER_ERROR, Action.STOP)
    assert read(tmp_path, bar.format(1), *raised, *map(bar.format, (2, 3, 4))).decision.cause is (
        Cause.UNKNOWN
    )


def test_steps_that_take_longer_with_every_line_are_worth_a_stop(tmp_path: Path) -> None:
    form = (
        " iteration {:8d}/    9000 | elapsed time per iteration (ms): {:.1f} | lm loss: 2.5E+00 |"
    )
    lines = [form.format(400 * n, 3000.0 * 1.4**n) for n in range(1, 9)]
    decision = read(tmp_path, *lines).decision
    assert (decision.cause, decision.action, decision.is_advice) == (Cause.SLOW, Action.STOP, True)


def test_lines_that_were_left_out_are_no_pause(tmp_path: Path) -> None:
    """Their steps alone say how much time went by."""
    form = " iteration {:8d}/    9000 | elapsed time per iteration (ms): 2000.0 | lm loss: {:.6f} |"
    lines = [form.format(n, 9.0 - n / 1000) for n in (10, 20, 30, 40, 500, 510, 2000, 2010)]
    assert read(tmp_path, *lines).incidents == ()


def test_exit_code_16_of_another_program_asks_for_no_rerun(tmp_path: Path) -> None:
    refused = (
        "[n7:31] pml_ucx.c:419  Error: ucp_ep_create(proc=8) failed: Destination is unreachable"
    )
    report = "srun: error: n7: tasks 0-7: Exited with exit code 16"
    assert read(tmp_path, refused, report).decision.cause is Cause.FABRIC
    told = "WARNING:megatron.core.rerun_state_machine:Saving a checkpoint and exiting now. Please "
    told += (
        "resume the job from the checkpoint to rerun the last iteration and establish a diagnostic"
    )
    assert read(tmp_path, told, report).decision.cause is Cause.RERUN


def test_a_disk_that_the_pod_itself_filled_is_full_again_elsewhere(tmp_path: Path) -> None:
    low = "Message: The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi."
    own = f"{low} Container main was using 60Gi, has larger consumption of ephemeral-storage."
    for line, action in ((low, Action.RESTART), (own, Action.STOP)):
        decision = read(tmp_path, "Status: Failed", "Reason: Evicted", line).decision
        assert (decision.cause, decision.action) == (Cause.STORAGE, action)


def test_an_xid_below_the_traceback_is_its_cause(tmp_path: Path) -> None:
    raised = [
        "[rank6]: Traceback (most recent call last):",
        '[rank6]:   File "/srv/train.py", line 188, in fit',
        "[rank6]: torch.AcceleratorError: CUDA error: unspecified launch failure",
    ]
    form = "Sep 09 18:30:02 n2 kernel: NVRM: Xid (PCI:0000:a6:00): {}, pid=611204, name=python3"
    assert read(tmp_path, *raised, form.format("145, RLW_REMAP")).decision.cause is Cause.HARDWARE
    assert read(tmp_path, *raised, form.format("31, MMU Fault")).decision.cause is Cause.CRASH


def test_a_container_that_was_killed_for_its_memory_was_so_before_its_log(tmp_path: Path) -> None:
    steps = [f"step {n} | loss {9 - n}.0" for n in range(1, 9)]
    state = ["    Last State:     Terminated", "      Reason:       OOMKilled"]
    decision = read(tmp_path, "$ kubectl describe pod w-2", *state, *steps).decision
    assert (decision.cause, decision.action) == (Cause.OOM, Action.STOP)
    other = read(tmp_path, *(line.replace("OOMKilled", "Completed") for line in state), *steps)
    assert other.decision.cause is Cause.UNKNOWN
