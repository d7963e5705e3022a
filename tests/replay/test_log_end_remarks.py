# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Excerpts whose last lines show what an error alone does not: remarks, numbers, other ranks."""

from __future__ import annotations

from pathlib import Path

from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from support.runs.recorded import read


def test_a_missing_file_of_weights_is_a_matter_of_the_checkpoint(tmp_path: Path) -> None:
    missing = "FileNotFoundError: [Errno 2] No such file or directory: 'base/{}'"
    for name, cause in (("lit_model.pth", Cause.CHECKPOINT), ("train.jsonl", Cause.DATA)):
        assert read(tmp_path, missing.format(name)).decision.cause is cause


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


def test_deepspeed_reports_that_its_processes_ended_well(tmp_path: Path) -> None:
    steps = [f"Epoch: 0 | Step: {n} | Actor Loss: 0.0{n}" for n in range(1, 9)]
    end = "[2026-07-05 09:40:31,877] [INFO] [launch.py:460:main] Process 7121 exits successfully."
    assert read(tmp_path, *steps, end).verdict.cause is Cause.FINISHED
    assert read(tmp_path, *steps).verdict.cause is not Cause.FINISHED


def test_the_hub_of_the_data_is_tried_again_only_by_a_run_that_has_read_from_it(
    tmp_path: Path,
) -> None:
    silent = "'(ReadTimeoutError)' thrown while requesting GET https://h.org/datasets/c4/x.json.gz"
    steps = [f"step: {n}  loss: {9 - n}.0  grad_norm: 0.2" for n in range(1, 9)]
    for before, action in (((), Action.STOP), (steps, Action.RESTART)):
        decision = read(tmp_path, *before, silent).decision
        assert (decision.cause, decision.action) == (Cause.DATA, action)


def test_the_signal_to_an_agent_explains_the_rendezvous_that_it_closed(tmp_path: Path) -> None:
    signal = "W0410 15:02:33.771 2210 api.py:719] Received 15 death signal, shutting down workers"
    closed = "torch.distributed.elastic.rendezvous.api.RendezvousClosedError"
    assert read(tmp_path, signal, closed).decision.cause is Cause.KILLED
    assert read(tmp_path, closed).decision.cause is Cause.FABRIC


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
