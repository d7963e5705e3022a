# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The table of a restart: every state is reached, ends, and is read back from any release."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import structs

from mwatch.model.kube.gang import GangStep, Method
from mwatch.model.kube.job import JobKind
from mwatch.model.kube.ledger import JobEntry, LedgerData, from_data, to_data
from mwatch.model.kube.next_start import NextStart
from mwatch.model.kube.restart_state import (
    DOING,
    RULES,
    TRANSITIONS,
    IllegalTransition,
    RestartEvent,
    RestartState,
    WrapperAnswer,
    after,
    can,
    doing,
    from_ledger,
)

STATES = list(RestartState)
START = NextStart(4, 450, False, "the newest complete one")


def reachable(state: RestartState) -> set[RestartState]:
    found, new = {state}, [state]
    while new:
        for each in set(TRANSITIONS[new.pop()].values()) - found:
            found.add(each)
            new.append(each)
    return found


def entry(state: RestartState, start: NextStart | None) -> JobEntry:
    step = GangStep(
        "i1", Method.DELETE_PODS, JobKind.JOB, "ns", "x", "u", ("a", "b"), 1.0, 3, state=state
    )
    return JobEntry(uid="u", step=step, start=start, attempt=4)


def test_every_state_and_event_is_used_and_each_restart_can_end() -> None:
    assert reachable(RestartState.NONE) == set(STATES) == set(TRANSITIONS) == set(RULES)
    assert {event for each in TRANSITIONS.values() for event in each} == set(RestartEvent)
    ends = {RestartState.NONE, RestartState.DONE}
    assert all(reachable(each) & ends for each in STATES)


def test_only_the_ledger_leads_to_a_delete_and_nothing_leads_out_of_it_unfinished() -> None:
    for state, rule in RULES.items():
        assert rule.is_written or not (rule.may_delete or rule.must_finish)
        assert not (rule.may_collect and rule.is_written), "evidence comes before the ledger"
        if rule.is_written:
            assert all(RULES[each].is_written for each in reachable(state)), state
        if rule.must_finish:
            assert rule.wrappers is WrapperAnswer.WAIT, "nobody starts beside the old gang"
        assert {doing(state), doing(state, is_stop=True)} <= set(DOING)
    assert doing(RestartState.PLANNED, is_stop=True) == "stopping"
    assert doing(RestartState.DEFERRED, is_stop=True) == "held"


@pytest.mark.parametrize("state", STATES)
def test_an_event_that_the_table_does_not_have_is_an_error(state: RestartState) -> None:
    for event in RestartEvent:
        if not can(state, event):
            with pytest.raises(IllegalTransition, match=event.value):
                after(state, event)


@pytest.mark.parametrize(
    ("word", "start", "state"),
    [
        ("planned", START, RestartState.PLANNED),
        ("suspended", START, RestartState.SUSPENDED),
        ("done", START, RestartState.CLEARED),
        ("done", structs.replace(START, not_before=9.0), RestartState.RELEASED),
        ("done", None, RestartState.DONE),
        ("planned", None, RestartState.PLANNED),
    ],
)
def test_an_entry_of_an_older_release_is_understood_and_written_in_its_words(
    word: str, start: NextStart | None, state: RestartState
) -> None:
    """A controller is upgraded, or goes back, in the middle of a restart."""
    data = to_data(LedgerData({"Job.x": entry(state, start)}))
    body: dict[str, Any] = json.loads(data["Job.x"])
    assert body["version"] == 1 and body["step"]["state"] == word
    assert from_data(data).of("Job.x").state is state


def test_a_deferred_restart_is_retried_by_the_next_controller() -> None:
    data = to_data(LedgerData({"Job.x": entry(RestartState.DEFERRED, START)}))
    assert from_data(data).of("Job.x").state is RestartState.PLANNED


def test_a_state_of_a_newer_release_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="paused"):
        from_ledger("paused", has_order=True, may_start=False)


def test_a_gang_that_is_gone_is_not_taken_for_one_that_is_there() -> None:
    planned = entry(RestartState.PLANNED, START)
    cleared = planned.cleared("all 2 pods are gone")
    assert cleared.state is RestartState.CLEARED and cleared.must_finish
    assert cleared.cleared("again") == cleared, "the first outcome stays"
    released = cleared.released(95.0)
    assert released.start is not None and released.start.not_before == 95.0
    assert released.released(99.0) == released, "the time does not move"
    assert planned.released(95.0) == planned, "nobody starts beside the old gang"
    done = released.fulfilled()
    assert done.state is RestartState.DONE and done.start is None and done.attempt == 4
    assert cleared.fulfilled() == cleared
    stopped = entry(RestartState.PLANNED, None).cleared("suspended")
    assert stopped.state is RestartState.DONE


def test_a_full_ledger_does_not_drop_an_order_that_nobody_has_released() -> None:
    newer = {f"Job.{number}": JobEntry(uid="u", updated_at=9.0) for number in range(50)}
    book = LedgerData({**newer, "Job.x": entry(RestartState.CLEARED, START)})
    assert "Job.x" in to_data(book, 2000)
