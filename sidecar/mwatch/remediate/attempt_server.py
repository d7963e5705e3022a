# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The answer to a wrapper that asks for its attempt: start this one, wait, or by your own rule.

An open order is given to every pod that has begun none as high. A wrapper that asks for more than
was ordered starts for the second time: it waits while its job is being judged or restarted, and is
left to its own rule where nobody will act. A first start is left to the rule too: the wrapper of
node 0 sees the checkpoints, and agrees with the others. Only the leader answers: two controllers
would give two answers.
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
"""From the second start of a wrapper until what happened to its job is known and decided."""
PENDING_SECONDS = 300.0
"""For something that is decided and kept back: what takes longer may never be done, and without
mwatch the trainer would run by now."""
WAITING_SECONDS = 20.0
"""A wrapper that asked so lately is waiting: it asks every few seconds."""
_PER_SECOND = 200
"""Questions that are welcome, in all."""
_MAX_PAUSE = 10.0
_MAX_PODS = 10_000
_NODE_0 = "0 "


class JobStanding(NamedTuple):
    """How one job stands."""

    namespace: str
    name: str
    token: str | None
    """None: it could not be made, and nothing is asked for."""
    start: NextStart | None = None
    """Of a restart that is RELEASED, and not fulfilled."""
    begun: int = 0
    """The newest attempt that its present pods were seen to run."""
    pods: int = 1
    answer: WrapperAnswer = WrapperAnswer.WAIT_UNDECIDED
    """Where there is no order for the wrapper that asks."""


class Highest(NamedTuple):
    attempt: int = 0
    since: float = 0.0
    """From when on that was reported."""


class _Question(NamedTuple):
    at: float
    since: float
    after: int
    waits: bool
    """The answer was to ask again."""
    word: str = ""


class AttemptServer:
    def __init__(self, clock: Callable[[], float], is_leader: Callable[[], bool]) -> None:
        self._clock = clock
        self._is_leader = is_leader
        self._lock = threading.Lock()
        self._standings: Mapping[str, JobStanding] = {}
        self._seen: dict[str, dict[str, _Question]] = defaultdict(dict)
        self._second: dict[tuple[str, int], float] = {}

    def post(self, standings: Mapping[str, JobStanding]) -> None:
        """How all jobs stand now; by their keys, in the order in which a name is looked up."""
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
        """None: there is no such job here, the token is another's, or others are to be asked.
        `pod`, `after`, `word`: the headers Mwatch-Pod, Mwatch-After, Mwatch-Word of the question;
        the last is a node's number and the word by which its claim can name it."""
        if not self._is_leader():
            return None
        now = self._clock()
        with self._lock:
            found = self._found(namespace, job, token)
            if found is None:
                return None
            key, standing = found
            # Whoever can reach the port is answered; only the job's own pods are believed.
            is_known = bool(token) and standing.token is not None
            answer = self._answer(key, standing, after, now)
            if pod and is_known and len(self._seen[key]) < _MAX_PODS:
                known = self._seen[key].get(pod)
                since = known.since if known is not None and known.after == after else now
                waits = answer.get("wait") is True
                self._seen[key][pod] = _Question(now, since, after, waits, word)
            if is_known and "not_before" in answer and word.startswith(_NODE_0):
                answer["heard"] = self._heard(key, now)
            return answer

    def waiting(self, key: str, attempt: int) -> frozenset[str]:
        """Pods whose wrapper waits for an attempt after that one: its trainer has ended, or none
        has ever begun there. A wrapper that has to wait starts nothing before it asks again."""
        return frozenset(
            pod for pod, each in self._lately(key) if each.after >= attempt or each.waits
        )

    def unused(self, key: str, attempt: int) -> frozenset[str]:
        """Of those the pods that never began that attempt."""
        return frozenset(
            pod for pod, each in self._lately(key) if each.after < attempt and each.waits
        )

    def _heard(self, key: str, now: float) -> dict[str, str]:
        """The words of the other nodes: should we die before they are answered too, they read in
        the claim of node 0 that it is theirs."""
        lately = [each for each in self._seen[key].values() if now - each.at <= WAITING_SECONDS]
        pairs = (each.word.split() for each in sorted(lately, key=lambda each: each.at))
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0] != "0"}

    def _lately(self, key: str) -> list[tuple[str, _Question]]:
        now = self._clock()
        with self._lock:
            seen = self._seen.get(key, {})
            return [(pod, each) for pod, each in seen.items() if now - each.at <= WAITING_SECONDS]

    def highest(self, key: str) -> Highest:
        """The highest attempt that a wrapper of this job knows to have begun."""
        with self._lock:
            asked = list(self._seen.get(key, {}).values())
        most = max((each.after for each in asked), default=0)
        return Highest(most, min((each.since for each in asked if each.after == most), default=0.0))

    def _found(self, namespace: str, job: str, token: str) -> tuple[str, JobStanding] | None:
        named = [
            (key, each)
            for key, each in self._standings.items()
            if each.name == job and each.namespace == namespace
        ]
        if token:
            named = [
                (key, each)
                for key, each in named
                if each.token is None or hmac.compare_digest(each.token.encode(), token.encode())
            ]
        return named[0] if named else None

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
            return _wait(standing, after, "it was ordered by a number that is taken")
        if answer is WrapperAnswer.WAIT_PENDING and waited < PENDING_SECONDS:
            return _wait(standing, after, "what to do about it is decided, and not done yet")
        if after < standing.begun or not standing.begun or waited >= PATIENCE_SECONDS:
            return alone
        return _wait(standing, after, "it is not known yet why the last attempt ended")


def _wait(standing: JobStanding, after: int, why: str) -> dict[str, Any]:
    pause = min(_MAX_PAUSE, standing.pods / _PER_SECOND)
    return {"attempt": after + 1, "wait": True, "reason": why, "again_seconds": pause}
