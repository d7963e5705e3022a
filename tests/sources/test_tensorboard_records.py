# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reading TensorBoard's event files, those of the real package and hostile ones."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pytest

from mwatch.runtime.event_records import masked_crc
from mwatch.sources.tensorboard import MAX_RECORDS, BrokenRecord, EventRecord, records
from support.fakes.tensorboard_files import event, framed, scalar, version, write

NO_TENSORBOARD = "the package tensorboard is not installed here: it comes with the extra `demo`"
NO_TORCH = "torch is not installed here: it comes with the extra `demo`"


@pytest.fixture
def event_pb2() -> Any:
    return pytest.importorskip("tensorboard.compat.proto.event_pb2", reason=NO_TENSORBOARD)


def read(path: Path, offset: int = 0) -> list[EventRecord]:
    return [record for _, record in records(str(path), offset) if record is not None]


def test_the_checksum_is_that_of_the_format() -> None:
    """CRC-32C of `123456789` is e3069283; then turned by 15 bits, and a constant added."""
    assert (
        masked_crc(b"123456789") == (((0xE3069283 >> 15) | (0xE3069283 << 17)) + 0xA282EAD8) % 2**32
    )


def test_a_file_of_the_real_package_is_read(tmp_path: Path, event_pb2: Any) -> None:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path), flush_secs=1)
    for step in (0, 1, 300, 70_000, 2**40):
        made = event_pb2.Event(wall_time=1.7e9 + step, step=step)
        made.summary.value.add(tag=f"loss/{step}", simple_value=1.5)
        writer.add_event(made)
    writer.add_event(event_pb2.Event(wall_time=1.7e9, file_version="x"))
    writer.close()
    (path,) = tmp_path.iterdir()
    assert [(record.step, record.wall_time, record.tag) for record in read(path)] == [
        (step, 1.7e9 + step, f"loss/{step}") for step in (0, 1, 300, 70_000, 2**40)
    ]


def test_a_file_of_the_writer_that_megatron_uses_is_read(tmp_path: Path) -> None:
    torch_tensorboard = pytest.importorskip("torch.utils.tensorboard", reason=NO_TORCH)
    writer = torch_tensorboard.SummaryWriter(log_dir=str(tmp_path))
    writer.add_text("arguments", "world_size 8", global_step=3)
    writer.add_scalar("lm loss", 2.5, 4)
    writer.add_scalar("lm loss vs samples", 2.5, 4096)
    writer.close()
    (path,) = tmp_path.iterdir()
    assert [(record.tag, record.step) for record in read(path)] == [
        ("arguments/text_summary", 3),
        ("lm loss", 4),
        ("lm loss vs samples", 4096),
    ]


def test_a_hand_made_record_is_what_the_package_makes(event_pb2: Any) -> None:
    made = event_pb2.Event(wall_time=12.5, step=300)
    made.summary.value.add(tag="lm loss", simple_value=2.5)
    assert made.SerializeToString() == event(300, 12.5)


def test_a_record_that_is_half_written_waits_for_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "events"
    whole, half = scalar(1, 10.0), scalar(2, 11.0)
    write(path, framed(version(9.0)), whole, half[:20])
    found = list(records(str(path), 0))
    assert [record.step for _, record in found if record] == [1]
    end = found[-1][0]
    for cut in range(20, len(half)):
        path.write_bytes(path.read_bytes()[:end] + half[:cut])
        assert read(path, end) == []
    write(path, half[cut:])
    assert [record.step for record in read(path, end)] == [2]


@pytest.mark.parametrize(
    "tail",
    [
        b"garbage that is no record at all",
        struct.pack("<QI", 2**60, 0),
        struct.pack("<Q", 2**60) + struct.pack("<I", masked_crc(struct.pack("<Q", 2**60))),
        bytes(64),
    ],
)
def test_what_is_no_record_is_reported_and_not_followed(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "events"
    write(path, scalar(1, 10.0), tail)
    with pytest.raises(BrokenRecord, match="events: broken at byte"):
        read(path)


def test_a_record_much_longer_than_what_is_needed_of_it_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events"
    write(path, scalar(5, 10.0, "image", more=bytes(1 << 18)), scalar(6, 11.0))
    assert [(record.step, record.tag) for record in read(path)] == [(5, "image"), (6, "lm loss")]


def test_one_look_reads_so_many_and_the_next_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "events"
    write(path, scalar(1, 10.0) * (MAX_RECORDS + 7))
    found = list(records(str(path), 0))
    assert len(found) == MAX_RECORDS
    assert len(read(path, found[-1][0])) == 7


def test_any_bytes_inside_a_record_are_survived(tmp_path: Path) -> None:
    chance = random.Random(7)
    path = tmp_path / "events"
    for _ in range(300):
        body = bytearray(event(3, 10.0))
        for _ in range(chance.randrange(1, 8)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        write(path, framed(bytes(body[: chance.randrange(len(body) + 1)])))
    assert len(list(records(str(path), 0))) == 300
