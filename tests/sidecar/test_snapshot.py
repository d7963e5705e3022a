# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`/v1/snapshot`: what a controller reads of a pod, and that it reads the same as was seen."""

from __future__ import annotations

import os
from dataclasses import replace
from types import MappingProxyType

import pytest
from msgspec import structs

from mwatch import json_codec
from mwatch.export.http.server import Request
from mwatch.model.cause import Cause
from mwatch.model.finding import Culprit, Finding, Severity
from mwatch.model.job import SignSeen
from mwatch.model.observation import (
    AttemptStart,
    Beat,
    Observed,
    Sign,
    SignSource,
    SignState,
    StoredCheckpoint,
    StoredCheckpoints,
)
from mwatch.model.snapshot.pod import DataFile, Mount, PodFacts, PodId, TrainerEnd, WrapperState
from mwatch.model.snapshot.snapshot_wire import PodSnapshot, decode
from mwatch.sidecar.server import MAX_CHECKPOINTS, Evaluated, SnapshotPage
from mwatch.sources.probe import RankReading
from support.builders.snapshot import busy_snapshot
from support.builders.volume import ManualClock

WHO = PodId("gpt", "gpt-worker-3", "1234", "ml", "a-17", "boot", "0.1.0", 900.0, "act")
WRAPPER = WrapperState(
    3, "act", 950.0, 10, "a-17", 3, 8, ("--load /ckpt",), 40, "the newest", "/ckpt",
    TrainerEnd(990.0, 1, None, "a crash", 200), False, ("python", "x.py"),
)  # fmt: skip
POD = PodFacts(
    (DataFile("/data/a", 10, 5), DataFile("/data/b", None, None), DataFile("/d", None, None, True)),
    (Mount("/ckpt", "/ckpt", "nfs4", True, 10**12, 10**13),),
    "40",
)
SIGN = Sign(SignSource.CPU_TIME, SignState.FLAT, 5, "rank 5 rests")
BEAT = Beat(5, 8, 610, "compute", "00c0ffee", 4242, None)


class Page(SnapshotPage):
    def __init__(self) -> None:
        self.time = ManualClock(50.0)
        super().__init__(WHO, "life", clock=self.time)
        self.snapshot = busy_snapshot()

    def look(self, wrapper: WrapperState | None = WRAPPER, pod: PodFacts | None = POD) -> None:
        at = self.snapshot.at
        reading = RankReading(BEAT, 2.0, True)
        signs = [SignSeen(at - 1, "gpt-worker-3", SIGN)]
        self.update(
            Evaluated(self.snapshot, self.time.now, 7.0, (reading,), at, signs), wrapper, pod
        )

    def read(self, after: str = "") -> PodSnapshot:
        return decode(self.body(after))


@pytest.fixture
def page() -> Page:
    found = Page()
    found.look()
    return found


def stored(*iterations: int) -> Observed:
    each = (StoredCheckpoint(number, "complete", None, 5, 1.0) for number in iterations)
    return Observed(100.0, "gpt-worker-3", StoredCheckpoints("/ckpt", tuple(each)))


def test_a_reader_finds_all_that_was_seen(page: Page) -> None:
    found = page.read()
    at = page.snapshot.at
    assert found.who == WHO
    assert found.beats == (Observed(at - 2, "gpt-worker-3", BEAT),)
    assert found.signs == (Observed(at - 1, "gpt-worker-3", SIGN),)
    assert found.gpus == page.snapshot.gpus
    assert found.nccl == page.snapshot.nccl
    assert found.fabric == page.snapshot.fabric
    assert found.storage == page.snapshot.storage
    assert found.sources == {"log": True, "gpus": False}
    assert found.pod == POD
    assert [each.summary for each in found.findings] == [
        each.summary for each in page.snapshot.findings
    ]
    view = found.view
    assert (view.iteration, view.phase, view.is_blind) == (10, "training", True)


def test_times_of_the_wrapper_are_brought_to_the_clock_of_the_sidecar(page: Page) -> None:
    """Somebody has set the wall clock forward by 7 seconds since the sidecar was started."""
    found = page.read().wrapper
    assert found is not None
    assert found.exit is not None
    assert (found.started_at, found.exit.at) == (943.0, 983.0)
    assert found.argv == WRAPPER.argv


def test_clocks_that_differ_do_not_matter(page: Page) -> None:
    """Read three seconds after the look, by a reader whose clock is years off."""
    page.observe(Observed(page.snapshot.at - 10, "gpt-worker-3", AttemptStart(3, 40, 8)))
    page.time.now += 3
    found = page.read()
    assert found.age == 3
    start, beat, sign = found.observed(received_at=500.0)
    assert (start.at, beat.at, sign.at) == pytest.approx((487.0, 495.0, 496.0))


