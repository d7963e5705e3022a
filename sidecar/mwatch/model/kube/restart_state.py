# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The state machine of a restart: its states, its events, and what each state allows.

A restart (or a stop, which is a restart without a new gang) is first only in the memory of the
leading controller: HELD, PREPARING, COMMITTING. The event WRITTEN puts it in the ledger, which from
then on is the only source. If a controller dies, restarts that are only in memory are lost
(WITHDRAWN) and the next controller continues those in the ledger, where DEFERRED is PLANNED and
retried.

`TRANSITIONS` has every change of state; `RULES` has what each state allows and how it is shown. The
values in the ledger (`planned`, `suspended`, `done`) and in `/v1/jobs` (`doing`) are older than
this table and derived from the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple


class RestartState(StrEnum):
    NONE = "none"  # nothing is due, or it was withdrawn before anything was written
    HELD = "held"  # due, but held back by a gate, the breaker or a refusal of the plan
    PREPARING = "preparing"  # fresh facts, a plan, evidence; nothing is changed yet
    COMMITTING = "committing"  # decided; the worker writes it to the ledger; no pod is touched yet
    PLANNED = "planned"
    """In the ledger, with the UIDs of the old pods; from here on it must be finished."""
    DEFERRED = "deferred"  # begun in place; for now no method can finish it
    SUSPENDED = "suspended"  # the job is suspended, and resumed once the old pods are gone
    CLEARED = "cleared"  # the old gang is gone; the wrappers still wait
    RELEASED = "released"  # the wrappers may start the next attempt, which does not train yet
    DONE = "done"


class RestartEvent(StrEnum):
    DUE = "due"
    ADMITTED = "admitted"  # no gate holds it, and the breaker has a free slot
    REFUSED = "refused"
    """By a gate, the plan, a person's halt or an error, before anything was written."""
    WITHDRAWN = "withdrawn"
    """No longer due, done by another controller, or the controller or the job is gone."""
    PREPARED = "prepared"  # evidence is stored and it is still due
    WRITTEN = "written"
    REPLANNED = "replanned"  # in place was given up for another method
    BLOCKED = "blocked"  # in place was given up, and the plan refuses every other method for now
    RETRIED = "retried"
    JOB_SUSPENDED = "job-suspended"
    PODS_GONE = "pods-gone"  # an order for the next attempt waits
    CLOSED = "closed"
    """Without an order: a stop, or a restart whose wrappers start by their own rule."""
    LET_START = "let-start"
    REISSUED = "reissued"  # the attempt number was taken; the order has a new one
    FULFILLED = "fulfilled"
    """The attempt trains, a newer one has begun, or the wrappers follow their own rule."""
    SUPERSEDED = "superseded"  # another restart of the job replaces it in the ledger


_S, _E = RestartState, RestartEvent

TRANSITIONS: Mapping[RestartState, Mapping[RestartEvent, RestartState]] = MappingProxyType(
    {
        _S.NONE: {_E.DUE: _S.HELD},
        _S.HELD: {_E.ADMITTED: _S.PREPARING, _E.REFUSED: _S.HELD, _E.WITHDRAWN: _S.NONE},
        _S.PREPARING: {_E.PREPARED: _S.COMMITTING, _E.REFUSED: _S.HELD, _E.WITHDRAWN: _S.NONE},
        _S.COMMITTING: {_E.WRITTEN: _S.PLANNED, _E.REFUSED: _S.HELD, _E.WITHDRAWN: _S.NONE},
        _S.PLANNED: {
            _E.REPLANNED: _S.PLANNED,
            _E.BLOCKED: _S.DEFERRED,
            _E.JOB_SUSPENDED: _S.SUSPENDED,
            _E.PODS_GONE: _S.CLEARED,
            _E.CLOSED: _S.DONE,
        },
        _S.DEFERRED: {_E.RETRIED: _S.PLANNED},
        _S.SUSPENDED: {_E.PODS_GONE: _S.CLEARED, _E.CLOSED: _S.DONE},
        _S.CLEARED: {_E.LET_START: _S.RELEASED, _E.SUPERSEDED: _S.DONE},
        _S.RELEASED: {
            _E.REISSUED: _S.RELEASED,
            _E.FULFILLED: _S.DONE,
            _E.SUPERSEDED: _S.DONE,
        },
        _S.DONE: {_E.SUPERSEDED: _S.DONE},
    }
)


