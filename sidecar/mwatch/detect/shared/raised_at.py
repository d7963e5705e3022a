# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Classify the cause of an exception by the place in the code that raised it."""

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
"""Functions that start a process which imports the user's script: without a main guard it ends at
once."""
_RERUN_STATE = re.compile(r"rerun_state_machine\.py:\d+ in _restore_state$")
"""Code that fails on a checkpoint that Megatron wrote only to show a wrong result."""


def reads_data(text: str) -> bool:
    """Whether it is a place or message of code that raises programming errors about its files."""
    return _READS_DATA.search(text) is not None


def cause_of_place(name: str | None, where: str | None) -> Cause | None:
    """Classify the exception `name` raised at `where`; None if the place is not specific."""
    place = where or ""
    if _RERUN_STATE.search(place):
        return Cause.CHECKPOINT
    is_cut_off = str(name).endswith("EOFError")
    return Cause.USER_ERROR if is_cut_off and _STARTS_PROCESS.search(place) else None
