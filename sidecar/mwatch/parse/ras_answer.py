# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""An answer of NCCL's RAS in whichever form it came."""

from __future__ import annotations

from mwatch.model.nccl import RasAnswer
from mwatch.parse.ras_json import read_json
from mwatch.parse.ras_text import read_text


def read_answer(text: str) -> RasAnswer:
    """ValueError where it is none, or only a part of one."""
    return read_json(text) if text[:64].lstrip().startswith("{") else read_text(text)
