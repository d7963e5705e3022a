# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which dumps belong together, and what they add to a log: the way of `mwatch diagnose DIR`."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mwatch.evidence.flight_files import gather, signs_of
from mwatch.model.cause import Cause
from mwatch.model.finding import CulpritState
from mwatch.model.observation import SignState
from mwatch.replay.replay import ReplayRequest, replay
from mwatch.report.run_report import RunReport
from support.builders.flight import T0, Flight, layout, steps
from support.builders.flight_format import pickled

REAL = Path(__file__).resolve().parents[1] / "flight"


def put(folder: Path, flight: Flight, ranks: Sequence[int], later: float = 0.0) -> None:
    """The dumps of these ranks, taken ten seconds after the last call."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        document = flight.dump(rank)
        for each in document["entries"]:
            each["time_created_ns"] += int(later * 1e9)
        path = folder / f"rank-{rank}.flight.pickle"
        path.write_bytes(pickled(document))
        os.utime(path, (T0 + later + 10, T0 + later + 10))


def hung(culprit: int = 2, world: dict[str, list[tuple[int, ...]]] | None = None) -> Flight:
    return Flight(world or layout(tp=2, dp=2), stops={culprit: 9}).play(steps(8))


def log(folder: Path, ends: float, zone_hours: float = 0.0, lines: int = 20) -> None:
    rows = []
    for number in range(1, lines + 1):
        at = ends + zone_hours * 3600 - 2 * (lines - number)
        moment = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
        rows.append(
            f" [{moment}] iteration {number:8d}/     500 | consumed samples: {number * 32:12d} | "
            "elapsed time per iteration (ms): 2000.0 | learning rate: 5.999998E-05 | "
            "global batch size:    32 | lm loss: 6.002230E+00 | loss scale: 1.0 | "
            "grad norm: 0.791 | number of skipped iterations:   0 | "
            "number of nan iterations:   0 |"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer.log").write_text("\n".join(rows) + "\n")


def diagnosed(*names: Path) -> RunReport:
    return replay(ReplayRequest([str(name) for name in names]), now=T0 + 1e6)


def culprit(report: RunReport) -> tuple[int | None, CulpritState | None] | None:
    who = report.verdict.culprit
    return None if who is None else (who.rank, who.state)


@pytest.mark.parametrize(
    ("name", "rank", "state"),
    [
        ("never-joined-rank-2", 2, CulpritState.NEVER_JOINED),
        ("gone-rank-0", 0, CulpritState.SILENT),
        ("wrong-kind-rank-2", 2, CulpritState.OUT_OF_STEP),
    ],
)
def test_a_folder_of_dumps_alone_names_the_culprit(
    name: str, rank: int, state: CulpritState
) -> None:
    report = diagnosed(REAL / name)
    assert (report.verdict.cause, culprit(report)) == (Cause.HANG, (rank, state))
    assert report.exit_code == 1
    assert "one witness" in report.decision.reason
    assert report.finding is not None and len(report.finding.evidence) > 2


def test_dumps_may_be_named_one_by_one() -> None:
    files = sorted((REAL / "never-joined-rank-2").iterdir())
    assert culprit(diagnosed(*files)) == (2, CulpritState.NEVER_JOINED)


def test_the_coordinates_come_from_the_groups() -> None:
    who = diagnosed(REAL / "never-joined-rank-2").verdict.culprit
    assert who is not None and who.coordinates == {"tp": 0, "dp": 1}


def test_a_log_and_dumps_name_the_culprit_with_the_iteration(tmp_path: Path) -> None:
    log(tmp_path, ends=T0 - 1)
    put(tmp_path / "dumps", hung(), range(4))
    report = diagnosed(tmp_path)
    assert (report.verdict.cause, culprit(report)) == (Cause.HANG, (2, CulpritState.NEVER_JOINED))
    assert report.verdict.since_iteration == 21
    assert report.iteration == 20


def test_a_log_of_another_zone_is_of_the_same_time(tmp_path: Path) -> None:
    log(tmp_path, ends=T0 - 1, zone_hours=5.5)
    put(tmp_path / "dumps", hung(), range(4))
    assert culprit(diagnosed(tmp_path)) == (2, CulpritState.NEVER_JOINED)


def test_dumps_from_before_the_last_progress_are_left_out(tmp_path: Path) -> None:
    log(tmp_path, ends=T0 + 400)
    put(tmp_path / "dumps", hung(), range(4))
    report = diagnosed(tmp_path)
    assert report.verdict.cause is not Cause.HANG
    assert any("older than the end of the log" in note for note in report.notes)


def test_who_was_caught_in_the_middle_of_a_step_is_not_accused(tmp_path: Path) -> None:
    put(tmp_path, hung(), range(4))
    for path in tmp_path.iterdir():
        os.utime(path, (T0 + 1, T0 + 1))
    assert diagnosed(tmp_path).verdict.cause is not Cause.HANG


def test_folders_of_several_nodes_are_one_job(tmp_path: Path) -> None:
    flight = hung()
    put(tmp_path / "node0", flight, [0, 1])
    put(tmp_path / "node1", flight, [2, 3])
    found = gather([str(tmp_path)])[0]
    assert found is not None and sorted(found.dumps) == [0, 1, 2, 3]


def test_of_several_requests_the_newest_counts(tmp_path: Path) -> None:
    put(tmp_path / "a", hung(culprit=1), range(4), later=3600)
    put(tmp_path / "b", hung(culprit=3), range(4))
    assert culprit(diagnosed(tmp_path)) == (1, CulpritState.NEVER_JOINED)
    found = gather([str(tmp_path)])[0]
    assert found is not None and "1 older sets" in found.notes[0]


def test_a_damaged_dump_counts_as_missing_and_is_reported(tmp_path: Path) -> None:
    put(tmp_path, hung(), range(4))
    whole = (tmp_path / "rank-2.flight.pickle").read_bytes()
    (tmp_path / "rank-2.flight.pickle").write_bytes(whole[: len(whole) // 2])
    report = diagnosed(tmp_path)
    assert culprit(report) == (2, CulpritState.SILENT)
    assert "rank-2.flight.pickle: is cut short or damaged" in report.notes


def test_both_forms_and_both_recorders_of_a_rank_are_one_dump(tmp_path: Path) -> None:
    shutil.copytree(REAL / "never-joined-rank-2", tmp_path / "all")
    other = Flight(layout(tp=2, dp=2), "gloo").play(steps(2))
    for rank in range(4):
        path = tmp_path / "all" / f"rank-{rank}.flight-gloo.pickle"
        path.write_bytes(pickled(other.dump(rank)))
        (tmp_path / "all" / f"rank-{rank}.pickle").write_bytes(b"\x80\x02pg_config")
    found, names = gather([str(tmp_path)])
    assert found is not None and sorted(found.dumps) == [0, 1, 2, 3]
    assert not found.notes, "the other form was read"
    assert names == [str(tmp_path)]


def test_the_dump_of_one_request_on_the_volume_gives_signs(tmp_path: Path) -> None:
    put(tmp_path / "dumps" / "case-1", hung(), range(4))
    found = signs_of(tmp_path, "case-1")
    assert [(each.rank, each.state) for each in found[:2]] == [
        (2, SignState.NEVER_JOINED),
        (0, SignState.STUCK),
    ]
    assert signs_of(tmp_path, "case-2") == []


def test_a_rank_whose_recording_is_still_being_written_is_waited_for_and_not_accused(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "dumps" / "case-1"
    put(folder, hung(), [1, 2, 3])
    for rank in range(4):
        (folder / f"rank-{rank}.stacks.txt").write_text("main thread\n")
    missing = Flight(layout(tp=2, dp=2), stops={0: 4}).play(steps(8))
    put(folder, missing, [1, 2, 3])
    early = signs_of(tmp_path, "case-1", wait_seconds=0.0)
    assert [(each.rank, each.state) for each in early] == [(None, SignState.FLAT)]
    writer = threading.Timer(0.3, lambda: put(folder, missing, [0]))
    writer.start()
    found = signs_of(tmp_path, "case-1", wait_seconds=5.0)
    writer.join()
    assert (found[0].rank, found[0].state) == (0, SignState.NEVER_JOINED)


def test_who_was_asked_in_vain_is_named_and_who_is_of_another_pod_is_not(tmp_path: Path) -> None:
    flight = Flight(layout(tp=2, dp=4), stops={1: 4}).play(steps(8))
    folder = tmp_path / "dumps" / "case-1"
    put(folder, flight, [0, 2, 3])
    assert signs_of(tmp_path, "case-1", 8)[0].state is SignState.FLAT
    (folder / "missing.json").write_text('{"version": 1, "ranks": [{"rank": 1, "why": "T"}]}')
    found = signs_of(tmp_path, "case-1", 8)[0]
    assert (found.rank, found.state) == (1, SignState.STOPPED)
    assert "did not answer" in found.text
    (folder / "missing.json").write_text('{"version": 1, "ranks": []}')
    assert signs_of(tmp_path, "case-1", 8)[0].state is SignState.FLAT
