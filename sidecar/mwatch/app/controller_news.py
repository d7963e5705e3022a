# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the controller says in its log: jobs that come and go, what is wrong with them, who leads.

Each thing once; a copy of the cluster that cannot be read is told when that begins and ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mwatch.app.controller_json import verdict_of
from mwatch.app.job_watch import JobWatch
from mwatch.model.finding import Cause

_CALM = frozenset({Cause.HEALTHY, Cause.FINISHED, Cause.UNKNOWN})


class ControllerNews:
    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._known: dict[str, tuple[str, Cause | None, int]] = {}
        self._is_leader: bool | None = None
        self._problem = ""

    def looked(self, jobs: Iterable[JobWatch], *, is_leader: bool, problem: str) -> None:
        if is_leader is not self._is_leader:
            self._is_leader = is_leader
            self._say("leads" if is_leader else "does not lead: it looks on")
        if problem != self._problem:
            self._say(f"cannot see the cluster: {problem}" if problem else "sees the cluster again")
            self._problem = problem
        there = {}
        for each in jobs:
            uid, said = each.kube.uid, verdict_of(each)
            cause = None if said is None else said.cause
            there[uid] = each.kube.key, cause, each.attempt
            before = self._known.get(uid)
            if before is None:
                self._say(
                    f"watches {each.kube.key} ({each.kube.mode}, {each.kube.pods_wanted} pods)"
                )
            if said is not None and (before is None or before[1] is not cause):
                self._changed(each.kube.key, before and before[1], cause, said.summary)
            if before is not None and before[2] != each.attempt:
                self._say(f"{each.kube.key}: attempt {each.attempt}")
        for uid, (key, _, _) in self._known.items():
            if uid not in there:
                self._say(f"{key} is no longer there, or no longer watched")
        self._known = there

    def _changed(self, key: str, before: Cause | None, cause: Cause | None, text: str) -> None:
        if cause in _CALM and (before is None or before in _CALM) and cause is not Cause.FINISHED:
            return
        self._say(f"{key}: {cause}: {text}")