class WrapperAnswer(StrEnum):
    """Answer to a wrapper that requests its attempt while no order is open."""

    WAIT = "wait"  # without a limit: its job is being restarted
    WAIT_PENDING = "wait-pending"  # for minutes: decided, but not done yet
    WAIT_UNDECIDED = "wait-undecided"
    """For less than a minute: the cause of the last exit is not known yet."""
    OWN_RULE = "own-rule"  # start at once, as without a controller


NOTHING, HELD, EVIDENCE = "nothing", "held", "evidence"
RESTARTING, STOPPING, RECOVERING = "restarting", "stopping", "recovering"
DOING = (NOTHING, HELD, EVIDENCE, RESTARTING, STOPPING, RECOVERING)
"""Public: `remediation.doing` in `/v1/jobs`, and a label of the fleet's metrics."""


class StateRule(NamedTuple):
    doing: str
    wrappers: WrapperAnswer
    is_running: bool = False  # a worker has it; it takes a slot of the breaker
    may_collect: bool = False  # the pods may be asked for evidence
    is_written: bool = False  # it is in the ledger
    may_delete: bool = False  # old pods may be deleted, in these states only
    must_finish: bool = False  # the leader continues it; the ledger never drops it


_WAIT, _UNDECIDED = WrapperAnswer.WAIT, WrapperAnswer.WAIT_UNDECIDED

RULES: Mapping[RestartState, StateRule] = MappingProxyType(
    {
        _S.NONE: StateRule(NOTHING, _UNDECIDED),
        _S.HELD: StateRule(HELD, WrapperAnswer.WAIT_PENDING),
        _S.PREPARING: StateRule(EVIDENCE, _WAIT, is_running=True, may_collect=True),
        _S.COMMITTING: StateRule(RESTARTING, _WAIT, is_running=True),
        _S.PLANNED: StateRule(
            RESTARTING, _WAIT, is_running=True, is_written=True, may_delete=True, must_finish=True
        ),
        _S.DEFERRED: StateRule(HELD, _WAIT, is_written=True, must_finish=True),
        _S.SUSPENDED: StateRule(
            RESTARTING, _WAIT, is_running=True, is_written=True, may_delete=True, must_finish=True
        ),
        _S.CLEARED: StateRule(
            RESTARTING, _WAIT, is_running=True, is_written=True, must_finish=True
        ),
        _S.RELEASED: StateRule(RECOVERING, _UNDECIDED, is_written=True),
        _S.DONE: StateRule(NOTHING, _UNDECIDED, is_written=True),
    }
)


class IllegalTransition(RuntimeError):
    def __init__(self, state: RestartState, event: RestartEvent) -> None:
        super().__init__(f"a restart that is {state.value} does not take the event {event.value}")


def can(state: RestartState, event: RestartEvent) -> bool:
    return event in TRANSITIONS[state]


def after(state: RestartState, event: RestartEvent) -> RestartState:
    """Raises IllegalTransition."""
    if not can(state, event):
        raise IllegalTransition(state, event)
    return TRANSITIONS[state][event]


def doing(state: RestartState, *, is_stop: bool = False) -> str:
    shown = RULES[state].doing
    return STOPPING if is_stop and shown == RESTARTING else shown


_IN_LEDGER = {"planned": _S.PLANNED, "suspended": _S.SUSPENDED}
_LEDGER_DONE = "done"


def ledger_word(state: RestartState) -> str:
    """Return the value of a state in the ledger, which every release can read.

    The order beside it shows whether wrappers may start.
    """
    if state is RestartState.DEFERRED:
        state = after(state, RestartEvent.RETRIED)
    return next((word for word, known in _IN_LEDGER.items() if known is state), _LEDGER_DONE)


def from_ledger(word: str, *, has_order: bool, may_start: bool) -> RestartState:
    """Raises ValueError for an unknown word."""
    if word in _IN_LEDGER:
        return _IN_LEDGER[word]
    if word != _LEDGER_DONE:
        raise ValueError(f"{word!r} is not a state of a restart")
    if not has_order:
        return RestartState.DONE
    return RestartState.RELEASED if may_start else RestartState.CLEARED
