# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a watcher adds to a bundle: its own snapshot, the GPUs, and NCCL's word twice."""

from __future__ import annotations

from pathlib import Path

from mwatch.engine.engine import Engine
from mwatch.evidence.bundle import Content, Missing
from mwatch.watch.collector import PodSources, VolumeCollector
from mwatch.watch.incidents import EvidenceExtras
from support.builders.events import grammar
from support.builders.job import entries
from support.builders.run import TestClock
from support.fakes.fake_ras import FakeRas

NO_PROBES = ("127.0.0.1", 9)


def extras(volume: Path, ras: tuple[str, int] | None = None) -> EvidenceExtras:
    more = None
    if ras is not None:
        engine = Engine("r", entries())
        more = PodSources("p", engine, sys_root=str(volume), ras_address=ras)
    live = VolumeCollector(volume, "p", grammar(), entries(), TestClock(), more=more)
    return EvidenceExtras(live, lambda: b'{"version":1}', sleep=lambda seconds: None)


def test_the_snapshot_is_part_of_it_and_what_is_not_there_is_reported(tmp_path: Path) -> None:
    snapshot, gpus = extras(tmp_path)()
    assert snapshot == Content("snapshot.json", b'{"version":1}')
    assert isinstance(gpus, Missing)


def test_where_nobody_answers_for_nccl_both_times_are_missing(tmp_path: Path) -> None:
    found = list(extras(tmp_path, NO_PROBES)())
    assert [each.what for each in found if isinstance(each, Missing)][1:] == [
        "ras-1.txt",
        "ras-2.txt",
    ]


def test_nccl_is_asked_twice_and_its_words_are_kept_as_they_came(tmp_path: Path) -> None:
    ras = FakeRas('{"communicators": []}', '{"communicators": [], "later": 1}')
    try:
        found = [each for each in extras(tmp_path, ras.address)() if isinstance(each, Content)]
    finally:
        ras.close()
    assert [each.name for each in found] == ["snapshot.json", "ras-1.txt", "ras-2.txt"]
    assert found[1].data != found[2].data
    assert ras.asked == 2
