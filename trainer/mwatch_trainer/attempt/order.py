# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Orders for the next attempt: from the controller, `decision.json` (`mwatch run`), or node 0.

All three have the same format. An order that cannot be parsed completely is ignored: with half of a
rollback, a poisoned checkpoint could be chosen.
"""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from types import MappingProxyType
from typing import Any, Mapping, NamedTuple

from mwatch_trainer import contract
from mwatch_trainer.attempt.fencing import OtherNode
from mwatch_trainer.attempt.plan import Preparation, StartRefused
from mwatch_trainer.checkpoint.timeline import (
    BrokenTimeline,
    TimelineQuarantine,
    TimelineRollback,
    quarantine_of,
    rollback_of,
)
from mwatch_trainer.reporting import FENCED, NOT_AGREED

NODE_0 = "node 0"
_MAX_NUMBER = 10**12
_MAX_ORDER_REASON = 500
_MAX_NONCE = 64


class Order(NamedTuple):
    number: int
    by: str  # `controller`, `decision.json`, or `node 0`
    resume_from: int | None = None
    from_beginning: bool = False
    has_choice: bool = True  # false: only a number; the rule chooses the checkpoint
    not_before: float | None = None
    reason: str = ""
    rollbacks: tuple[TimelineRollback, ...] = ()
    quarantine: TimelineQuarantine | None = None
    name: str | None = None  # the checkpoint's name on node 0
    may_be_unverified: bool = True
    by_step: bool | None = None
    received: Mapping[str, str] = MappingProxyType({})
    """Nonces of the waiting nodes by node number, as received by the controller."""


def parse(document: Mapping[str, Any], by: str) -> Order | None:
    number, resume_from = document.get("attempt"), document.get("resume_from")
    if not _is_count(number) or not number or not (resume_from is None or _is_count(resume_from)):
        return None
    try:
        rollbacks = tuple(rollback_of(each) for each in document.get("rollbacks") or ())
        entry = document.get("quarantine")
        quarantine = None if entry is None else quarantine_of(entry)
    except (BrokenTimeline, TypeError):
        return None
    name, reason = document.get("name"), document.get("reason")
    return Order(
        number,
        by,
        resume_from,
        document.get("from_beginning") is True,
        "resume_from" in document or document.get("from_beginning") is True,
        _time(document.get("not_before")),
        reason[:_MAX_ORDER_REASON] if isinstance(reason, str) else "",
        rollbacks,
        quarantine,
        name if isinstance(name, str) and "/" not in name and len(name) < 256 else None,
        document.get("state") != "complete",
        document["by_step"] if isinstance(document.get("by_step"), bool) else None,
        _nonces(document.get("heard")),
    )


def to_claim(order: Order, call: str | None, received: Mapping[str, str]) -> dict[str, Any]:
    """Return node 0's announcement to the other nodes, in the format that `parse` reads."""
    return {
        "attempt": order.number,
        "resume_from": order.resume_from,
        "from_beginning": order.from_beginning,
        "not_before": order.not_before,
        "reason": order.reason,
        "name": order.name,
        "state": "unverified" if order.may_be_unverified else "complete",
        "by_step": order.by_step,
        "call": call,
        "heard": dict(received),
    }


def _nonces(value: Any) -> dict[str, str]:
    """Return the valid nonces; a node with an invalid one asks again."""
    found = value.items() if isinstance(value, dict) else ()
    return {
        node: nonce
        for node, nonce in found
        if isinstance(nonce, str) and 0 < len(nonce) <= _MAX_NONCE and node.isdigit()
    }


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_NUMBER


def _time(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) <= _MAX_NUMBER else None


