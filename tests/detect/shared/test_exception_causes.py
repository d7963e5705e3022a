# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Exceptions that the catalogue does not list are judged by their names and messages."""

from __future__ import annotations

import time

import pytest

from mwatch.detect.shared.exception_causes import cause_of_exception
from mwatch.model.cause import Cause


def test_errors_of_cuda_are_judged_by_what_they_name() -> None:
    assert cause_of_exception("RuntimeError: CUDA error: uncorrectable NVLink error") is (
        Cause.HARDWARE
    )
    assert cause_of_exception("RuntimeError: CUBLAS_STATUS_ALLOC_FAILED when calling") is Cause.OOM
    assert cause_of_exception("RuntimeError: CUBLAS_STATUS_ARCH_MISMATCH") is Cause.USER_ERROR
    assert cause_of_exception("RuntimeError: CUBLAS_STATUS_INTERNAL_ERROR") is None


@pytest.mark.parametrize("piece", ["error ", "a", "nan ", "timed out ", "in a row ", "shard "])
def test_a_long_message_takes_no_time(piece: str) -> None:
    begun = time.process_time()
    for _ in range(10):
        cause_of_exception(piece * 1_000)
    assert time.process_time() - begun < 5.0


def test_words_of_nan_are_known() -> None:
    raised = "RuntimeError: NaN occurred during training, total_loss = tensor(nan)"
    assert cause_of_exception(raised) is Cause.NAN
    assert cause_of_exception("ValueError: the dtype is banana") is None
