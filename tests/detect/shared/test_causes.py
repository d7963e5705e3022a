# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Causes of exit codes, Kubernetes reasons and exceptions that the catalogue does not know."""

from __future__ import annotations

import pytest

from mwatch.detect.shared.causes import (
    cause_of_error,
    cause_of_exit,
    cause_of_load_error,
    cause_of_reason,
    is_cascade,
    plain,
)
from mwatch.model.cause import Cause
from mwatch_trainer.exits.signal_table import signal_of


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (-9, Cause.KILLED),
        (137, Cause.KILLED),
        (143, Cause.KILLED),
        (130, Cause.DELETED_BY_USER),
        (-11, Cause.CRASH),
        (134, Cause.CRASH),
        (-7, Cause.CRASH),
        (16, Cause.CRASH),  # Megatron's own meaning needs its lines, or its wrapper
        (2, Cause.USER_ERROR),
        (127, Cause.USER_ERROR),
        (1, Cause.CRASH),
        (200, Cause.CRASH),
        (None, Cause.CRASH),
    ],
)
def test_exit_codes(code: int | None, cause: Cause) -> None:
    assert cause_of_exit(code) is cause


def test_a_shell_and_torchelastic_write_the_same_signal() -> None:
    assert signal_of(-9) == signal_of(137) == 9
    assert signal_of(1) is None
    assert signal_of(217) is None
    assert plain(None) is None
    assert plain(0) is None
    assert plain(None, "SIGKILL") == -9
    assert plain(216, "SIGTERM") == 16


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("OOMKilled", Cause.OOM),
        ("Evicted", Cause.LOST_POD),
        ("NodeLost", Cause.LOST_POD),
        ("Preempted", Cause.PREEMPTED),
        ("PreemptionByScheduler", Cause.PREEMPTED),
        ("deleted", Cause.DELETED_BY_USER),
        ("Suspended", Cause.SUSPENDED),
        ("node drained", Cause.DRAINED),
        ("NodeShutdown", Cause.DRAINED),
        ("ErrImagePull", Cause.IMAGE),
        ("UnexpectedAdmissionError", Cause.UNSCHEDULABLE),
        ("FailedMount", Cause.VOLUME),
        ("DeadlineExceeded", Cause.FINISHED_EARLY),
        ("Error", None),
        ("Completed", None),
        ("", None),
        (None, None),
    ],
)
def test_words_of_kubernetes(reason: str | None, cause: Cause | None) -> None:
    assert cause_of_reason(reason) is cause


def test_programming_errors_come_back_with_the_same_samples() -> None:
    for name in ("TypeError", "KeyError", "NameError", "torch.cuda.AssertionError"):
        assert cause_of_error(name) is Cause.USER_ERROR
    assert cause_of_error("RuntimeError") is Cause.CRASH
    assert cause_of_error(None) is Cause.CRASH


def test_a_file_that_cannot_be_written_is_the_storage() -> None:
    assert cause_of_error("NotADirectoryError", "[Errno 20]", "save") is Cause.STORAGE
    assert cause_of_error("NotADirectoryError", "[Errno 20]") is Cause.CRASH
    race = "[Errno 17] File exists: '/ckpt/step_9'"
    assert cause_of_error("FileExistsError", race, "save", has_worked=False) is Cause.STORAGE
    refused = cause_of_error("FileExistsError", "/ckpt/step_0", "save", has_worked=False)
    assert refused is Cause.USER_ERROR  # the program does not overwrite it


def test_exceptions_that_name_their_cause() -> None:
    assert cause_of_error("KeyboardInterrupt") is Cause.DELETED_BY_USER
    assert cause_of_error("MemoryError") is Cause.OOM
    signal = "torch.distributed.elastic.multiprocessing.api.SignalException"
    assert cause_of_error(signal) is Cause.KILLED
    worker = "DataLoader worker (pid 2964) is killed by signal: Terminated. "
    assert cause_of_error("RuntimeError", worker) is Cause.KILLED


def test_what_a_damaged_checkpoint_raises_is_not_the_users_fault() -> None:
    assert cause_of_load_error("KeyError", "'optimizer'") is Cause.CHECKPOINT
    assert cause_of_load_error("json.decoder.JSONDecodeError", "Expecting") is Cause.CHECKPOINT
    assert cause_of_load_error("NameError", "name 'x'") is Cause.USER_ERROR
    assert cause_of_load_error("OSError", "[Errno 22] Invalid argument") is Cause.CHECKPOINT
    assert cause_of_load_error("TypeError", "'NoneType' object") is Cause.CHECKPOINT
    lost = "Missing key in checkpoint state_dict: args."
    assert cause_of_load_error("RuntimeError", lost) is Cause.CHECKPOINT
    other = "Missing key in checkpoint state_dict: embedding.weight."
    assert cause_of_load_error("RuntimeError", other) is Cause.USER_ERROR
    reported = "class input value 960 and checkpointvalue 720 do not match"
    assert cause_of_load_error("AssertionError", reported) is Cause.USER_ERROR


