# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a wrapper is told when it asks for its attempt: start this one, wait, or as you would alone.

An attempt that was ordered is told to every pod that knows of none as high. A wrapper that asks
for more than was ordered starts for the second time: it waits while its job is being judged or
restarted, and is left to its own rule where nobody will do anything about it. A first start is
left to the rule too: the wrapper of node 0 sees the checkpoints, and agrees with the others. Only
the leader answers: the word of two controllers would be two words.
"""

from __future__ import annotations

import hmac
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mwatch.model.kube.next_start import NextStart

PATIENCE_SECONDS = 45.0
"""From the second start of a wrapper until what happened to its job is known and decided."""
PENDING_SECONDS = 300.0
"""For something that is decided and kept back: what takes longer may never be done, and without
mwatch the trainer would run by now."""
WAITING_SECONDS = 20.0
"""A wrapper that asked so lately is waiting at the desk: it asks every few seconds."""
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
    begun: int = 0
    """The newest attempt that its present pods were seen to run."""
    pods: int = 1
    is_pending: bool = False
    """Something is decided about it, and not done yet."""
    is_going: bool = False
    """It is being done."""
    is_left_alone: bool = False
    """Nobody will do anything: paused, halted, observed."""


class Highest(NamedTuple):
    attempt: int = 0
    since: float = 0.0
    """From when on that was told."""


class _Question(NamedTuple):
    at: float
    since: float
    after: int
    waits: bool
    """It was told to ask again."""
    word: str = ""


class AttemptServer:
    def __init__(self, clock: Callable[[], float], is_leader: Callable[[], bool]) -> None:
        self._clock = clock
        self._is_leader = is_leader
        self._lock = threading.Lock()
        self._tickets: Mapping[str, JobStanding] = {}
        self._seen: dict[str, dict[str, _Question]] = defaultdict(dict)
        self._second: dict[tuple[str, int], float] = {}

    def post(self, tickets: Mapping[str, JobStanding]) -> None:
        """How all jobs stand now; by their keys, in the order in which a name is looked up."""
        with self._lock:
            self._tickets = dict(tickets)
            self._seen = defaultdict(
                dict, {key: each for key, each in self._seen.items() if key in tickets}
            )
            current = {(key, each.begun) for key, each in tickets.items()}
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
            key, ticket = found
            # Whoever can reach the port is answered; only the job's own pods are believed.
            is_known = bool(token) and ticket.token is not None
            answer = self._answer(key, ticket, after, now)
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
        has ever begun there. Who was told to wait starts nothing before it was told otherwise."""
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
            for key, each in self._tickets.items()
            if each.name == job and each.namespace == namespace
        ]
        if token:
            named = [
                (key, each)
                for key, each in named
                if each.token is None or hmac.compare_digest(each.token.encode(), token.encode())
            ]
        return named[0] if named else None

    def _answer(self, key: str, ticket: JobStanding, after: int, now: float) -> dict[str, Any]:
        start = ticket.start
        if start is not None and start.attempt > after:
            return self._paced(start.document(now), ticket)
        alone = {"attempt": after + 1, "by_rule": True, "reason": "nothing was decided about it"}
        if ticket.is_going:
            return self._wait(ticket, after, "it is being restarted")
        if ticket.is_left_alone:
            return alone
        first = self._second.setdefault((key, ticket.begun), now)
        if start is not None and ticket.begun < start.attempt and now - first < PATIENCE_SECONDS:
            return self._wait(ticket, after, "it was ordered by a number that is taken")
        if ticket.is_pending and now - first < PENDING_SECONDS:
            return self._wait(ticket, after, "what to do about it is decided, and not done yet")
        if after < ticket.begun or not ticket.begun:
            return alone
        if now - first < PATIENCE_SECONDS:
            return self._wait(ticket, after, "it is not known yet why the last attempt ended")
        return alone

    def _wait(self, ticket: JobStanding, after: int, why: str) -> dict[str, Any]:
        return self._paced({"attempt": after + 1, "wait": True, "reason": why}, ticket)

    def _paced(self, document: dict[str, Any], ticket: JobStanding) -> dict[str, Any]:
        if document.get("wait") is True:
            document["again_seconds"] = min(_MAX_PAUSE, ticket.pods / _PER_SECOND)
        return document
