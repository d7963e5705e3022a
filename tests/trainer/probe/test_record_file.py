# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The record of one rank: its bytes."""

from __future__ import annotations

from mwatch_trainer.probe.record_file import SIZE, pack, unpack
from support.builders.probe import RECORD

# Written by the first release: whoever changes the layout changes the magic, and reads both.
FIRST = bytes.fromhex(
    "4d5750524f424531020000000000000003000000000000000000000000000000"
    "9210000000000000090300000000000005000000000000000100000000000000"
    "080000000000000062020000000000000000000000428f4000002000de39da41"
    "0c000000000000003f00000000000000"
) + (
    b"compute".ljust(32, b"\0")
    + b"00c0ffee".ljust(16, b"\0")
    + b"training/training.py:2765 train".ljust(256, b"\0")
    + bytes([2, 0, 0, 0, 0, 0, 0, 0])
)


def test_what_is_written_is_read() -> None:
    assert unpack(pack(RECORD, 2)) == RECORD


def test_a_record_of_the_first_release_is_read() -> None:
    assert unpack(FIRST) == RECORD
    assert len(FIRST) == SIZE


def test_a_record_that_is_being_written_is_identified_by_its_ends() -> None:
    old, new = pack(RECORD, 2), pack(RECORD._replace(iteration=611), 4)
    for cut in (16, 100, SIZE - 8):
        assert unpack(new[:cut] + old[cut:]) is None
        assert unpack(old[:cut] + new[cut:]) is None


def test_an_odd_number_or_none_is_no_record() -> None:
    assert unpack(pack(RECORD, 3)) is None
    assert unpack(bytes(SIZE)) is None


def test_a_short_or_foreign_file_is_no_record() -> None:
    whole = pack(RECORD, 2)
    assert unpack(whole[:-1]) is None
    assert unpack(b"") is None
    assert unpack(b"MWPROBE9" + whole[8:]) is None


def test_long_words_are_cut_and_stay_readable() -> None:
    record = unpack(pack(RECORD._replace(where="ü" * 300, phase="x" * 99), 2))
    assert record is not None
    assert record.where == "ü" * 128
    assert record.phase == "x" * 32


def test_a_character_that_does_not_fit_whole_is_left_out() -> None:
    record = unpack(pack(RECORD._replace(where="x" + "ü" * 200), 2))
    assert record is not None
    assert record.where == "x" + "ü" * 127


def test_a_lone_surrogate_of_a_strange_path_does_no_harm() -> None:
    record = unpack(pack(RECORD._replace(where="\udc80.py:1 f"), 2))
    assert record is not None
    assert record.where == "?.py:1 f"
