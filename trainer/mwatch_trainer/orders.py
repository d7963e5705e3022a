# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where an order for the coming attempt may come from, and when an order is one for the past."""

from __future__ import annotations

import os

from mwatch_trainer import ask_controller, contract
from mwatch_trainer.exit_table import FENCED, NOT_AGREED
from mwatch_trainer.join import Answerer
from mwatch_trainer.order import Order, parse
from mwatch_trainer.preparation import Preparation, Refused


def of_controller(work: Preparation) -> Order | None:
    """None where there is none, or it does not answer: training does not wait for mwatch."""
    url = ask_controller.address(work.environ)
    if url is None:
        return None
    least = max(work.last, work.top if work.run.place.is_first else 0) + 1
    found: list[Order] = []

    def is_answered() -> bool:
        document = ask_controller.ask(url, work.environ)
        told = parse(document, "controller") if document is not None else None
        found.extend([] if told is None else [told])
        return told is not None and told.number >= least

    bound = work.options.controller_seconds
    if work.wait(is_answered, bound):
        return found[-1]
    if found:
        why = f"the controller speaks of attempt {found[-1].number}, which has begun before"
        raise Refused(why, FENCED)
    work.changes.append(f"the controller did not answer within {bound:g} s: went on without it")
    return None


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
    answerer = Answerer(save, node)
    found: list[Order] = []

    def is_claimed() -> bool:
        claim = answerer.look()
        told = parse(claim, "node 0") if claim is not None else None
        found.extend([] if told is None else [told])
        return bool(found)

    if not work.wait(is_claimed):
        why = f"node 0 named no attempt within {work.options.wait_seconds:g} s"
        raise Refused(why, NOT_AGREED)
    return found[-1]
