# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What somebody else has decided about the coming attempt: the controller, `mwatch run`, node 0.

One shape for all three. An order that cannot be read in full is no order: half of a rollback
would let a poisoned checkpoint be chosen.

`GET $MWATCH_CONTROLLER/v1/jobs/NAMESPACE/JOB/attempt`: what the controller says of this attempt.

One question is one call with a short limit; who asks repeats it within a bound. Proxies of the
training image are not used: the controller is in the same cluster.

Where an order for the coming attempt may come from, and when an order is one for the past.
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
from mwatch_trainer.attempt.handshake import Answerer
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
_MAX_WORD = 64


class Order(NamedTuple):
    number: int
    by: str
    """`controller`, `decision.json`, or `node 0`."""
    resume_from: int | None = None
    from_beginning: bool = False
    has_choice: bool = True
    """False: it gives a number and leaves the checkpoint to the rule."""
    not_before: float | None = None
    reason: str = ""
    rollbacks: tuple[TimelineRollback, ...] = ()
    quarantine: TimelineQuarantine | None = None
    name: str | None = None
    """Of the checkpoint, as node 0 sees it."""
    may_be_unverified: bool = True
    by_step: bool | None = None
    received: Mapping[str, str] = MappingProxyType({})
    """Words of the other nodes that wait for it, by their number, as the controller heard them."""


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
        _words(document.get("heard")),
    )


def to_claim(order: Order, call: str | None, received: Mapping[str, str]) -> dict[str, Any]:
    """What node 0 tells the others, in the shape that `parse` reads."""
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


def _words(value: Any) -> dict[str, str]:
    """What is no word is left out: such a node asks again."""
    found = value.items() if isinstance(value, dict) else ()
    return {
        node: word
        for node, word in found
        if isinstance(word, str) and 0 < len(word) <= _MAX_WORD and node.isdigit()
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
    """The token is for the controller alone."""

    def redirect_request(self, *_: Any) -> None:
        return None


def address(environ: Mapping[str, str]) -> str | None:
    """None where no controller was named."""
    base, job = environ.get(CONTROLLER, "").rstrip("/"), environ.get(JOB, "")
    if not base.startswith(("http://", "https://")) or not job:
        return None
    quoted = [urllib.parse.quote(each, safe="") for each in (_namespace(environ), job)]
    return "{}/v1/jobs/{}/{}/attempt".format(base, *quoted)


def ask(
    url: str, environ: Mapping[str, str], after: int = 0, word: str = ""
) -> dict[str, Any] | None:
    """The answer; None while there is none. Never raises. `after`: the highest attempt that this
    wrapper knows to have begun, so that the controller can tell a late pod from a second start.
    `word`: the node's number and its word (`join`), so that node 0 can be told who else is here."""
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    request.add_header(AFTER_HEADER, str(after))
    if word:
        request.add_header(WORD_HEADER, word)
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


def _namespace(environ: Mapping[str, str]) -> str:
    return environ.get(NAMESPACE) or "default"


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


class _Received:
    """What the controller has said so far."""

    def __init__(self) -> None:
        self.order: Order | None = None
        self.waits = False
        """Its last word was that nobody may start yet."""
        self.why = ""
        self.is_ours = False
        """It leaves the start to the rule that holds without it."""


def of_controller(work: Preparation) -> Order | None:
    """None where there is none, or it does not answer (training does not wait for mwatch), or it
    leaves the start to us. While it says that nobody may start yet, it is waited for longer."""
    url = address(work.environ)
    if url is None:
        return None
    least = max(work.last, work.top if work.run.place.is_first else 0) + 1
    received, node = _Received(), work.run.place.node_rank
    word = "" if node is None else f"{node} {work.word}"

    def is_answered() -> bool:
        document = ask(url, work.environ, after=least - 1, word=word)
        if document is not None:
            _hear(work, received, document)
        elif (order := _named(work)) is not None:
            received.order, received.waits = order, False
        number = received.order.number if received.order is not None and not received.waits else 0
        return received.is_ours or number >= least

    bound = work.options.controller_seconds
    if not work.wait(is_answered, bound) and received.waits:
        work.wait(is_answered, max(0.0, work.options.wait_seconds - bound))
    if received.is_ours:
        return None
    if received.waits:
        raise StartRefused(f"the controller does not allow a start yet: {received.why}", NOT_AGREED)
    if received.order is not None and received.order.number >= least:
        return received.order
    if received.order is not None:
        why = f"the controller speaks of attempt {received.order.number}, which has begun before"
        raise StartRefused(why, FENCED)
    work.changes.append(f"the controller did not answer within {bound:g} s: went on without it")
    return None


def _named(work: Preparation) -> Order | None:
    """The controller is gone, and has told node 0 before that this wrapper is waiting."""
    save, node = work.run.save, work.run.place.node_rank
    if save is None or not node:
        return None
    claim = Answerer(save, node, work.word).named()
    return None if claim is None else parse(claim, NODE_0)


def _hear(work: Preparation, received: _Received, document: Mapping[str, Any]) -> None:
    received.is_ours = document.get("by_rule") is True
    received.waits = document.get("wait") is True and not received.is_ours
    if received.waits:
        received.why = str(document.get("reason"))[:_MAX_REASON]
        work.clock.sleep(_seconds(document.get("again_seconds"), _MAX_PAUSE_SECONDS) or 0.0)
        return
    reported = parse(document, "controller")
    if reported is None:
        return
    left = _seconds(document.get("in_seconds"), _MAX_START_SECONDS)
    if left is not None:  # our clock and the controller's need not agree
        reported = reported._replace(not_before=work.clock.wall() + left)
    received.order = reported


def _seconds(value: Any, most: float) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return min(float(value), most) if is_number and value >= 0 else None


def of_decision(work: Preparation) -> Order | None:
    """`mwatch run` writes one for each attempt; one that was followed before says nothing now."""
    if work.options.directory is None:
        return None
    path = os.path.join(work.options.directory, contract.DECISION)
    document = contract.read_json(path)
    reported = parse(document, contract.DECISION) if document is not None else None
    if reported is None or reported.number <= work.last:
        return None
    if 0 < work.last < work.top and reported.number <= work.top:
        why = f"attempt {work.top} has begun elsewhere, and {path} speaks of {reported.number}"
        raise StartRefused(why, FENCED)
    # A new run in a folder that an earlier run used counts on from there.
    return reported._replace(number=max(reported.number, work.top + 1))


def of_first_node(work: Preparation, save: str, node: int) -> Order:
    answerer = Answerer(save, node, work.word)
    found: list[Order] = []

    def is_claimed() -> bool:
        claim = answerer.look()
        reported = parse(claim, NODE_0) if claim is not None else None
        found.extend([] if reported is None else [reported])
        return bool(found)

    if not work.wait(is_claimed):
        why = f"node 0 named no attempt within {work.options.wait_seconds:g} s"
        raise StartRefused(why, NOT_AGREED)
    return found[-1]
