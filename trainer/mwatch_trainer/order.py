# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What somebody else has decided about the coming attempt: the controller, `mwatch run`, node 0.

One shape for all three. An order that cannot be read in full is no order: half of a rollback
would let a poisoned checkpoint be chosen.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Mapping, NamedTuple

from mwatch_trainer.timeline import Broken, Quarantine, Rollback, quarantine_of, rollback_of

NODE_0 = "node 0"
_MAX_NUMBER = 10**12
_MAX_REASON = 500
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
    rollbacks: tuple[Rollback, ...] = ()
    quarantine: Quarantine | None = None
    name: str | None = None
    """Of the checkpoint, as node 0 sees it."""
    may_be_unverified: bool = True
    by_step: bool | None = None
    heard: Mapping[str, str] = MappingProxyType({})
    """Words of the other nodes that wait for it, by their number, as the controller heard them."""


def parse(document: Mapping[str, Any], by: str) -> Order | None:
    number, resume_from = document.get("attempt"), document.get("resume_from")
    if not _is_count(number) or not number or not (resume_from is None or _is_count(resume_from)):
        return None
    try:
        rollbacks = tuple(rollback_of(each) for each in document.get("rollbacks") or ())
        entry = document.get("quarantine")
        quarantine = None if entry is None else quarantine_of(entry)
    except (Broken, TypeError):
        return None
    name, reason = document.get("name"), document.get("reason")
    return Order(
        number,
        by,
        resume_from,
        document.get("from_beginning") is True,
        "resume_from" in document or document.get("from_beginning") is True,
        _time(document.get("not_before")),
        reason[:_MAX_REASON] if isinstance(reason, str) else "",
        rollbacks,
        quarantine,
        name if isinstance(name, str) and "/" not in name and len(name) < 256 else None,
        document.get("state") != "complete",
        document["by_step"] if isinstance(document.get("by_step"), bool) else None,
        _words(document.get("heard")),
    )


def to_claim(order: Order, call: str | None, heard: Mapping[str, str]) -> dict[str, Any]:
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
        "heard": dict(heard),
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
