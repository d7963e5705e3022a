# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A restart in place: the wrapper ends its trainer and starts the next attempt in the same pod.

The wrapper decides whether it may be: in act only, of the attempt that is named only, and once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mwatch.model.restart import RestartAnswer, RestartOrder, RestartOutcome

Ask = Callable[[Mapping[str, Any], float], Mapping[str, Any]]
"""A request to the wrapper's control socket, and how long its answer may take."""
_ASK_SECONDS = 5.0
_KINDS = {each.value: each for each in RestartOutcome}


def restart_in_place(ask: Ask, order: RestartOrder, *, is_check: bool = False) -> RestartAnswer:
    """`is_check`: only whether it could be done. Never raises for what the wrapper does."""
    request: dict[str, Any] = {
        "op": "restart",
        "attempt": order.attempt,
        "reason": f"{order.who}: {order.reason}",
        "grace_seconds": order.grace_seconds,
        "save": order.with_save,
        "check": is_check,
    }
    if order.resume_from is not None:
        request["resume_from"] = order.resume_from
    try:
        answer = ask(request, _ASK_SECONDS)
    except (OSError, ValueError) as error:
        return RestartAnswer(RestartOutcome.UNREACHABLE, f"the wrapper did not answer: {error}")
    running = answer.get("attempt")
    attempt = running if isinstance(running, int) else None
    if answer.get("ok") is True:
        if answer.get("already") is True:
            words = f"attempt {order.attempt} was asked to restart before"
            return RestartAnswer(RestartOutcome.ALREADY, words, attempt)
        return RestartAnswer(RestartOutcome.ACCEPTED, attempt=attempt)
    return RestartAnswer(_outcome(answer), str(answer.get("error"))[:500], attempt)


def _outcome(answer: Mapping[str, Any]) -> RestartOutcome:
    """The client of the socket gives no kind where there is no wrapper."""
    kind = answer.get("kind")
    return _KINDS.get(str(kind), RestartOutcome.UNREACHABLE)
