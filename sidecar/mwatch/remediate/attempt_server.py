# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Answers a wrapper that requests its next attempt: start this one, wait, or use your own rule.

An open order goes to every pod that has not begun that attempt or a later one. Otherwise a wrapper
that starts for the second time waits while its job is being evaluated or restarted, and uses its
own rule if mwatch will not act. A first start uses the wrapper's own rule too: the wrapper of node
0 reads the checkpoints and agrees with the others. Only the leader answers, so all wrappers get the
same answer.
"""

from __future__ import annotations

import hmac
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mwatch.model.kube.next_start import NextStart
from mwatch.model.kube.restart_state import WrapperAnswer

PATIENCE_SECONDS = 45.0
"""How long the second start of a wrapper waits for its job to be evaluated and decided on."""
PENDING_SECONDS = 300.0
"""How long a wrapper waits for a decision that is held back: later it may never be carried out, and
without mwatch the trainer would already be running."""
WAITING_SECONDS = 20.0
"""A wrapper that asked this recently is waiting: it asks every few seconds."""
_PER_SECOND = 200
"""Requests of all wrappers that the controller can serve."""
_MAX_PAUSE = 10.0
_MAX_PODS = 10_000
_NODE_0 = "0 "


class JobStanding(NamedTuple):
    namespace: str
    name: str
    token: str | None
    """None: it could not be created, and none is required."""
    start: NextStart | None = None
    """The order of a restart that is RELEASED and not fulfilled."""
    begun: int = 0
    """The newest attempt that its current pods have run."""
    pods: int = 1
    answer: WrapperAnswer = WrapperAnswer.WAIT_UNDECIDED
    """The answer to a wrapper for which there is no order."""


class Highest(NamedTuple):
    attempt: int = 0
    since: float = 0.0
    """When it was first reported."""


class _Request(NamedTuple):
    at: float
    since: float
    after: int
    waits: bool
    """The answer was to wait."""
    word: str = ""


class AttemptServer:
    def __init__(self, clock: Callable[[], float], is_leader: Callable[[], bool]) -> None:
        self._clock = clock
        self._is_leader = is_leader
        self._lock = threading.Lock()
        self._standings: Mapping[str, JobStanding] = {}
        self._seen: dict[str, dict[str, _Request]] = defaultdict(dict)
        self._second: dict[tuple[str, int], float] = {}

    def post(self, standings: Mapping[str, JobStanding]) -> None:
        """Set the standing of all jobs, by key, in the order in which a name is looked up."""
        with self._lock:
            self._standings = dict(standings)
            self._seen = defaultdict(
                dict, {key: each for key, each in self._seen.items() if key in standings}
            )
            current = {(key, each.begun) for key, each in standings.items()}
            self._second = {key: at for key, at in self._second.items() if key in current}

    def answer(
        self, namespace: str, job: str, token: str, *, pod: str = "", after: int = 0, word: str = ""
    ) -> dict[str, Any] | None:
        """None: no such job, a wrong token, or not the leader. `pod`, `after`, `word`: the headers
        Mwatch-Pod, Mwatch-After and Mwatch-Word, which holds a node's number and its nonce."""
        if not self._is_leader():
            return None
        now = self._clock()
        with self._lock:
            found = self._found(namespace, job, token)
            if found is None:
                return None
            key, standing = found
            # A client without a token gets an answer, but only requests with it are recorded.
            is_known = bool(token) and standing.token is not None
            answer = self._answer(key, standing, after, now)
            if pod and is_known and len(self._seen[key]) < _MAX_PODS:
                known = self._seen[key].get(pod)
                since = known.since if known is not None and known.after == after else now
                waits = answer.get("wait") is True
                self._seen[key][pod] = _Request(now, since, after, waits, word)
            if is_known and "not_before" in answer and word.startswith(_NODE_0):
                answer["heard"] = self._other_nodes(key, now)
            return answer

    def waiting(self, key: str, attempt: int) -> frozenset[str]:
        """Pods whose wrapper waits for a later attempt: its trainer has ended or never began. A
        waiting wrapper starts nothing before it asks again."""
        return frozenset(
            pod for pod, each in self._lately(key) if each.after >= attempt or each.waits
        )

    def unused(self, key: str, attempt: int) -> frozenset[str]:
        """The waiting pods that never began that attempt."""
        return frozenset(
            pod for pod, each in self._lately(key) if each.after < attempt and each.waits
        )

    def _other_nodes(self, key: str, now: float) -> dict[str, str]:
        """The nonces of the other nodes, by node. Node 0 puts them into its claim, where a node
        finds its own if the controller dies before it answers that node."""
        lately = [each for each in self._seen[key].values() if now - each.at <= WAITING_SECONDS]
        pairs = (each.word.split() for each in sorted(lately, key=lambda each: each.at))
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0] != "0"}

    def _lately(self, key: str) -> list[tuple[str, _Request]]:
        now = self._clock()
        with self._lock:
            seen = self._seen.get(key, {})
            return [(pod, each) for pod, each in seen.items() if now - each.at <= WAITING_SECONDS]

    def highest(self, key: str) -> Highest:
        """The highest attempt that a wrapper of this job has reported."""
        with self._lock:
            asked = list(self._seen.get(key, {}).values())
        most = max((each.after for each in asked), default=0)
        return Highest(most, min((each.since for each in asked if each.after == most), default=0.0))

    def _found(self, namespace: str, job: str, token: str) -> tuple[str, JobStanding] | None:
        for key, each in self._standings.items():
            is_named = (each.namespace, each.name) == (namespace, job)
            if is_named and (not token or each.token is None or _is_same(each.token, token)):
                return key, each
        return None

    def _answer(self, key: str, standing: JobStanding, after: int, now: float) -> dict[str, Any]:
        start, answer = standing.start, standing.answer
        if start is not None and start.attempt > after:
            return start.document(now)
        alone = {"attempt": after + 1, "by_rule": True, "reason": "nothing was decided about it"}
        if answer is WrapperAnswer.WAIT:
            return _wait(standing, after, "it is being restarted")
        if answer is WrapperAnswer.OWN_RULE:
            return alone
        waited = now - self._second.setdefault((key, standing.begun), now)
        if start is not None and standing.begun < start.attempt and waited < PATIENCE_SECONDS:
            return _wait(standing, after, "its order has an attempt number that is taken")
        if answer is WrapperAnswer.WAIT_PENDING and waited < PENDING_SECONDS:
            return _wait(standing, after, "a decision about it is held back")
        if after < standing.begun or not standing.begun or waited >= PATIENCE_SECONDS:
            return alone
        return _wait(standing, after, "it is not known yet why the last attempt ended")


def _is_same(known: str, given: str) -> bool:
    return hmac.compare_digest(known.encode(), given.encode())


def _wait(standing: JobStanding, after: int, why: str) -> dict[str, Any]:
    pause = min(_MAX_PAUSE, standing.pods / _PER_SECOND)
    return {"attempt": after + 1, "wait": True, "reason": why, "again_seconds": pause}
