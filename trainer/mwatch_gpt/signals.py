# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""SIGTERM as a request: the flag of any rank counts for all (`--exit-signal-handler`)."""

from __future__ import annotations

import signal
from typing import Any

import torch


class SignalFlag:
    def __init__(self) -> None:
        self._received = False

    def listen(self) -> None:
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self._received = True

    def is_raised_anywhere(self) -> bool:
        """Every rank must ask, so that all leave after the same iteration."""
        flag = torch.tensor([int(self._received)], device=torch.cuda.current_device())
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
        return bool(flag.item())
