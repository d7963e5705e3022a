# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the controller's loop asks of remediation, and a remediation that does nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mwatch.fleet.job_monitor import JobMonitor
from mwatch.model.kube.ledger import JobEntry
from mwatch.remediate.status import RemediationStatus


class Remediation(Protocol):
    def look(self, jobs: Sequence[JobMonitor], now: float) -> None:
        """Once a second, by the loop that owns the engines; never waits."""

    def answer(
        self, namespace: str, job: str, token: str, pod: str = "", after: int = 0, word: str = ""
    ) -> Mapping[str, Any] | None:
        """From any thread; None: no such job is known, or the token is wrong. `pod`: the one that
        asks; `after`: its last attempt; `word`: by which its node names itself."""

    def state(self, key: str) -> RemediationStatus: ...

    def recall(self, key: str, uid: str) -> JobEntry:
        """What the ledger holds of it. KubeError where it cannot be read: to be repeated."""

    @property
    def ledger_errors(self) -> int:
        """Reads and writes of the ledger that failed."""

    def close(self) -> None: ...


class NoRemediation:
    """Only observes."""

    def look(self, jobs: Sequence[JobMonitor], now: float) -> None: ...

    def answer(
        self, namespace: str, job: str, token: str, pod: str = "", after: int = 0, word: str = ""
    ) -> Mapping[str, Any] | None:
        return None

    def state(self, key: str) -> RemediationStatus:
        return RemediationStatus()

    def recall(self, key: str, uid: str) -> JobEntry:
        return JobEntry()

    @property
    def ledger_errors(self) -> int:
        return 0

    def close(self) -> None: ...
