# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Ledger, Events and tokens on the real API server."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster import kube_things as things
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError, NoPermission
from mwatch.kube.events import Events
from mwatch.kube.ledger import Ledger
from mwatch.kube.resources import EVENTS, SECRETS
from mwatch.model.kube.ledger import JobEntry, LedgerData, LedgerNote
from mwatch.remediate.bookkeeping import Tokens


def noted(key: str, what: str, at: float = 1.0) -> Callable[[LedgerData], LedgerData]:
    def change(book: LedgerData) -> LedgerData:
        entry = book.of(key)
        notes = (*entry.notes, LedgerNote(at, "me", what, "because"))
        return book.with_job(key, replace(entry, notes=notes, updated_at=at))

    return change


def test_a_ledger_survives_its_controller(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    ledger = Ledger(access, namespace)
    assert ledger.read() == LedgerData()
    ledger.change(noted("Job.a", "paused"))
    ledger.change(noted("Job.b", "resumed"))

    read = Ledger(access, namespace).read()

    assert {key: [note.what for note in entry.notes] for key, entry in read.jobs.items()} == {
        "Job.a": ["paused"],
        "Job.b": ["resumed"],
    }


def test_what_cannot_be_written_is_counted(access: Access) -> None:
    ledger = Ledger(access, "not-there")
    assert ledger.read() == LedgerData() and ledger.errors == 0
    with pytest.raises(KubeError):
        ledger.change(noted("Job.a", "paused"))
    assert ledger.errors == 1


def test_two_writers_at_once_lose_neither_word(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    one, two = Ledger(access, namespace), Ledger(access, namespace)
    one.change(noted("Job.a", "first"))
    calls = 0

    def slow(book: LedgerData) -> LedgerData:
        nonlocal calls
        calls += 1
        if calls == 1:  # somebody else writes between our read and our write
            two.change(noted("Job.a", "second"))
        return noted("Job.a", "third")(book)

    one.change(slow)

    assert calls == 2
    assert [note.what for note in one.read().of("Job.a").notes] == ["first", "second", "third"]


def test_a_ledger_that_is_too_long_keeps_the_newest(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    note = LedgerNote(1.0, "me", "x" * 20_000, "because")
    jobs = {f"Job.{index}": JobEntry(updated_at=float(index), notes=(note,)) for index in range(90)}

    Ledger(access, namespace).change(lambda book: replace(book, jobs=jobs))

    kept = Ledger(access, namespace).read().jobs
    assert "Job.89" in kept and kept["Job.89"].notes
    assert all(len(entry.notes) <= 1 for entry in kept.values())


def test_the_same_words_are_one_event_with_a_count(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace)
    events = Events(access, "one")
    for _ in range(3):
        assert events.emit(job, "GangRestart", "rank 3 is stuck", is_warning=True)
    assert events.emit(job, "GangRestart", "another cause")

    found = {
        each["message"]: each for each in access.call("GET", EVENTS.path(namespace)).body["items"]
    }

    assert {text: each["count"] for text, each in found.items()} == {
        "rank 3 is stuck": 3,
        "another cause": 1,
    }
    about = found["another cause"]["involvedObject"]
    assert (about["kind"], about["name"], about["uid"]) == ("Job", "train", job.uid)


def test_events_are_bounded_and_carry_no_secrets(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace)
    events = Events(access, "one", clock=lambda: 0.0)
    secret = "hf_" + "a1B2c3D4e5" * 4
    told = [events.emit(job, "News", f"{index} {secret}") for index in range(15)]

    assert told.count(True) == 10 and events.dropped == 5
    assert secret not in str(access.call("GET", EVENTS.path(namespace)).body)


def test_a_job_gets_one_token_from_whoever_asks(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    job = things.make_job(access, namespace)
    one, two = Tokens(access, namespace), Tokens(access, namespace)

    token = one.ensure(job)

    assert token == two.ensure(job) and len(token) == 43
    secret = access.get(SECRETS, namespace, "mwatch-train").body
    assert base64.b64decode(secret["data"]["token"]).decode() == token
    assert secret["metadata"]["ownerReferences"][0]["uid"] == job.uid
    other = things.make_job(access, namespace, "other")
    assert one.ensure(other) != token


def test_a_job_whose_secret_would_be_the_key_is_refused(access: Access) -> None:
    namespace = things.fresh_namespace(access)
    with pytest.raises(NoPermission):
        Tokens(access, namespace).ensure(things.make_job(access, namespace, "key"))
