# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A JSON file that others replace: read when it is another one, and never believed blindly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mwatch.model.reading import Absent, Failed, Ok
from mwatch.sources.json_file import JsonFile
from mwatch_trainer import contract


def test_it_is_read_again_only_when_it_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    file = JsonFile(str(path))
    contract.write_json(str(path), {"number": 1})
    first = file.read()
    assert isinstance(first, Ok)
    assert file.read() is first
    contract.write_json(str(path), {"number": 2})
    second = file.read()
    assert isinstance(second, Ok)
    assert second.value["number"] == 2


def test_no_file_is_absent_also_after_there_was_one(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    file = JsonFile(str(path))
    assert isinstance(file.read(), Absent)
    path.write_text("{}")
    assert isinstance(file.read(), Ok)
    path.unlink()
    assert isinstance(file.read(), Absent)


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', "\ud800".encode("utf-8", "surrogatepass")])
def test_what_cannot_be_used_is_a_failure(text: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert isinstance(JsonFile(str(path)).read(), Failed)


def test_a_file_without_end_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'{"a": "' + b"x" * contract.MAX_JSON_BYTES + b'"}')
    assert isinstance(JsonFile(str(path)).read(), Failed)


def test_one_that_could_not_be_used_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{")
    file = JsonFile(str(path))
    assert isinstance(file.read(), Failed)
    stamp = os.stat(path)
    path.write_text("1")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert isinstance(file.read(), Failed)


def test_a_folder_in_its_place_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    assert isinstance(JsonFile(str(tmp_path / "x.json")).read(), Failed)
