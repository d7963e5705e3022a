# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A gang restart without a new pod: every wrapper ends its trainer and comes back for its attempt.

It is done when all wrappers wait at the desk, so no process of the old attempt is left when the
first of the new one starts. One pod that refuses, or does not come, is enough to give it up: then
the pods are replaced. Safe to repeat: a wrapper ends the attempt that is named, and once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from mwatch.app.at_once import Missed, ask_all
from mwatch.app.pod_talk import NoAnswer, PodAddress, post

GRACE_SECONDS = 10.0
COME_SECONDS = 45.0
"""Until the last wrapper is back: the grace, the kill, and a question every few seconds."""
_ASK_SECONDS = 8.0
_LOOK_SECONDS = 0.25
_WORKERS = 64


def restart_in_place(
    pods: Sequence[PodAddress],
    token: str,
    *,
    attempt: int,
    who: str,
    reason: str,
    waiting: Callable[[], Collection[str]],
    may_act: Callable[[], bool],
    seconds: float = COME_SECONDS,
) -> str:
    """`attempt`: the one that ends. `waiting`: pods at the desk. Empty: all have come; else why
    it was given up."""
    until, at_desk = time.monotonic() + seconds, set(waiting())
    asked = [each for each in pods if each.pod not in at_desk]
    body = {
        "attempt": attempt,
        "who": who,
        "reason": reason[:400],
        "evidence": False,
        "grace_seconds": GRACE_SECONDS,
    }

    def ask(where: PodAddress) -> str:
        if not may_act():
            return "no longer the leader"
        try:
            reply = post(where, "/v1/restart", token, body, _ASK_SECONDS)
        except NoAnswer as error:
            return str(error)
        running = reply.body.get("attempt")
        is_past = isinstance(running, int) and running > attempt
        is_over = reply.body.get("outcome") == "not-running"
        return "" if reply.status == 202 or is_past or is_over else reply.error

    asks = {each.pod: (lambda each=each: ask(each)) for each in asked}
    for pod, said in ask_all(asks, seconds=_ASK_SECONDS + 2.0, workers=_WORKERS).items():
        if said:
            return f"{pod}: {said.why if isinstance(said, Missed) else said}"
    return _wait(pods, waiting, until)


def _wait(pods: Sequence[PodAddress], waiting: Callable[[], Collection[str]], until: float) -> str:
    while True:
        away = sorted({each.pod for each in pods} - set(waiting()))
        if not away:
            return ""
        if time.monotonic() >= until:
            return f"{', '.join(away[:3])}: asked to restart in place, and not back in time"
        time.sleep(_LOOK_SECONDS)
