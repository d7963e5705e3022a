# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the controller's Lease, in a thread of its own: who does not hold it looks on."""

from __future__ import annotations

import threading

from mwatch.kube.lease import Lease

_END_SECONDS = 3.0


class LeaseLoop:
    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="mwatch-lease", daemon=True)
        self.turns = 0

    @property
    def is_leader(self) -> bool:
        return self.lease.may_act()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Gives it back, so that another need not wait."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)

    def _follow(self) -> None:
        while not self._stop.is_set():
            self.lease.turn()
            self.turns += 1
            self._stop.wait(self.lease.times.renew_seconds)
        self.lease.give_back()
