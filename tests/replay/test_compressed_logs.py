# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Compressed logs and bundles are read as they are; damaged and endless ones are refused."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from mwatch.errors import InputError
from mwatch.model.cause import Cause
from mwatch.replay.replay import ReplayRequest, replay
from mwatch.report.run_report import RunReport
from mwatch.runtime import compressed
from mwatch.runtime.files import read_chunks
from support.runs.recorded import RunLog, moment

LATER = moment(30 * 86400.0)
Pack = Callable[[bytes], bytes]
PACKERS: dict[str, Pack] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}
EVERY = pytest.mark.parametrize("end", PACKERS)


def judged(*names: Path) -> RunReport:
    return replay(ReplayRequest([str(name) for name in names]), LATER)


def run_of(total: int = 300) -> str:
    return str(RunLog(total=total).start().steps(1, total).done())


def content(file: Path) -> bytes:
    return b"".join(chunk.data for chunk in read_chunks(str(file)))


@EVERY
def test_a_compressed_log_is_read_as_it_is(tmp_path: Path, end: str) -> None:
    file = tmp_path / f"train.log.{end}"
    file.write_bytes(PACKERS[end](run_of().encode()))
    report = judged(file)
    assert (report.verdict.cause, report.iteration) == (Cause.FINISHED, 300)
    assert judged(tmp_path).verdict.cause is Cause.FINISHED


@EVERY
def test_several_compressed_parts_are_one_file(tmp_path: Path, end: str) -> None:
    file = tmp_path / f"train.log.{end}"
    file.write_bytes(PACKERS[end](b"one\n") + PACKERS[end](b"two\n"))
    assert content(file) == b"one\ntwo\n"


def test_rotated_parts_are_read_in_their_order(tmp_path: Path) -> None:
    lines = run_of().splitlines(keepends=True)
    (tmp_path / "a.log.2.gz").write_bytes(gzip.compress("".join(lines[:90]).encode()))
    (tmp_path / "a.log.1.gz").write_bytes(gzip.compress("".join(lines[90:200]).encode()))
    (tmp_path / "a.log").write_text("".join(lines[200:]))
    report = judged(tmp_path)
    assert (report.verdict.cause, len(report.attempts)) == (Cause.FINISHED, 1)


@EVERY
def test_a_file_that_ends_too_early_is_read_as_far_as_it_goes(tmp_path: Path, end: str) -> None:
    file = tmp_path / f"train.log.{end}"
    packed = PACKERS[end](run_of(3000).encode())
    file.write_bytes(packed[: len(packed) // 2])
    if end == "zst":
        return  # what the library has of a cut frame is all there is
    read: list[bytes] = []
    with pytest.raises(InputError, match="damaged"):
        read.extend(chunk.data for chunk in read_chunks(str(file)))
    assert end == "bz2" or b"iteration" in b"".join(read)


@EVERY
def test_a_damaged_file_is_an_input_error(tmp_path: Path, end: str) -> None:
    file = tmp_path / f"train.log.{end}"
    file.write_bytes(PACKERS[end](run_of().encode())[:6] + b"\xff" * 200)
    with pytest.raises(InputError, match="damaged"):
        judged(file)


def test_a_file_that_unpacks_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compressed, "_FREE", 1 << 20)
    file = tmp_path / "train.log.gz"
    file.write_bytes(gzip.compress(b"a\n" * (4 << 20)))
    with pytest.raises(InputError, match="unpack to more than"):
        content(file)


def test_a_piece_of_output_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "train.log.gz"
    file.write_bytes(zlib.compress(b"a\n" * (8 << 20), wbits=31))
    assert max(len(chunk.data) for chunk in read_chunks(str(file))) <= 1 << 19


def bundle(file: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(file, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(f"training-gpt/{name}")
            info.size, info.mtime = len(data), int(LATER)
            archive.addfile(info, io.BytesIO(data))
    return file


def test_the_logs_of_a_bundle_are_read(tmp_path: Path) -> None:
    members = {"verdict.json": b"{}", "logs/gpt-0.main.log": run_of().encode()}
    report = judged(bundle(tmp_path / "gpt.tgz", members))
    assert (report.verdict.cause, report.run) == (Cause.FINISHED, "gpt")
    assert report.files == ("training-gpt/logs/gpt-0.main.log",)


def test_a_damaged_bundle_is_an_input_error(tmp_path: Path) -> None:
    file = bundle(tmp_path / "gpt.tgz", {"logs/gpt-0.main.log": run_of(3000).encode()})
    file.write_bytes(file.read_bytes()[:9000])
    with pytest.raises(InputError, match="damaged"):
        judged(file)


def test_a_bundle_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    file = bundle(tmp_path / "gpt.tgz", {"../../../escaped.log": b"x\n"})
    with pytest.raises(InputError, match="damaged archive"):
        judged(file)