def test_a_cursor_gets_events_and_parts_only_when_they_are_new(page: Page) -> None:
    page.observe(stored(20))
    first = page.read()
    assert first.stored is not None
    same = page.read(first.cursor)
    assert (same.wrapper, same.stored, same.pod, same.events) == (None, None, None, ())
    assert same.beats, "what moves is always there"
    page.observe(stored(20))
    assert page.read(first.cursor).stored is None, "another look at the same"
    page.observe(stored(20, 40))
    page.observe(Observed(5.0, "gpt-worker-3", AttemptStart(4, None, None)))
    news = page.read(first.cursor)
    assert news.stored is not None
    assert isinstance(news.stored.what, StoredCheckpoints)
    assert len(news.stored.what.checkpoints) == 2
    assert [type(each.what) for each in news.events] == [AttemptStart]
    assert news.wrapper is None


def test_another_look_at_the_same_is_identified_by_its_time(page: Page) -> None:
    page.observe(stored(20))
    page.look()
    first = page.read()
    page.observe(stored(20)._replace(at=110.0))
    page.look()
    again = page.read(first.cursor)
    assert (first.stored_at, again.stored_at, again.stored) == (100.0, 110.0, None)
    (look,) = (
        each for each in page.read().observed(500.0) if isinstance(each.what, StoredCheckpoints)
    )
    assert look.at == pytest.approx(500.0 - page.snapshot.at + 110.0)


def test_the_listing_is_bounded_to_the_newest(page: Page) -> None:
    page.observe(stored(*range(1, 1000)))
    found = page.read().stored
    assert found is not None
    assert isinstance(found.what, StoredCheckpoints)
    assert len(found.what.checkpoints) == MAX_CHECKPOINTS
    assert found.what.checkpoints[-1].iteration == 999


def test_secrets_do_not_leave_and_what_is_left_is_still_json(page: Page) -> None:
    secret = "hf_" + "Q" * 34
    page.look(structs.replace(WRAPPER, host=secret))
    bad = Sign(SignSource.STACKS, SignState.STUCK, 1, f'password="{secret}" in "it"')
    page.observe(Observed(1.0, "p", AttemptStart(1, None, None)))
    looked = page._evaluated
    assert looked is not None
    page.update(looked._replace(signs=[SignSeen(1.0, "p", bad)]), None, None)
    body = page.body()
    assert secret.encode() not in body
    assert decode(body).wrapper is not None


def test_a_folder_whose_name_is_no_text_is_reported_all_the_same(page: Page) -> None:
    odd = os.fsdecode(b"/ckpt/\xff")
    page.observe(Observed(1.0, "p", StoredCheckpoints(odd, ())))
    assert page.read().stored is not None


def test_the_same_look_is_made_once(page: Page) -> None:
    page.body()
    made = page._made
    page.body()
    assert page._made is made
    page.look()
    page.body()
    assert page._made is not made


def test_the_page_reads_its_cursor_from_the_address(page: Page) -> None:
    page.observe(Observed(5.0, "p", AttemptStart(4, None, None)))

    def events(query: str) -> int:
        answer = page.page(Request("/v1/snapshot", {}, query=query))
        assert answer.content_type == "application/json"
        return len(json_codec.decode(answer.body)["events"])

    assert events("") == 1
    assert events(f"after={page.read().cursor}") == 0


def test_before_the_first_look_it_is_no_snapshot() -> None:
    with pytest.raises(ValueError, match="not a snapshot"):
        decode(Page().body())


def test_when_an_iteration_rose_is_reported_for_who_asks_rarely(page: Page) -> None:
    at = page.snapshot.at
    reading = RankReading(BEAT, 2.0, True)
    page.update(
        Evaluated(page.snapshot, page.time.now, 0.0, (reading,), at, (), {5: at - 9}, 3.5),
        None,
        None,
    )
    found = page.read()
    assert [(row.rank, row.rose_at()) for row in found.ranks] == [(5, at - 9)]
    assert found.view.step_seconds == 3.5
    beats = [each for each in found.observed(1000.0) if isinstance(each.what, Beat)]
    assert [each.at for each in beats] == [pytest.approx(991.0), pytest.approx(998.0)]


def test_maps_that_cannot_be_changed_are_sent_as_objects(page: Page) -> None:
    fixed = MappingProxyType({"tp": 1})
    finding = Finding(
        "stalled", Cause.HANG, Severity.CRITICAL, "x", culprit=Culprit(3, None, fixed)
    )
    gpu = structs.replace(page.snapshot.gpus[0], nvlink_errors=MappingProxyType({"crc": 4}))
    page.snapshot = replace(page.snapshot, gpus=(gpu,), findings=(finding,))
    page.look()
    found = page.read()
    assert found.gpus == (gpu,)
    assert found.findings == (finding,)
