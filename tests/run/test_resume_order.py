# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`decision.json`: what the wrapper is told before it starts the command once more."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from mwatch.errors import InputError
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.observation import AttemptStart
from mwatch.model.timeline import Rollback
from mwatch.run.supervisor import NextAttempt
from mwatch_trainer import contract
from mwatch_trainer.attempt.order import parse
from support.builders.decide import finding
from support.builders.run import Told, gone_bad
from support.builders.volume import process, write_processes
from support.unprivileged import unprivileged


def killed(**change: Any) -> Decision:
    usual: dict[str, Any] = {"resume_from": 6, "resume_reason": "the newest", "finding": None}
    return Decision(Action.RESTART, Cause.KILLED, 1, "killed", **(usual | change))


def read(volume: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((volume / contract.DECISION).read_text("utf-8"))
    return found


def of(told: Told, volume: Path) -> NextAttempt:
    return NextAttempt(volume, told.engine.job, told.clock)


def test_a_restart_is_reported_in_full_and_in_the_shape_that_the_wrapper_reads(
    tmp_path: Path,
) -> None:
    told = gone_bad()
    of(told, tmp_path).order(killed())
    document = read(tmp_path)
    assert (document["attempt"], document["resume_from"]) == (2, 6)
    assert document["reason"] == "the newest"
    assert not document["from_beginning"]
    assert document["rollbacks"] == []
    order = parse(document, "decision.json")
    assert order is not None
    assert (order.number, order.resume_from, order.has_choice) == (2, 6, True)


def test_a_rollback_travels_with_its_reason(tmp_path: Path) -> None:
    told = gone_bad()
    decision = told.waits(1).decision
    told.enacts(decision)
    of(told, tmp_path).order(decision)
    (rollback,) = read(tmp_path)["rollbacks"]
    assert (rollback["to_iteration"], rollback["first_bad"]) == (6, 7)
    assert rollback["at"] == told.clock.now()
    order = parse(read(tmp_path), "decision.json")
    assert order is not None
    assert order.rollbacks[0].to_iteration == 6


def test_rollbacks_that_lie_beside_the_checkpoints_are_not_reported_again(tmp_path: Path) -> None:
    told = gone_bad()
    old = Rollback(5.0, 1, 2, "an earlier run")
    told.engine.job.timeline.roll_back(old)
    coming = of(told, tmp_path)
    coming.known([old])
    decision = told.waits(1).decision
    told.enacts(decision)
    coming.order(decision)
    assert [each["to_iteration"] for each in read(tmp_path)["rollbacks"]] == [6]


def test_a_rollback_is_reported_until_a_wrapper_has_taken_it(tmp_path: Path) -> None:
    """The one that was told of it may have died before it wrote it down."""
    told = gone_bad()
    coming = of(told, tmp_path)
    decision = told.waits(1).decision
    told.enacts(decision)
    coming.order(decision)
    first = read(tmp_path)["rollbacks"]
    told.sees(AttemptStart(2, 6, None))
    coming.order(killed())
    assert read(tmp_path)["rollbacks"][0] == first[0]


def test_a_run_without_any_good_checkpoint_begins_again(tmp_path: Path) -> None:
    told = gone_bad()
    bad = killed(resume_from=None, quarantine_from=1, finding=finding(Cause.NAN))
    of(told, tmp_path).order(bad)
    assert read(tmp_path)["from_beginning"] is True
    of(told, tmp_path).order(killed(resume_from=None))
    assert read(tmp_path)["from_beginning"] is False


def test_attempts_count_on_from_what_lies_beside_the_checkpoints(tmp_path: Path) -> None:
    told = gone_bad()
    told.engine.job.timeline.attempt = 41
    of(told, tmp_path).order(killed())
    assert read(tmp_path)["attempt"] == 42


def test_a_clock_that_was_set_forward_does_not_save_what_is_condemned(tmp_path: Path) -> None:
    told = gone_bad()
    decision = told.waits(1).decision
    told.enacts(decision)
    told.clock.set_forward = 3600.0
    coming = of(told, tmp_path)
    coming.order(decision)
    assert read(tmp_path)["rollbacks"][0]["at"] == told.clock.now() + 3600
    told.clock.set_forward = 7200.0
    coming.order(decision)
    assert read(tmp_path)["rollbacks"][0]["at"] == told.clock.now() + 3600, "it stays as told"


def test_what_the_last_processes_did_is_not_taken_for_the_next(tmp_path: Path) -> None:
    write_processes(tmp_path, 1.0, process(11, rank=1, state="T"))
    of(gone_bad(), tmp_path).order(killed())
    assert not (tmp_path / contract.NODE_FOLDER / contract.NODE_PROCESSES).exists()


def test_a_volume_that_cannot_be_written_to_is_an_error_and_nothing_is_forgotten(
    tmp_path: Path,
) -> None:
    told = gone_bad()
    coming = of(told, tmp_path)
    decision = told.waits(1).decision
    told.enacts(decision)
    os.chmod(tmp_path, 0o500)
    try:
        with unprivileged(), pytest.raises(InputError, match=os.strerror(errno.EACCES)):
            coming.order(decision)
    finally:
        os.chmod(tmp_path, 0o700)
    coming.order(decision)
    assert len(read(tmp_path)["rollbacks"]) == 1
