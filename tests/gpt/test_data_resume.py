# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A conversion that was stopped goes on, and ends with the bytes of one that was not."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpt.conversions import Stop, job, nothing, stop_after, stop_at_name
from gpt.corpora import both, convert, json_lines, many
from gpt.launch import ROOT
from mwatch_gpt.data import conversion
from mwatch_gpt.data.corpus import BadInput
from mwatch_gpt.data.writer import DatasetWriter, state_path
from support.waiting import PATIENCE, until


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("saves", [1, 3, 11])
def test_it_goes_on_where_it_was_stopped(tmp_path: Path, saves: int, packed: bool) -> None:
    source = json_lines(tmp_path / "a.jsonl", many(300))
    assert convert(source, tmp_path / "whole") == 0
    if packed:
        (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(source.read_bytes()))
        source = tmp_path / "a.jsonl.gz"
    with pytest.raises(Stop):
        conversion.convert(job(source, tmp_path / "cut"), stop_after(saves))
    names = {path.suffix for path in tmp_path.glob("cut*")}
    assert names == {".part", ".json"}, "nothing that training would take for a dataset"
    # What was written after the last save is of no use, and must not stay.
    with (tmp_path / "cut_text_document.bin.part").open("ab") as file:
        file.write(b"half a block")
    told = conversion.convert(job(source, tmp_path / "cut"), nothing)
    assert told.resumed_at is not None and told.resumed_at.line > 1
    assert both(tmp_path / "cut") == both(tmp_path / "whole")
    assert not list(tmp_path.glob("*.part"))


def test_a_stop_between_the_two_names_is_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = json_lines(tmp_path / "a.jsonl", many(20))
    assert convert(source, tmp_path / "whole") == 0
    stop_at_name(monkeypatch, ".idx")
    with pytest.raises(Stop):
        conversion.convert(job(source, tmp_path / "cut"), nothing)
    assert not (tmp_path / "cut_text_document.idx").exists()
    monkeypatch.undo()
    conversion.convert(job(source, tmp_path / "cut"), nothing)
    assert both(tmp_path / "cut") == both(tmp_path / "whole")


def test_a_finished_one_is_not_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = json_lines(tmp_path / "a.jsonl", many(20))
    assert convert(source, tmp_path / "o") == 0
    before = (tmp_path / "o_text_document.bin").stat().st_mtime_ns
    assert convert(source, tmp_path / "o") == 0
    assert "already made" in capsys.readouterr().out
    assert (tmp_path / "o_text_document.bin").stat().st_mtime_ns == before
    (tmp_path / "o_text_document.bin").unlink()
    assert convert(source, tmp_path / "o") == 0
    assert (tmp_path / "o_text_document.bin").exists()


@pytest.mark.usefixtures("small_blocks")
def test_half_written_of_another_input_is_refused_until_asked_otherwise(tmp_path: Path) -> None:
    source = json_lines(tmp_path / "a.jsonl", many(300))
    with pytest.raises(Stop):
        conversion.convert(job(source, tmp_path / "o"), stop_after(2))
    json_lines(source, many(400))
    with pytest.raises(BadInput, match="half-written"):
        conversion.convert(job(source, tmp_path / "o"), nothing)
    told = conversion.convert(job(source, tmp_path / "o", overwrite=True), nothing)
    assert (told.state.documents, told.resumed_at) == (400, None)


def test_a_dataset_of_somebody_elses_is_refused_until_asked_otherwise(tmp_path: Path) -> None:
    source = json_lines(tmp_path / "a.jsonl", many(20))
    for ending in ("bin", "idx"):
        (tmp_path / f"o_text_document.{ending}").write_bytes(b"theirs")
    assert convert(source, tmp_path / "o") == 2
    assert (tmp_path / "o_text_document.bin").read_bytes() == b"theirs"
    assert convert(source, tmp_path / "o", "--overwrite") == 0