CONTROLLER = "MWATCH_CONTROLLER"
NAMESPACE = "MWATCH_NAMESPACE"
JOB = "MWATCH_JOB"
POD = "MWATCH_POD"
POD_HEADER = "Mwatch-Pod"
AFTER_HEADER = "Mwatch-After"
WORD_HEADER = "Mwatch-Word"
TOKEN = "MWATCH_TOKEN"
TOKEN_FILE = "MWATCH_TOKEN_FILE"
_MAX_BYTES = 1 << 20
_SECONDS = 5.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, so that the token is sent only to the controller."""

    def redirect_request(self, *_: Any) -> None:
        return None


def address(environ: Mapping[str, str]) -> str | None:
    base, job = environ.get(CONTROLLER, "").rstrip("/"), environ.get(JOB, "")
    if not base.startswith(("http://", "https://")) or not job:
        return None
    quoted = [
        urllib.parse.quote(each, safe="") for each in (environ.get(NAMESPACE) or "default", job)
    ]
    return "{}/v1/jobs/{}/{}/attempt".format(base, *quoted)


def ask(
    url: str, environ: Mapping[str, str], after: int = 0, nonce: str = ""
) -> dict[str, Any] | None:
    """Ask the controller once, with a short time limit; None without an answer. Never raises.

    `after`: the highest attempt known to have started, by which the controller distinguishes a late
    pod from a second start. `nonce`: the node's number and nonce, passed on to node 0. Proxy
    variables are ignored, because the controller is in the same cluster.
    """
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    request.add_header(AFTER_HEADER, str(after))
    if nonce:
        request.add_header(WORD_HEADER, nonce)
    pod = environ.get(POD, "")
    if pod and pod.isascii() and pod.isprintable():
        request.add_header(POD_HEADER, pod)
    token = _token(environ)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    try:
        with opener.open(request, timeout=_SECONDS) as response:
            if response.status != 200:
                return None
            data = response.read(_MAX_BYTES + 1)
        document = json.loads(data.decode("utf-8"))
    except (OSError, ValueError, RecursionError, http.client.HTTPException):
        return None
    return document if isinstance(document, dict) else None


def _token(environ: Mapping[str, str]) -> str:
    token = environ.get(TOKEN, "")
    try:
        if not token and environ.get(TOKEN_FILE):
            with open(os.fspath(environ[TOKEN_FILE]), encoding="ascii", errors="replace") as file:
                token = file.read(4096)
    except OSError:
        return ""
    token = token.strip()
    return token if token.isprintable() else ""


_MAX_REASON = 300
_MAX_PAUSE_SECONDS = 15.0
_MAX_START_SECONDS = 600.0


class _Answer:
    def __init__(self) -> None:
        self.order: Order | None = None
        self.must_wait = False
        self.why = ""
        self.is_by_rule = False  # start as if there were no controller


def of_controller(work: Preparation) -> Order | None:
    """Return the controller's order; None: no controller, no answer, or it defers to the rule.

    As long as the controller answers that no wrapper may start yet, the time limit is extended.
    """
    url = address(work.environ)
    if url is None:
        return None
    least = max(work.last, work.highest if work.run.place.is_first else 0) + 1
    answer, node = _Answer(), work.run.place.node_rank
    nonce = "" if node is None else f"{node} {work.nonce}"

    def is_answered() -> bool:
        document = ask(url, work.environ, after=least - 1, nonce=nonce)
        if document is not None:
            _record(work, answer, document)
        elif (order := _claimed(work)) is not None:
            answer.order, answer.must_wait = order, False
        number = answer.order.number if answer.order is not None and not answer.must_wait else 0
        return answer.is_by_rule or number >= least

    bound = work.options.controller_seconds
    if not work.wait(is_answered, bound) and answer.must_wait:
        work.wait(is_answered, max(0.0, work.options.wait_seconds - bound))
    if answer.is_by_rule:
        return None
    if answer.must_wait:
        raise StartRefused(f"the controller does not allow a start yet: {answer.why}", NOT_AGREED)
    if answer.order is not None and answer.order.number >= least:
        return answer.order
    if answer.order is not None:
        why = f"the controller names attempt {answer.order.number}, which has started before"
        raise StartRefused(why, FENCED)
    work.changes.append(f"the controller did not answer within {bound:g} s: started without it")
    return None


def _claimed(work: Preparation) -> Order | None:
    """Return node 0's claim: a controller that is now gone may have sent it this node's nonce."""
    save, node = work.run.save, work.run.place.node_rank
    if save is None or not node:
        return None
    claim = OtherNode(save, node, work.nonce).find_claim()
    return None if claim is None else parse(claim, NODE_0)


def _record(work: Preparation, answer: _Answer, document: Mapping[str, Any]) -> None:
    answer.is_by_rule = document.get("by_rule") is True
    answer.must_wait = document.get("wait") is True and not answer.is_by_rule
    if answer.must_wait:
        answer.why = str(document.get("reason"))[:_MAX_REASON]
        work.clock.sleep(_seconds(document.get("again_seconds"), _MAX_PAUSE_SECONDS) or 0.0)
        return
    order = parse(document, "controller")
    if order is None:
        return
    left = _seconds(document.get("in_seconds"), _MAX_START_SECONDS)
    if left is not None:  # relative, because our clock and the controller's may differ
        order = order._replace(not_before=work.clock.wall() + left)
    answer.order = order


def _seconds(value: Any, most: float) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return min(float(value), most) if is_number and value >= 0 else None


def of_decision(work: Preparation) -> Order | None:
    """Read the order that `mwatch run` writes for each attempt, unless it was already used."""
    if work.options.directory is None:
        return None
    path = os.path.join(work.options.directory, contract.DECISION)
    document = contract.read_json(path)
    order = parse(document, contract.DECISION) if document is not None else None
    if order is None or order.number <= work.last:
        return None
    if 0 < work.last < work.highest and order.number <= work.highest:
        why = f"attempt {work.highest} has started elsewhere, and {path} names {order.number}"
        raise StartRefused(why, FENCED)
    # A new run in the folder of an earlier run continues that run's attempt numbers.
    return order._replace(number=max(order.number, work.highest + 1))


def of_first_node(work: Preparation, save: str, node: int) -> Order:
    node_claim = OtherNode(save, node, work.nonce)
    found: list[Order] = []

    def is_claimed() -> bool:
        claim = node_claim.poll()
        order = parse(claim, NODE_0) if claim is not None else None
        found.extend([] if order is None else [order])
        return bool(found)

    if not work.wait(is_claimed):
        why = f"node 0 announced no attempt within {work.options.wait_seconds:g} s"
        raise StartRefused(why, NOT_AGREED)
    return found[-1]
