# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One leader by a Lease: who does not hold it does not act.

The holder counts from the moment before it asked for a renewal, and stops a margin early; others
count from the moment after they saw the lease change, and wait the whole length. Both use their
own monotonic clock, so it does not matter what the clocks on the walls say. Between the two no
one may act. It cannot know that this process was frozen in the middle of a call: deletes
carry UIDs for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from mwatch.kube.access import ONCE, Access
from mwatch.kube.answer import Answer
from mwatch.kube.errors import KubeError
from mwatch.kube.resources import LEASES
from mwatch.model.kube.fields import number, text

NAME = "mwatch-controller"


class LeaseTimes(NamedTuple):
    length_seconds: int = 30
    margin_seconds: float = 10.0
    """So long before its end the holder stops to act: longer than one call may take."""
    renew_seconds: float = 5.0


_USUAL = LeaseTimes()


class Lease:
    def __init__(
        self,
        access: Access,
        namespace: str,
        identity: str,
        *,
        name: str = NAME,
        times: LeaseTimes = _USUAL,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`identity`: of this process alone."""
        self._access = access
        self._namespace = namespace
        self._identity = identity
        self._name = name
        self.times = times
        self._clock = clock
        self._wall = wall
        self._held_from: float | None = None
        self._seen: str | None = None
        self._seen_at = 0.0
        self._seen_length = float(times.length_seconds)
        self.holder: str | None = None
        """As it was last seen."""
        self.problem = ""

    @property
    def seen(self) -> str | None:
        """The version of another one's lease: as long as it changes, that one lives."""
        return self._seen

    def may_act(self) -> bool:
        """Now, and for no longer than the next call."""
        if self._held_from is None:
            return False
        end = self._held_from + self.times.length_seconds - self.times.margin_seconds
        return self._clock() < end

    def turn(self) -> bool:
        """Take it, renew it, or see who has it; to be called every `renew_seconds`."""
        began = self._clock()
        try:
            self._turn(began)
            self.problem = ""
        except KubeError as error:
            self.problem = str(error)
        return self.may_act()

    def give_back(self) -> None:
        """So that another need not wait."""
        if self._held_from is None:
            return
        self._held_from = None
        try:
            answer = self._access.get(LEASES, self._namespace, self._name, limits=ONCE)
            if answer.is_ok and text(answer.body, "spec", "holderIdentity") == self._identity:
                self._write(answer, holder="")
        except KubeError as error:
            self.problem = str(error)

    def _turn(self, began: float) -> None:
        answer = self._access.get(LEASES, self._namespace, self._name, limits=ONCE)
        if not answer.is_ok:
            self._held(began, self._make())
            return
        self.holder = text(answer.body, "spec", "holderIdentity")
        if self.holder == self._identity:
            # Also after a restart with the same name: nobody else can have it then.
            self._held(began, self._write(answer, holder=self._identity))
            return
        self._held_from = None
        version = text(answer.body, "metadata", "resourceVersion")
        if version != self._seen:
            self._seen, self._seen_at = version, self._clock()
            length = number(answer.body, "spec", "leaseDurationSeconds")
            self._seen_length = float(length or self.times.length_seconds)
        if not self.holder or self._clock() - self._seen_at > self._seen_length:
            self._held(began, self._write(answer, holder=self._identity))

    def _held(self, began: float, is_ours: bool) -> None:
        self._held_from = began if is_ours else None
        if is_ours:
            self.holder = self._identity

    def _make(self) -> bool:
        body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": self._spec(self._identity, {}),
        }
        return self._access.create(LEASES, self._namespace, body).is_ok

    def _write(self, seen: Answer, *, holder: str) -> bool:
        """Only over the version that was seen."""
        body = {**seen.body, "spec": self._spec(holder, seen.body.get("spec") or {})}
        answer = self._access.replace(LEASES, self._namespace, self._name, body, limits=ONCE)
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
