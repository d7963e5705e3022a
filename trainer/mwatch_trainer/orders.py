# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where an order for the coming attempt may come from, and when an order is one for the past."""

from __future__ import annotations

import os
from typing import Any, Mapping

from mwatch_trainer import ask_controller, contract
from mwatch_trainer.exit_table import FENCED, NOT_AGREED
from mwatch_trainer.join import Answerer
from mwatch_trainer.order import NODE_0, Order, parse
from mwatch_trainer.preparation import Preparation, Refused

_MAX_REASON = 300
_MAX_PAUSE_SECONDS = 15.0
_MAX_START_SECONDS = 600.0


class _Heard:
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
    url = ask_controller.address(work.environ)
    if url is None:
        return None
    least = max(work.last, work.top if work.run.place.is_first else 0) + 1
    heard, node = _Heard(), work.run.place.node_rank
    word = "" if node is None else f"{node} {work.word}"

    def is_answered() -> bool:
        document = ask_controller.ask(url, work.environ, after=least - 1, word=word)
        if document is not None:
            _hear(work, heard, document)
        elif (order := _named(work)) is not None:
            heard.order, heard.waits = order, False
        number = heard.order.number if heard.order is not None and not heard.waits else 0
        return heard.is_ours or number >= least

    bound = work.options.controller_seconds
    if not work.wait(is_answered, bound) and heard.waits:
        work.wait(is_answered, max(0.0, work.options.wait_seconds - bound))
    if heard.is_ours:
        return None
    if heard.waits:
        raise Refused(f"the controller lets nobody start yet: {heard.why}", NOT_AGREED)
    if heard.order is not None and heard.order.number >= least:
        return heard.order
    if heard.order is not None:
        why = f"the controller speaks of attempt {heard.order.number}, which has begun before"
        raise Refused(why, FENCED)
    work.changes.append(f"the controller did not answer within {bound:g} s: went on without it")
    return None


def _named(work: Preparation) -> Order | None:
    """The controller is gone, and has told node 0 before that this wrapper is waiting."""
    save, node = work.run.save, work.run.place.node_rank
    if save is None or not node:
        return None
    claim = Answerer(save, node, work.word).named()
    return None if claim is None else parse(claim, NODE_0)


def _hear(work: Preparation, heard: _Heard, document: Mapping[str, Any]) -> None:
    heard.is_ours = document.get("by_rule") is True
    heard.waits = document.get("wait") is True and not heard.is_ours
    if heard.waits:
        heard.why = str(document.get("reason"))[:_MAX_REASON]
        work.clock.sleep(_seconds(document.get("again_seconds"), _MAX_PAUSE_SECONDS) or 0.0)
        return
    told = parse(document, "controller")
    if told is None:
        return
    left = _seconds(document.get("in_seconds"), _MAX_START_SECONDS)
    if left is not None:  # our clock and the controller's need not agree
        told = told._replace(not_before=work.clock.wall() + left)
    heard.order = told


def _seconds(value: Any, most: float) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return min(float(value), most) if is_number and value >= 0 else None


def of_decision(work: Preparation) -> Order | None:
    """`mwatch run` writes one for each attempt; one that was followed before says nothing now."""
    if work.options.directory is None:
        return None
    path = os.path.join(work.options.directory, contract.DECISION)
    document = contract.read_json(path)
    told = parse(document, contract.DECISION) if document is not None else None
    if told is None or told.number <= work.last:
        return None
    if 0 < work.last < work.top and told.number <= work.top:
        why = f"attempt {work.top} has begun elsewhere, and {path} speaks of {told.number}"
        raise Refused(why, FENCED)
    # A new run in a folder that an earlier run used counts on from there.
    return told._replace(number=max(told.number, work.top + 1))


def of_first_node(work: Preparation, save: str, node: int) -> Order:
    answerer = Answerer(save, node, work.word)
    found: list[Order] = []

    def is_claimed() -> bool:
        claim = answerer.look()
        told = parse(claim, NODE_0) if claim is not None else None
        found.extend([] if told is None else [told])
        return bool(found)

    if not work.wait(is_claimed):
        why = f"node 0 named no attempt within {work.options.wait_seconds:g} s"
        raise Refused(why, NOT_AGREED)
    return found[-1]
