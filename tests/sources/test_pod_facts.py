# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What only a pod can see: its data files and what is mounted where."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwatch.model.snapshot.pod import PodFacts
from mwatch.sources.pod_facts import (
    PERIOD_SECONDS,
    SOON_SECONDS,
    PodFactsSource,
    data_prefixes,
    printed_prefixes,
)
from support.builders.volume import ManualClock
from support.waiting import until

MOUNTS = """\
22 1 0:20 / / rw,relatime - overlay overlay rw,lowerdir=/x
30 22 0:50 / {folder} ro,relatime shared:1 - nfs4 server:/share rw,vers=4.2
31 22 0:51 / {folder}/with\\040blank rw - ext4 /dev/sda1 rw
a line that is none
"""


def look(tmp_path: Path, argv: list[str], clock: ManualClock | None = None) -> PodFactsSource:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(MOUNTS.format(folder=tmp_path / "share"))
    return PodFactsSource(
        data_prefixes(argv), str(tmp_path / "share" / "ckpt"), lambda: "40",
        mountinfo=str(mountinfo), clock=clock or ManualClock(),
    )  # fmt: skip


def facts(found: PodFactsSource) -> PodFacts:
    answer: PodFacts = until(lambda: found.facts)
    return answer


@pytest.mark.parametrize(
    ("argv", "prefixes"),
    [
        ("x.py --data-path /d/a --save /c", ["/d/a"]),
        ("x.py --data-path 0.3 /d/a 0.7 /d/b --seed 5", ["/d/a", "/d/b"]),
        ("x.py --train-data-path=/d/a --valid-data-path /d/v", ["/d/a", "/d/v"]),
        ("x.py --data-path /d/a --data-path /d/a", ["/d/a"]),
        ("x.py --mock-data", []),
        ("x.py --data-path", []),
    ],
)
def test_prefixes_are_read_from_the_command_line(argv: str, prefixes: list[str]) -> None:
    assert list(data_prefixes(argv.split())) == prefixes


@pytest.mark.parametrize(
    ("text", "prefixes"),
    [
        ("['/d/a']", ["/d/a"]),
        ("['0.3', '/d/a', '0.7', '/d/b']", ["/d/a", "/d/b"]),
        ("['0.3', '/d/a', '0.7', '/d/a-name-that-is-cut", ["/d/a"]),
        ("/d/a", ["/d/a"]),
        (None, []),
    ],
)
def test_prefixes_are_read_from_what_the_trainer_prints(
    text: str | None, prefixes: list[str]
) -> None:
    assert list(printed_prefixes({"data_path": text, "save": "/c"})) == prefixes


def test_a_blend_of_thousands_is_bounded() -> None:
    assert len(data_prefixes(["--data-path", *(f"/d/{n}" for n in range(9999))])) == 64


def test_files_are_there_missing_or_not_to_be_seen_from_here(tmp_path: Path) -> None:
    share = tmp_path / "share"
    share.mkdir()
    (share / "a.bin").write_bytes(b"12345")
    (share / "a.idx").write_bytes(b"1")
    argv = ["--data-path", f"{share}/a", f"{share}/b", "/not/mounted/here/c"]
    there, missing, unseen = facts(look(tmp_path, argv)).data
    assert (there.bin_bytes, there.idx_bytes, there.is_unobservable) == (5, 1, False)
    assert (missing.bin_bytes, missing.idx_bytes, missing.is_unobservable) == (None, None, False)
    assert unseen.is_unobservable


def test_the_file_system_below_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "share" / "ckpt").mkdir(parents=True)
    found = facts(look(tmp_path, []))
    (mount,) = found.mounts
    assert (mount.kind, mount.is_read_only) == ("nfs4", True)
    assert mount.point == str(tmp_path / "share")
    assert mount.free_bytes is not None
    assert found.tracker == "40"


def test_a_mount_point_with_a_blank_is_understood(tmp_path: Path) -> None:
    folder = tmp_path / "share" / "with blank"
    folder.mkdir(parents=True)
    found = facts(look(tmp_path, ["--data-path", f"{folder}/a"]))
    assert [each.kind for each in found.mounts] == ["nfs4", "ext4"]


def test_it_is_looked_at_rarely(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    clock = ManualClock()
    found = look(tmp_path, ["--data-path", f"{tmp_path}/share/a"], clock)
    assert facts(found).data[0].bin_bytes is None
    (tmp_path / "share" / "a.bin").write_bytes(b"1")
    clock.now += PERIOD_SECONDS / 2
    assert facts(found).data[0].bin_bytes is None
    clock.now += PERIOD_SECONDS
    assert until(lambda: facts(found).data[0].bin_bytes == 1)


def test_a_save_folder_that_is_made_later_is_seen_soon(tmp_path: Path) -> None:
    clock = ManualClock()
    found = look(tmp_path, [], clock)
    assert facts(found).mounts[0].free_bytes is None
    (tmp_path / "share" / "ckpt").mkdir(parents=True)
    clock.now += SOON_SECONDS
    assert until(lambda: facts(found).mounts[0].free_bytes)


def test_a_machine_that_hides_its_mounts_gives_nothing(tmp_path: Path) -> None:
    found = PodFactsSource([], "/ckpt", lambda: None, mountinfo=str(tmp_path / "none"))
    assert found.facts is None
    until(lambda: not found._call.is_busy)
    assert found.facts is None
