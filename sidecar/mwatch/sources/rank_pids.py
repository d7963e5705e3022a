# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which process is which rank, as the probe inside each rank has written.

The environment alone does not tell: a PyTorchJob gives the launcher a `RANK` too, and children
inherit theirs. A record outlives its process, so a pid counts only with its start.
"""

from __future__ import annotations

import os

from mwatch_trainer.contract import PROBE_FOLDER, PROBE_PREFIX
from mwatch_trainer.probe_record import SIZE, unpack

MAX_RANKS = 4096


def read_rank_pids(volume: str) -> dict[tuple[int, int], int]:
    """Pid and start → rank; empty where there is no probe. A torn record is left out."""
    folder = os.path.join(volume, PROBE_FOLDER)
    try:
        names = sorted(os.listdir(folder))[:MAX_RANKS]
    except OSError:
        return {}
    found = {}
    for name in names:
        if not name.startswith(PROBE_PREFIX):
            continue
        try:
            with open(os.path.join(folder, name), "rb") as file:
                record = unpack(file.read(SIZE))
        except OSError:
            continue
        if record is not None:
            found[record.pid, record.started] = record.rank
    return found
