# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The evidence of incidents is saved aside, and belongs to the attempt it was taken in."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mwatch.evidence.collector import EvidenceCollector
from mwatch.model.observation import Sign, SignState
from mwatch_trainer import contract
from support.builders.volume import write_attempt
from support.waiting import until

REAL = Path(__file__).resolve().parents[1] / "flight" / "never-joined-rank-2"
ID = "20260105T121314Z-a1-hang"


class Attempt:
    number = 1


@contextmanager
def collecting(volume: Path) -> Iterator[tuple[EvidenceCollector, Attempt]]:
    attempt = Attempt()
    collector = EvidenceCollector(volume, "local", lambda: 9.0, lambda: attempt.number)
    try:
        yield collector, attempt
    finally:
        collector.close()


@contextmanager
def wrapper(
    volume: Path, before: Callable[[str], object] = lambda id: None
) -> Iterator[list[dict[str, Any]]]:
    """A control socket that says yes, leaves the dump of a hung job, and remembers requests.
    `before`: is called with what is asked for, and may hold up the answer."""
    asked: list[dict[str, Any]] = []
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(volume / contract.CONTROL))
    server.listen()

    def serve() -> None:
        while True:
            try:
                caller, _ = server.accept()
            except OSError:
                return
            with caller, caller.makefile("rwb") as file:
                asked.append(json.loads(file.readline()))
                before(asked[-1]["id"])
                put_dump(volume, asked[-1]["id"])
                file.write(b'{"ok": true}\n')

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def put_dump(volume: Path, id: str) -> None:
    """Rank 2 never joins what the others wait in."""
    folder = volume / contract.DUMPS_FOLDER / id
    folder.mkdir(parents=True)
    for file in REAL.glob("rank-*"):
        shutil.copy(file, folder)


def test_a_bundle_is_saved_while_the_watching_goes_on(tmp_path: Path) -> None:
    write_attempt(tmp_path)
    with collecting(tmp_path) as (collector, _):
        case = collector.want(ID, tmp_path / "incidents" / ID, 1)
        assert case.done.wait(60)
    assert case.bundle is not None
    assert "attempt.json" in {each.name for each in case.bundle.files}
    assert any(each.what == "dump" for each in case.bundle.missing), "no wrapper is there"


def test_one_that_is_waited_for_comes_before_those_that_are_not(tmp_path: Path) -> None:
    last = f"{ID}-5"

    def hold_the_first(id: str) -> None:
        """Until all others are behind the one that is waited for."""
        if len(asked) == 1 and id != last:
            until(lambda: collector._wanted and collector._wanted[0].id == last)

    with (
        collecting(tmp_path) as (collector, _),
        wrapper(tmp_path, hold_the_first) as asked,
    ):
        cases = [collector.want(f"{ID}-{n}", tmp_path / str(n), 1) for n in range(2, 6)]
        collector.wait(cases[-1])
        assert cases[-1].done.is_set()
        for each in cases:
            collector.wait(each)
    order = [request["id"] for request in asked]
    assert order.index(last) <= 1


def test_an_attempt_that_is_over_is_not_dumped(tmp_path: Path) -> None:
    with collecting(tmp_path) as (collector, attempt), wrapper(tmp_path) as asked:
        attempt.number = 2
        case = collector.want(ID, tmp_path / "x", 1)
        collector.wait(case)
    assert asked == []
    assert case.bundle is not None
    assert any("attempt 1 is over" in each.why for each in case.bundle.missing)


def test_more_than_can_be_done_is_not_kept_waiting(tmp_path: Path) -> None:
    with collecting(tmp_path) as (collector, _):
        cases = [collector.want(f"{ID}-{n}", tmp_path / str(n), 1) for n in range(100)]
        until(lambda: all(each.done.is_set() for each in cases))


def test_a_fault_of_ours_ends_neither_the_wait_nor_the_work(tmp_path: Path) -> None:
    with collecting(tmp_path) as (collector, _):
        broken = collector.want("not an id: /", tmp_path / "x", 1)
        collector.wait(broken)
        assert broken.bundle is None
        assert isinstance(collector.errors.pop(), ValueError)
        fine = collector.want(ID, tmp_path / "y", 1)
        collector.wait(fine)
        assert fine.bundle is not None


def test_closing_ends_the_thread(tmp_path: Path) -> None:
    before = {*threading.enumerate()}
    with collecting(tmp_path) as (collector, _):
        collector.want(ID, tmp_path / "x", 1)
    assert {*threading.enumerate()} <= before


def test_what_a_dump_says_is_noticed_once(tmp_path: Path) -> None:
    with collecting(tmp_path) as (collector, _), wrapper(tmp_path):
        collector.wait(collector.want(ID, tmp_path / "x", 1))
        signs = [each.what for each in collector.signs() if isinstance(each.what, Sign)]
        absent = [each.rank for each in signs if each.state is SignState.NEVER_JOINED]
        assert absent == [2]
        assert collector.signs() == []


def test_what_a_dump_says_is_not_reported_the_next_attempt(tmp_path: Path) -> None:
    with collecting(tmp_path) as (collector, attempt), wrapper(tmp_path):
        collector.wait(collector.want(ID, tmp_path / "x", 1))
        attempt.number = 2
        assert collector.signs() == []


def test_waiting_has_an_end(tmp_path: Path) -> None:
    """Somebody listens and never answers: a bundle has its limit."""
    with collecting(tmp_path) as (collector, _):
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(tmp_path / contract.CONTROL))
        server.listen()
        began = time.monotonic()
        case = collector.want(ID, tmp_path / "x", 1)
        server.close()
        collector.wait(case)
        assert time.monotonic() - began < 60