def test_errors_of_a_peer_that_went_away() -> None:
    assert is_cascade("torch.distributed.DistBackendError")
    assert not is_cascade("RuntimeError")
    assert not is_cascade(None)
    assert is_cascade("UserError", "AzureMLCompute job failed.")
    assert not is_cascade("RuntimeError", "job failed: no such file")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("json.decoder.JSONDecodeError", "Expecting value: line 1 column 1 (char 0)"),
        ("StopIteration", ""),
        ("RecursionError", "maximum recursion depth exceeded"),
        ("omegaconf.errors.ConfigAttributeError", "Key 'lr' is not in struct"),
        ("RuntimeError", "Worker failure: TypeError: _write_item() missing an argument"),
        ("CheckpointingException", "write() got an unexpected keyword argument 'storage'"),
    ],
)
def test_an_error_of_the_program_is_never_worth_a_restart(name: str, message: str) -> None:
    assert cause_of_error(name, message) is Cause.USER_ERROR
    assert cause_of_error(name, message, "save") is Cause.USER_ERROR


def test_what_never_worked_fails_again_unless_the_reason_lies_outside() -> None:
    def first_try(name: str, message: str) -> Cause:
        return cause_of_error(name, message, has_worked=False)

    assert (
        first_try("RuntimeError", "expected scalar type Half but found Float") is Cause.USER_ERROR
    )
    assert cause_of_error("RuntimeError", "expected scalar type Half") is Cause.CRASH
    assert first_try("RuntimeError", "connection to the store timed out") is Cause.FABRIC
    assert first_try("RuntimeError", "CUDA 13 requires a newer driver") is Cause.USER_ERROR
    assert first_try("requests.exceptions.ReadTimeout", "") is Cause.CRASH
    assert first_try("OSError", "[Errno 121] No such device") is Cause.CRASH


@pytest.mark.parametrize(
    ("name", "message", "cause"),
    [
        ("OSError", "[Errno 121] Remote I/O error", Cause.STORAGE),
        ("OSError", "4096 requested and 0 written", Cause.STORAGE),
        ("tarfile.ReadError", "unexpected end of data", Cause.DATA),
        ("pyarrow.lib.ArrowInvalid", "Parquet magic bytes not found in footer", Cause.DATA),
        ("requests.exceptions.ConnectionError", "('Connection aborted.', x)", Cause.FABRIC),
        ("OSError", "[Errno 113] No route to host", Cause.FABRIC),
        ("RuntimeError", "memory allocation of 4194304 bytes failed", Cause.OOM),
        ("OSError", "[Errno 14] Bad address", Cause.STORAGE),
        ("FloatingPointError", "Minimum loss scale reached (0.0001).", Cause.LOSS_SCALE_COLLAPSE),
        ("ValueError", "the loss scale fell below 1e-4", Cause.LOSS_SCALE_COLLAPSE),
        ("PreemptionError", "Nodes of this job got pre-empted.", Cause.PREEMPTED),
        ("NotFoundError", "There were no checkpoints in /exp. Cannot resume.", Cause.CHECKPOINT),
    ],
)
def test_an_exception_that_the_catalogue_does_not_list_belongs_to_a_family(
    name: str, message: str, cause: Cause
) -> None:
    assert cause_of_error(name, message) is cause


def test_a_check_that_refuses_the_first_save_refuses_every_one() -> None:
    name, message = "core.CheckpointingException", "Invalid access pattern for ShardedTensor(a)"
    assert cause_of_error(name, message, "save", has_worked=False) is Cause.USER_ERROR
    assert cause_of_error(name, message, "save") is Cause.CRASH


def test_a_tool_that_fails_is_no_trainer_that_fails() -> None:
    name, failed = "subprocess.CalledProcessError", "returned non-zero exit status 1."
    tool = f"Command '['/usr/bin/ninja', '-v']' {failed}"
    trainer = f"Command '['/usr/bin/python3', '-u', 'pretrain.py']' {failed}"
    assert cause_of_error(name, tool, has_worked=False) is Cause.USER_ERROR
    assert cause_of_error(name, trainer, has_worked=False) is Cause.CRASH
