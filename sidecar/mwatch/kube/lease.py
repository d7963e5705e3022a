# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Leader election by a Lease: only its holder may act.

The holder counts from the moment before it requested a renewal and stops a margin early; others
count from the moment after they saw the Lease change and wait its whole length. Both use their own
monotonic clock, so wall clocks may differ. The Lease cannot detect a process that was frozen in the
middle of a call, which is why deletes carry UIDs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from mwatch.kube.access import ONCE, Access, Answer
from mwatch.kube.errors import KubeError
from mwatch.kube.resources import LEASES
from mwatch.model.kube.fields import number, text

NAME = "mwatch-controller"


class LeaseTimes(NamedTuple):
    length_seconds: int = 30
    margin_seconds: float = 10.0
    """The holder stops acting this long before the Lease ends: longer than one call may take."""
    renew_seconds: float = 5.0


_USUAL = LeaseTimes()


class Lease:
    def __init__(
        self,
        access: Access,
        namespace: str,
        identity: str,
        *,
        times: LeaseTimes = _USUAL,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._access = access
        self._namespace = namespace
        self._identity = identity
        self.times = times
        self._clock = clock
        self._wall = wall
        self._held_from: float | None = None
        self.seen: str | None = None
        """Version of another holder's Lease: while it changes, that holder is alive."""
        self._seen_at = 0.0
        self._seen_length = float(times.length_seconds)
        self.holder: str | None = None
        self.problem = ""

    def may_act(self) -> bool:
        if self._held_from is None:
            return False
        end = self._held_from + self.times.length_seconds - self.times.margin_seconds
        return self._clock() < end

    def turn(self) -> bool:
        """Take the Lease, renew it, or read its holder; call it every `renew_seconds`."""
        began = self._clock()
        try:
            self._turn(began)
            self.problem = ""
        except KubeError as error:
            self.problem = str(error)
        return self.may_act()

    def give_back(self) -> None:
        """Release the Lease, so that another process need not wait."""
        if self._held_from is None:
            return
        self._held_from = None
        try:
            answer = self._access.get(LEASES, self._namespace, NAME, limits=ONCE)
            if answer.is_ok and text(answer.body, "spec", "holderIdentity") == self._identity:
                self._write(answer, holder="")
        except KubeError as error:
            self.problem = str(error)

    def _turn(self, began: float) -> None:
        answer = self._access.get(LEASES, self._namespace, NAME, limits=ONCE)
        if not answer.is_ok:
            self._held(began, self._create())
            return
        self.holder = text(answer.body, "spec", "holderIdentity")
        if self.holder == self._identity:
            # Also after a restart with the same identity: no other process can hold it.
            self._held(began, self._write(answer, holder=self._identity))
            return
        self._held_from = None
        version = text(answer.body, "metadata", "resourceVersion")
        if version != self.seen:
            self.seen, self._seen_at = version, self._clock()
            length = number(answer.body, "spec", "leaseDurationSeconds")
            self._seen_length = float(length or self.times.length_seconds)
        if not self.holder or self._clock() - self._seen_at > self._seen_length:
            self._held(began, self._write(answer, holder=self._identity))

    def _held(self, began: float, is_ours: bool) -> None:
        self._held_from = began if is_ours else None
        if is_ours:
            self.holder = self._identity

    def _create(self) -> bool:
        body = {
            "metadata": {"name": NAME, "namespace": self._namespace},
            "spec": self._spec(self._identity, {}),
        }
        return self._access.create(LEASES, self._namespace, body).is_ok

    def _write(self, seen: Answer, *, holder: str) -> bool:
        body = {**seen.body, "spec": self._spec(holder, seen.body.get("spec") or {})}
        answer = self._access.replace(LEASES, self._namespace, NAME, body, limits=ONCE)
        return answer.is_ok

    def _spec(self, holder: str, before: Any) -> dict[str, Any]:
        now = datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        changes = number(before, "leaseTransitions") or 0
        is_new = text(before, "holderIdentity") != holder
        return {
            **dict(before),
            "holderIdentity": holder,
            "leaseDurationSeconds": self.times.length_seconds,
            "renewTime": now,
            "acquireTime": now if is_new else before.get("acquireTime", now),
            "leaseTransitions": changes + (1 if is_new and before else 0),
        }


class LeaseLoop:
    """Renews a Lease in its own thread until `close`, which releases it."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mwatch-lease", daemon=True)
        self.turns = 0

    @property
    def is_leader(self) -> bool:
        return self.lease.may_act()

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float = 3.0) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.close(10.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.lease.turn()
            self.turns += 1
            self._stop.wait(self.lease.times.renew_seconds)
        self.lease.give_back()