@pytest.mark.usefixtures("small_blocks")
def test_parts_that_were_lost_and_a_broken_state_are_named(tmp_path: Path) -> None:
    source = json_lines(tmp_path / "a.jsonl", many(300))
    with pytest.raises(Stop):
        conversion.convert(job(source, tmp_path / "o"), stop_after(2))
    (tmp_path / "o_text_document.bin.part").write_bytes(b"")
    with pytest.raises(BadInput, match="--overwrite starts over"):
        conversion.convert(job(source, tmp_path / "o"), nothing)
    state_path(f"{tmp_path}/o_text_document").write_text("{")
    with pytest.raises(BadInput, match="cannot be read"):
        conversion.convert(job(source, tmp_path / "o"), nothing)
    assert conversion.convert(job(source, tmp_path / "o", overwrite=True), nothing)


@pytest.mark.usefixtures("small_blocks")
def test_after_a_bad_line_it_goes_on_without_it_when_asked_to(tmp_path: Path) -> None:
    lines = [json.dumps({"text": text}) for text in many(300)]
    lines[200] = "{broken"
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    source = tmp_path / "a.jsonl"
    with pytest.raises(BadInput, match=r"a\.jsonl:201: not a JSON object"):
        conversion.convert(job(source, tmp_path / "o"), nothing)
    lenient = job(source, tmp_path / "o")
    lenient = lenient._replace(wanted=lenient.wanted._replace(skip_bad=True))
    told = conversion.convert(lenient, nothing)
    assert told.resumed_at is not None
    assert (told.state.documents, told.state.left_out) == (299, 1)


HELD = """
import os, sys, time
from mwatch_gpt.data import conversion, tool
gate, whole = sys.argv.pop(1), conversion.blocks
def held(paths, start):
    for number, block in enumerate(whole(paths, start, 5000)):
        while number == 20 and not os.path.exists(gate): time.sleep(0.01)
        yield block
conversion.blocks = held
sys.exit(tool.main())
"""


def start(source: Path, prefix: Path) -> subprocess.Popen[bytes]:
    """It reads the twentieth block only when there is a file `gate` beside its input."""
    argv = ["--input", str(source), "--output-prefix", str(prefix), "--workers", "2"]
    gate = source.with_name("gate")
    return subprocess.Popen(
        [sys.executable, "-c", HELD, str(gate), *argv, "--save-seconds", "0"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "trainer")},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def children(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError):
            if folder.name.isdigit() and folder.joinpath("stat").read_text().rpartition(")")[
                2
            ].split()[1] == str(pid):
                found.append(int(folder.name))
    return found


def test_a_killed_process_leaves_no_workers_and_nothing_that_looks_whole(tmp_path: Path) -> None:
    """Real processes: starting the three takes a second or two."""
    source = json_lines(tmp_path / "a.jsonl", many(6000))
    process = start(source, tmp_path / "o")
    until(state_path(f"{tmp_path}/o_text_document").exists)
    workers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (tmp_path / "gate").touch()
    assert len(workers) >= 2
    until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers))
    assert not (tmp_path / "o_text_document.idx").exists()
    again = start(source, tmp_path / "o")
    assert again.wait(PATIENCE) == 0
    assert convert(source, tmp_path / "whole") == 0
    assert both(tmp_path / "o") == both(tmp_path / "whole")


def test_a_killed_worker_is_the_machines_doing_and_not_the_inputs(tmp_path: Path) -> None:
    """Real processes, as above."""
    source = json_lines(tmp_path / "a.jsonl", many(6000))
    process = start(source, tmp_path / "o")
    until(state_path(f"{tmp_path}/o_text_document").exists)
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(process.pid)}
    worker = next(pid for pid, line in lines.items() if b"spawn_main" in line)
    os.kill(worker, signal.SIGKILL)
    (tmp_path / "gate").touch()
    assert process.wait(PATIENCE) == 3
    assert not (tmp_path / "o_text_document.idx").exists()


def test_a_writer_that_was_never_opened_can_be_closed(tmp_path: Path) -> None:
    writer = DatasetWriter(str(tmp_path / "o"), "H")
    writer.close()
    writer.clear()
    assert not writer.is_finished
