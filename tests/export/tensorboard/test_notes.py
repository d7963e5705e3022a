# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Notes for TensorBoard, read back by TensorBoard's own reader."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from mwatch.export.tensorboard.notes import FINDING_SECONDS, MAX_TEXTS, TensorboardNotes
from mwatch.model.finding import Severity
from support.builders.notes import ACTED, HANG, STALLED, at, points, texts, written
from support.builders.snapshot import empty_snapshot

SECRET = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345678"


def test_an_incident_is_a_point_where_it_happened_and_a_text_that_says_what_was_done(
    tmp_path: Path,
) -> None:
    found = written(
        tmp_path, lambda notes: notes.update(at(45)), lambda notes: notes.incident(ACTED)
    )
    assert points(found, "mwatch/incident") == [(42, 1.0)]
    ((step, text),) = texts(found, "mwatch/incidents")
    assert step == 42
    assert text.startswith("### hang: no progress for 9 s")
    for words in (
        "rank 3 (tp 1), node node-7: stuck",
        "restart: two witnesses agree",
        "iteration 40 (newest complete)",
        "/ckpt/.mwatch/incidents/20260105T121314Z-a1-hang",
        "2026-01-05 12:13:14 UTC",
    ):
        assert words in text


def test_tensorboard_takes_it_for_a_text_and_not_for_a_tensor(tmp_path: Path) -> None:
    found = written(tmp_path, lambda notes: notes.incident(HANG))
    assert found.SummaryMetadata("mwatch/incidents").plugin_data.plugin_name == "text"


def test_the_loss_there_is_a_point_on_the_loss_curve(tmp_path: Path) -> None:
    def train(notes: TensorboardNotes) -> None:
        for number in range(38, 46):
            notes.update(at(number, loss=float(number)))

    found = written(tmp_path, train, lambda notes: notes.incident(HANG))
    assert points(found, "lm loss") == [(42, 42.0)]


def test_a_loss_that_is_no_number_is_not_drawn(tmp_path: Path) -> None:
    def train(notes: TensorboardNotes) -> None:
        notes.update(at(41, loss=2.5))
        notes.update(at(42, loss=float("nan")))

    found = written(tmp_path, train, lambda notes: notes.incident(HANG))
    assert points(found, "lm loss") == [(42, 2.5)]


def test_without_an_iteration_of_its_own_it_stands_at_the_newest(tmp_path: Path) -> None:
    unknown = replace(HANG, first_bad_iteration=None)
    other = replace(unknown, id="20260105T121315Z-a1-hang")
    found = written(
        tmp_path,
        lambda notes: notes.update(at(57)),
        lambda notes: notes.incident(unknown),
        lambda notes: notes.incident(other, 55),
    )
    assert points(found, "mwatch/incident") == [(57, 1.0), (55, 2.0)]


def test_a_record_is_reported_again_only_when_it_says_something_new(tmp_path: Path) -> None:
    def change(notes: TensorboardNotes) -> None:
        for record in (HANG, HANG, ACTED, ACTED):
            notes.incident(record)
        for number in range(50):
            notes.incident(replace(ACTED, summary=f"word {number}"))

    found = written(tmp_path, change)
    assert len(points(found, "mwatch/incident")) == 1
    assert len(texts(found, "mwatch/incidents")) == MAX_TEXTS


def test_the_newest_text_lists_the_earlier_incidents(tmp_path: Path) -> None:
    def many(notes: TensorboardNotes) -> None:
        for number in range(30):
            id = f"20260105T1213{number:02d}Z-a{number + 1}-hang"
            notes.incident(replace(HANG, id=id, first_bad_iteration=1000 + number))

    _, text = texts(written(tmp_path, many), "mwatch/incidents")[-1]
    assert text.count("| hang | none |") == 20
    assert "| 1028 |" in text


def test_goodput_and_restarts_are_curves(tmp_path: Path) -> None:
    def train(notes: TensorboardNotes) -> None:
        notes.update(at(1, goodput=0.5))
        notes.update(at(2, goodput=0.6))
        notes.update(replace(at(3, goodput=0.9), at=at(2).at + 1))
        notes.update(at(1, attempt=2, goodput=0.7))

    found = written(tmp_path, train)
    goodput = points(found, "mwatch/goodput")
    assert [(step, round(value, 3)) for step, value in goodput[:2]] == [(1, 0.5), (2, 0.6)]
    assert points(found, "mwatch/restarts") == [(1, 0.0), (1, 1.0)]


def test_a_finding_is_shown_while_it_lasts_and_reported_when_it_comes(tmp_path: Path) -> None:
    def stall(notes: TensorboardNotes) -> None:
        notes.update(at(10))
        notes.update(at(10, findings=(STALLED, replace(STALLED, severity=Severity.WARNING))))
        notes.update(at(11))

    found = written(tmp_path, stall)
    assert points(found, "mwatch/finding/stalled") == [(10, 2.0), (11, 0.0)]
    ((step, text),) = texts(found, "mwatch/findings")
    assert (step, text) == (10, "**stalled**, critical: no progress for 9 s")


def test_a_finding_that_comes_and_goes_does_not_fill_the_file(tmp_path: Path) -> None:
    def flap(notes: TensorboardNotes) -> None:
        for second in range(600):
            found = (STALLED,) if second % 2 else ()
            notes.update(replace(at(10, findings=found), at=1000.0 + second))

    found = written(tmp_path, flap)
    assert len(points(found, "mwatch/finding/stalled")) <= 600 / FINDING_SECONDS + 1


def test_a_quiet_job_leaves_no_file(tmp_path: Path) -> None:
    notes = TensorboardNotes(tmp_path)
    notes.update(empty_snapshot())
    notes.close(60.0)
    assert list(tmp_path.iterdir()) == []


def test_it_is_a_file_of_its_own_that_only_we_can_read(tmp_path: Path) -> None:
    theirs = tmp_path / "events.out.tfevents.1.host.1.0"
    theirs.write_bytes(b"theirs")
    written(tmp_path, lambda notes: notes.incident(HANG))
    assert theirs.read_bytes() == b"theirs"
    (own,) = (tmp_path / "mwatch").iterdir()
    assert own.name.startswith("events.out.tfevents.")
    assert own.name.endswith(".mwatch")
    assert stat.S_IMODE(own.stat().st_mode) == 0o600


def test_a_secret_is_in_no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MWATCH_SCRUB", r"ours-\d+")
    notes = TensorboardNotes(tmp_path)
    notes.update(at(1, findings=(replace(STALLED, summary=f"key {SECRET} | ours-77"),)))
    notes.incident(replace(HANG, summary=f"x | {SECRET}\n| y", reason="ours-77"))
    notes.close(60.0)
    body = b"".join(each.read_bytes() for each in (tmp_path / "mwatch").iterdir())
    assert SECRET.encode() not in body
    assert b"ours-77" not in body
    assert b"x \\| [scrubbed" in body


def test_what_it_cost_and_that_it_began_anew_is_reported(tmp_path: Path) -> None:
    over = replace(
        ACTED, resume_from=None, is_carried_out=False, lost_iterations=12, gpu_seconds=3600.4
    )
    ((_, text),) = texts(written(tmp_path, lambda notes: notes.incident(over)), "mwatch/incidents")
    assert "| resumed from | the beginning |" in text
    assert "| lost | 12 iterations, 3600 GPU-seconds |" in text
    assert "restart (only observed: not carried out): two witnesses agree" in text
