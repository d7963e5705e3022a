# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reading the records of a pod's ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mwatch.model.observation import Beat, Observed
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.sources import probe as source
from mwatch.sources.probe import ProbeSource, RankReading
from mwatch_trainer.probe.record_file import ProbeRecord, pack
from support.builders.probe import RECORD

NOW = RECORD.monotonic + 0.5


@pytest.fixture
def records(tmp_path: Path) -> Path:
    (tmp_path / "probe").mkdir()
    return tmp_path


def put(folder: Path, record: ProbeRecord, sequence: int = 2) -> None:
    (folder / "probe" / f"rank-{record.rank}").write_bytes(pack(record, sequence))


def of(reading: Reading[tuple[RankReading, ...]]) -> dict[int, RankReading]:
    assert isinstance(reading, Ok)
    return {each.beat.rank: each for each in reading.value}


def test_a_record_is_a_beat_with_its_age(records: Path) -> None:
    put(records, RECORD)
    found = of(ProbeSource(str(records), "pod-0").read_ranks(NOW))[5]
    assert found.beat == Beat(5, 8, 610, "compute", "00c0ffee", 4242, 3)
    assert (found.age_seconds, found.is_new) == (0.5, True)


def test_what_is_not_known_is_none(records: Path) -> None:
    put(records, RECORD._replace(world_size=-1, iteration=-1, attempt=-1, phase=""))
    beat = of(ProbeSource(str(records), "pod-0").read_ranks(NOW))[5].beat
    assert (beat.world_size, beat.iteration, beat.attempt, beat.phase) == (None, None, None, "")


def test_ranks_come_in_order(records: Path) -> None:
    for rank in (10, 9, 2):
        put(records, RECORD._replace(rank=rank))
    assert list(of(ProbeSource(str(records), "pod-0").read_ranks(NOW))) == [2, 9, 10]


def test_a_record_that_stands_still_grows_old_and_is_not_new(records: Path) -> None:
    put(records, RECORD)
    folder = ProbeSource(str(records), "pod-0")
    folder.read_ranks(NOW)
    silent = of(folder.read_ranks(NOW + 9))[5]
    assert (silent.age_seconds, silent.is_new) == (9.5, False)
    put(records, RECORD._replace(ticks=13, monotonic=NOW + 9.5))
    again = of(folder.read_ranks(NOW + 10))[5]
    assert (again.age_seconds, again.is_new) == (0.5, True)


def test_no_folder_and_no_record_are_absent_not_empty(tmp_path: Path) -> None:
    assert isinstance(ProbeSource(str(tmp_path), "pod-0").read_ranks(NOW), Absent)
    (tmp_path / "probe").mkdir()
    assert isinstance(ProbeSource(str(tmp_path), "pod-0").read_ranks(NOW), Absent)


def test_a_folder_that_cannot_be_listed_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "probe").write_text("")
    failed = ProbeSource(str(tmp_path), "pod-0").read_ranks(NOW)
    assert isinstance(failed, Failed)
    assert "probe" in failed.error


def test_records_of_an_older_attempt_do_not_count(records: Path) -> None:
    put(records, RECORD._replace(rank=0, attempt=2))
    put(records, RECORD._replace(rank=1, attempt=3))
    folder = ProbeSource(str(records), "pod-0")
    assert list(of(folder.read_ranks(NOW))) == [1]
    assert list(of(folder.read_ranks(NOW, attempt=3))) == [1]
    assert list(of(folder.read_ranks(NOW, attempt=2))) == [0]
    assert isinstance(folder.read_ranks(NOW, attempt=4), Absent)


def test_records_of_before_torchrun_started_anew_do_not_count(records: Path) -> None:
    for rank in (0, 1):
        put(records, RECORD._replace(rank=rank))
    folder = ProbeSource(str(records), "pod-0")
    folder.read_ranks(NOW)
    put(records, RECORD._replace(rank=0, restart_count=1, pid=5))
    assert list(of(folder.read_ranks(NOW))) == [0]


def test_a_rank_whose_record_is_gone_is_no_longer_listed(records: Path) -> None:
    for rank in (0, 1):
        put(records, RECORD._replace(rank=rank))
    folder = ProbeSource(str(records), "pod-0")
    folder.read_ranks(NOW)
    (records / "probe" / "rank-1").unlink()
    assert list(of(folder.read_ranks(NOW))) == [0]


def test_strange_files_are_passed_over(records: Path) -> None:
    put(records, RECORD)
    whole = pack(RECORD, 2)
    probe = records / "probe"
    (probe / "rank-x").write_bytes(whole)
    (probe / "rank-5.tmp").write_bytes(whole)
    (probe / "rank-7").write_bytes(whole)  # of rank 5, it says
    (probe / "rank-8").write_bytes(whole[:100])
    (probe / "rank-9").mkdir()
    (probe / "rank-10").symlink_to(probe / "rank-5")
    os.mkfifo(probe / "rank-11")
    assert list(of(ProbeSource(str(records), "pod-0").read_ranks(NOW))) == [5]


def test_a_torn_record_is_passed_over(records: Path) -> None:
    put(records, RECORD, sequence=3)
    assert isinstance(ProbeSource(str(records), "pod-0").read_ranks(NOW), Absent)


def test_no_more_files_than_a_bound_are_read(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MAX_RECORDS", 3)
    for rank in range(9):
        put(records, RECORD._replace(rank=rank))
    assert len(of(ProbeSource(str(records), "pod-0").read_ranks(NOW))) == 3


def test_a_clock_of_its_own_is_identified_by_a_record_from_the_future(records: Path) -> None:
    put(records, RECORD)
    folder = ProbeSource(str(records), "pod-0")
    first = of(folder.read_ranks(10.0))[5]
    assert (first.age_seconds, first.is_new) == (0.0, False)  # it may be of before a reboot
    put(records, RECORD._replace(ticks=13))
    assert of(folder.read_ranks(11.0))[5].is_new
    assert of(folder.read_ranks(15.0))[5].age_seconds == 4.0


def test_as_observations_only_new_records_are_reported(records: Path) -> None:
    put(records, RECORD)
    probe = ProbeSource(str(records), "pod", clock=lambda: NOW, wall=lambda: 2000.0)
    beat = Beat(5, 8, 610, "compute", "00c0ffee", 4242, 3)
    assert probe.read() == Ok((Observed(1999.5, "pod", beat),))
    assert probe.read() == Ok(())
    assert [each.beat.rank for each in probe.ranks] == [5]


def test_a_probe_that_is_lost_shows_no_ranks(records: Path) -> None:
    put(records, RECORD)
    probe = ProbeSource(str(records), "pod", clock=lambda: NOW)
    probe.read()
    (records / "probe" / "rank-5").unlink()
    assert isinstance(probe.read(), Absent)
    assert probe.ranks == ()
