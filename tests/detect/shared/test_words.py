# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lines that no rule knows are judged by their words; notices are not judged at all."""

from __future__ import annotations

import time

import pytest

from mwatch.detect.shared.words import cause_of_exception, listed_again, worst_complaint
from mwatch.model.cause import Cause


def judged(*lines: str) -> Cause | None:
    found = worst_complaint(enumerate(lines, 1))
    return found.cause if found else None


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("frobnicate: error: unknown option '--fp9'", Cause.USER_ERROR),
        ("ERROR   libquux.so.3: cannot open shared object file", Cause.USER_ERROR),
        ("[E] link monitor: mlx5_3 port 1 went down", Cause.FABRIC),
        ("FATAL peer 10.0.0.4 unreachable", Cause.FABRIC),
        ("agent: GPU 3 is lost, fencing the host", Cause.HARDWARE),
        ("lustre-client: error -5 on read of OST0003", Cause.STORAGE),
        ("allocator: failed to allocate 3221225472 bytes", Cause.OOM),
        ("scheduler: pod rejected: insufficient example.com/gpu", Cause.UNSCHEDULABLE),
        ("  Warning  FailedMount  3m  kubelet  volume data: exit status 32", Cause.VOLUME),
        ("cloud-agent: spot machine is being reclaimed", Cause.PREEMPTED),
        ("error: no answer from stage 3 for 900 s: stuck in send", Cause.HANG),
        ("[rank3] STALL: no progress since step 537 for 60 s", Cause.HANG),
        ('Error from server: unknown field "spec.template.imagePullPolicy"', Cause.USER_ERROR),
        ("panic: index out of step", Cause.CRASH),
    ],
)
def test_a_complaint_has_the_cause_of_its_words(line: str, cause: Cause) -> None:
    assert judged("a line before", line) is cause


@pytest.mark.parametrize(
    "line",
    [
        "INFO loader: connection refused by cache, using the disk",
        "[W socket.cpp:697] the client socket cannot be initialized",
        "UserWarning: this may cause a deadlock",
        "wandb: ERROR Failed to sample metric: Not Supported",
        "huggingface/tokenizers: Disabling parallelism to avoid deadlocks...",
        '  File "/w/fault.py", line 3, in raise_error',
        "990             data = self._data_queue.get(timeout=timeout)",
        "retrying the download: timed out",
        "errors: 0",
        "step 30 done",
        "No resources found in default namespace.",
    ],
)
def test_a_notice_is_no_complaint(line: str) -> None:
    assert judged(line) is None


def test_the_strongest_family_leads_and_then_the_first_line() -> None:
    lost, broken = "error: connection reset by peer", "error: uncorrectable memory fault on GPU 1"
    assert judged(lost, broken) is Cause.HARDWARE
    assert judged("fatal: aborted", lost, "error: collective timed out") is Cause.FABRIC


def test_a_pod_that_came_up_after_all_waits_no_longer() -> None:
    waits = "  Warning  FailedScheduling  4m  default-scheduler  0/2 nodes are available"
    assert judged(waits) is Cause.UNSCHEDULABLE
    assert judged(waits, "  Normal  Started  1m  kubelet  Started container trainer") is None


def test_errors_of_cuda_are_judged_by_what_they_name() -> None:
    assert cause_of_exception("RuntimeError: CUDA error: uncorrectable NVLink error") is (
        Cause.HARDWARE
    )
    assert cause_of_exception("RuntimeError: CUBLAS_STATUS_ALLOC_FAILED when calling") is Cause.OOM
    assert cause_of_exception("RuntimeError: CUBLAS_STATUS_ARCH_MISMATCH") is Cause.USER_ERROR
    assert cause_of_exception("RuntimeError: CUBLAS_STATUS_INTERNAL_ERROR") is None


@pytest.mark.parametrize("piece", ["error ", "a", "no ", "waiting for x ", "(1) ", "node ", "9 "])
def test_a_long_line_takes_no_time(piece: str) -> None:
    begun = time.process_time()
    judged(*[piece * 10_000] * 200)
    assert time.process_time() - begun < 5.0


def test_the_code_that_a_traceback_quotes_is_no_complaint() -> None:
    frame = '  File "/opt/ray/worker.py", line 2967, in get'
    code = "    values = worker.get_objects(refs, timeout=timeout)"
    assert judged(code) is Cause.HANG
    assert judged(frame, code) is None


def test_words_of_nan_and_of_options_are_known() -> None:
    raised = "RuntimeError: NaN occurred during training, total_loss = tensor(nan)"
    assert cause_of_exception(raised) is Cause.NAN
    assert cause_of_exception("ValueError: the dtype is banana") is None
    assert judged("srun: unrecognized option '--container-image'") is Cause.USER_ERROR


def test_a_row_that_is_listed_again_is_of_the_past() -> None:
    rows = ["gpt-launcher   0/1     CrashLoopBackOff   1 (12s ago)   19s"]
    rows += ["gpt-worker-0   1/1     Running   0   20s", "gpt-launcher   1/1     Running   2   38s"]
    assert listed_again(enumerate(rows, 1)) == {1}
