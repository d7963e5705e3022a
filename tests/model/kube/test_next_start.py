# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What wrappers are told comes through the ledger unchanged, and is what their reader takes."""

from __future__ import annotations

import json

from msgspec import structs

from mwatch.model.kube.ledger import CommonCause, Halt, JobEntry, LedgerData, from_data, to_data
from mwatch.model.kube.next_start import NextStart, RestartRequest
from mwatch.model.timeline import Quarantine, Rollback
from mwatch_trainer.attempt.order import parse

ROLLBACK = Rollback(90.0, 400, 451, "NaN", ((450, 80.0),))
START = NextStart(
    4, 400, False, "older than the first bad sign", True, (ROLLBACK,), Quarantine(9.0, 7, "x"), 95.0
)


def kept(entry: JobEntry) -> JobEntry:
    return from_data(to_data(LedgerData({"Job.x": entry}))).of("Job.x")


def test_an_order_and_a_request_outlive_the_controller() -> None:
    wish = RestartRequest("id", 5.0, "ann", "stuck", 300)
    entry = kept(JobEntry(start=START, request=wish))
    assert entry.request == wish
    assert entry.start == structs.replace(START, rollbacks=(structs.replace(ROLLBACK, marked=()),))
    assert kept(JobEntry()).start is None and kept(JobEntry()).request is None


def test_the_wrapper_reads_what_is_reported() -> None:
    told = parse(json.loads(json.dumps(START.document(80.0))), "controller")
    assert told is not None and (told.number, told.resume_from, told.has_choice) == (4, 400, True)
    assert told.rollbacks[0].to_iteration == 400 and told.not_before == 95.0
    assert told.quarantine is not None and told.quarantine.first_bad == 7
    free = parse(structs.replace(START, has_choice=False).document(80.0), "controller")
    assert free is not None and not free.has_choice
    anew = structs.replace(START, resume_from=None, from_beginning=True).document(80.0)
    begins = parse(anew, "controller")
    assert begins is not None and begins.from_beginning and begins.has_choice


def test_a_ledger_of_common_causes_and_a_halt_is_read_again_and_bounded() -> None:
    causes = tuple(
        CommonCause(f"c{number}", 1.0, "volume x", tuple(f"Job.{each}" for each in range(100)))
        for number in range(20)
    )
    halt = Halt(1.0, None, "ann", "storm")
    book = from_data(to_data(LedgerData(halt=halt, common=causes)))
    assert book.halt == halt and len(book.common) == 8 and len(book.common[0].jobs) == 64
    assert book.common[-1].id == "c19"
    assert from_data(to_data(LedgerData(common=causes[:1]))).halt is None
