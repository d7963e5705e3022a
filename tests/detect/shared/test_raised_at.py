# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Places in the code that say more than the exception that was raised there."""

from __future__ import annotations

import pytest

from mwatch.detect.shared.raised_at import cause_of_place, reads_data
from mwatch.model.cause import Cause

_QUEUE = "/opt/megatron/filesystem_async.py:34 in _get_write_results_queue"
_RESTORE = "/opt/megatron/core/rerun_state_machine.py:1007 in _restore_state"


@pytest.mark.parametrize(
    ("name", "where", "cause"),
    [
        ("TypeError", _RESTORE, Cause.CHECKPOINT),
        ("TypeError", "/opt/megatron/core/rerun_state_machine.py:90 in __init__", None),
        ("EOFError", _QUEUE, Cause.USER_ERROR),
        ("OSError", _QUEUE, None),
        ("EOFError", "/w/train.py:9 in read", None),
        (None, None, None),
    ],
)
def test_a_place_may_name_the_cause(
    name: str | None, where: str | None, cause: Cause | None
) -> None:
    assert cause_of_place(name, where) is cause


def test_code_of_data_sets_is_known_by_its_place() -> None:
    assert reads_data("/opt/megatron/core/datasets/indexed_dataset.py:310 in get")
    assert not reads_data("/opt/megatron/core/optimizer.py:310 in step")
