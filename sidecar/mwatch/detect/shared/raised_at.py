# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the place in the code where an exception was raised says of its cause."""

from __future__ import annotations

import re

from mwatch.model.cause import Cause

_READS_DATA = re.compile(
    r"indexed_dataset|gpt_dataset|manifest\.py|blended_|/streaming/base/|webdataset|/datasets?/"
    r"|[Dd]ataset\.py|data_?loader\.py|sample_idx|shuffle_idx|doc_idx"
)
_STARTS_PROCESS = re.compile(
    r"\bin (?:_get_write_results_queue|Manager|_?start_(?:server|manager))$"
)
"""The process imports the user's script: without a main guard it ends at once."""
_RERUN_STATE = re.compile(r"rerun_state_machine\.py:\d+ in _restore_state$")
"""Fails on a checkpoint that Megatron wrote only to show a wrong result."""


def reads_data(text: str) -> bool:
    """A place or message of code that raises programming errors about the files it reads."""
    return _READS_DATA.search(text) is not None


def cause_of_place(name: str | None, where: str | None) -> Cause | None:
    """`name`: that of the exception; None: the place alone says nothing."""
    place = where or ""
    if _RERUN_STATE.search(place):
        return Cause.CHECKPOINT
    is_cut_off = str(name).endswith("EOFError")
    return Cause.USER_ERROR if is_cut_off and _STARTS_PROCESS.search(place) else None
