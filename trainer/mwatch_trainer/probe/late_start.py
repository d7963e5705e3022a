# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Waits, in a process that may turn out to be a rank, until it imports torch.

Most programs never do, and for those this costs a look at the name of each import and no
thread. The probe then watches whether the process trains before it writes anything.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _WaitForTorch:
    """A finder that finds nothing."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name != "torch":
            return
        try:
            sys.meta_path.remove(self)
            from mwatch_trainer.probe import probe

            probe.start(self._folder, is_sure=False)
        except Exception:
            pass  # a guest: torch is imported as ever


def wait_for_torch(folder: str) -> None:
    sys.meta_path.insert(0, _WaitForTorch(folder))
