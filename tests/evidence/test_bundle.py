# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence before the kill: all that can be had, within its limits, and what could not be."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mwatch.evidence.bundle import collect
from mwatch_trainer import contract
from mwatch_trainer.evidence.incidents import MANIFEST
from mwatch_trainer.probe.record_file import SIZE
from support.builders.evidence import ID, SECRET, Wrapper, filled_volume, missing, refuse, save
from support.builders.volume import write_attempt


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    return filled_volume(tmp_path)


def test_everything_is_there_and_the_manifest_says_so(volume: Path) -> None:
    wrapper = Wrapper(volume)
    bundle = save(volume, wrapper)
    assert bundle.missing == ()
    names = {file.name for file in bundle.files}
    assert names == {
        "attempt.json", "node-processes.json", "node-gpus.json", "probe.json", "trainer.log",
        "missing.json",
        "rank-0.stacks.txt", "rank-1.stacks.txt", "rank-0.flight.pickle", "rank-1.flight.pickle",
    }  # fmt: skip
    assert set(os.listdir(bundle.folder)) == names | {MANIFEST}
    manifest = json.loads((bundle.folder / MANIFEST).read_bytes())
    assert {each["name"] for each in manifest["files"]} == names
    assert (manifest["version"], manifest["id"], manifest["missing"]) == (1, ID, [])
    assert wrapper.asked == [{"op": "dump", "id": ID, "seconds": 5.0}]


def test_probe_records_can_be_read_by_people(volume: Path) -> None:
    (volume / contract.PROBE_FOLDER / "rank-2").write_bytes(b"\0" * SIZE)
    bundle = save(volume)
    records = json.loads((bundle.folder / "probe.json").read_bytes())["records"]
    assert [(each["rank"], each["phase"]) for each in records] == [
        (0, "collective"),
        (1, "collective"),
    ]
    assert "rank-2" in missing(bundle)


def test_only_the_owner_may_read_it(volume: Path) -> None:
    bundle = save(volume)
    assert stat.S_IMODE(bundle.folder.stat().st_mode) == 0o700
    modes = {stat.S_IMODE(each.stat().st_mode) for each in bundle.folder.iterdir()}
    assert modes == {0o600}


def test_without_a_wrapper_the_rest_is_saved(volume: Path) -> None:
    bundle = save(volume, refuse)
    assert "nobody listens" in missing(bundle)["dump"]
    assert "stacks and flight recorder" in missing(bundle)
    assert {"attempt.json", "trainer.log"} <= {file.name for file in bundle.files}


def test_a_wrapper_that_refuses_is_quoted(volume: Path) -> None:
    bundle = save(volume, lambda request, seconds: {"ok": False, "error": "already dumping"})
    assert missing(bundle)["dump"] == "none was taken: already dumping"


def test_an_empty_volume_gives_a_bundle_that_says_why(tmp_path: Path) -> None:
    bundle = save(tmp_path / "nowhere", refuse)
    assert bundle.files == ()
    assert {"dump", "attempt.json", "probe records", "trainer.log"} <= missing(bundle).keys()
    assert (bundle.folder / MANIFEST).exists()


def test_the_end_of_the_log_begins_with_a_line_and_goes_over_a_rotation(volume: Path) -> None:
    bundle = save(volume, log_bytes=100)
    text = (bundle.folder / contract.LOG).read_text()
    assert text.endswith("line 998\nline 999\n")
    assert text.startswith("line ")
    assert {file.name: file.is_cut for file in bundle.files}[contract.LOG]


def test_a_log_that_has_just_begun_is_joined_to_the_one_before(volume: Path) -> None:
    (volume / contract.LOG).rename(volume / f"{contract.LOG}.1")
    (volume / contract.LOG).write_text("new\n")
    bundle = save(volume, log_bytes=100)
    assert (bundle.folder / contract.LOG).read_text().endswith("line 999\nnew\n")


def test_a_dump_storm_stays_inside_the_byte_budget(volume: Path) -> None:
    wrapper = Wrapper(volume, ranks=64)
    wrapper.flight = b"x" * 10_000
    bundle = save(volume, wrapper, bytes=100_000)
    saved = sum(each.stat().st_size for each in bundle.folder.iterdir() if each.name != MANIFEST)
    assert saved <= 100_000
    stacks = [file for file in bundle.files if file.name.endswith("stacks.txt")]
    assert len(stacks) == 64
    assert any("budget" in why or "large" in why for why in missing(bundle).values())


def test_secrets_are_nowhere(volume: Path) -> None:
    write_attempt(volume, argv=["train.py", f"--token={SECRET}"])
    with (volume / contract.LOG).open("a") as log:
        log.write(f"HF_TOKEN={SECRET}\n")
    wrapper = Wrapper(volume)
    wrapper.flight = f"token={SECRET}\n".encode()
    bundle = save(volume, wrapper)
    held = b"".join(each.read_bytes() for each in bundle.folder.iterdir())
    assert SECRET.encode() not in held
    assert b"line 999" in held
    assert json.loads((bundle.folder / "attempt.json").read_bytes())["attempt"] == 1
    assert "secret" in missing(bundle)["rank-0.flight.pickle"]


def test_a_private_key_in_one_file_does_not_hide_the_next(volume: Path) -> None:
    wrapper = Wrapper(volume)
    (volume / contract.LOG).write_text("-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7\n")
    bundle = save(volume, wrapper)
    assert (bundle.folder / "rank-0.stacks.txt").read_text() == "Thread 1 of 0\n"


def test_links_that_the_trainer_laid_are_not_followed(volume: Path) -> None:
    outside = volume.parent / "token"
    outside.write_text("ours")
    (volume / contract.LOG).unlink()
    (volume / contract.LOG).symlink_to(outside)
    os.mkfifo(volume / contract.DECISION)
    bundle = save(volume)
    assert "ours" not in "".join(
        each.read_text("utf-8", "replace") for each in bundle.folder.iterdir()
    )
    assert {contract.LOG, contract.DECISION} <= missing(bundle).keys()


def test_a_dump_folder_that_is_a_link_is_not_entered(volume: Path) -> None:
    elsewhere = volume.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "rank-0.stacks.txt").write_text("ours")

    def lay(request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        (volume / contract.DUMPS_FOLDER).mkdir()
        (volume / contract.DUMPS_FOLDER / ID).symlink_to(elsewhere)
        return {"ok": True}

    bundle = save(volume, lay)
    assert "stacks and flight recorder" in missing(bundle)
    assert not (bundle.folder / "rank-0.stacks.txt").exists()


def test_odd_names_are_not_written(volume: Path) -> None:
    def write(request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        folder = volume / contract.DUMPS_FOLDER / ID
        folder.mkdir(parents=True)
        (folder / ".hidden\nname").write_text("x")
        return {"ok": True}

    bundle = save(volume, write)
    assert any("unsafe name" in why for why in missing(bundle).values())


def test_a_wrapper_that_never_answers_costs_the_time_limit_and_no_more(volume: Path) -> None:
    gate = threading.Event()

    def hang(request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        gate.wait(120.0)
        return {"ok": True}

    began = time.monotonic()
    bundle = save(volume, hang, seconds=0.3)
    assert time.monotonic() - began < 60
    assert "the rest" in missing(bundle)
    gate.set()


def test_a_folder_that_cannot_be_made_is_reported(volume: Path) -> None:
    (volume.parent / "durable").write_text("a file")
    bundle = save(volume)
    assert list(missing(bundle)) == ["everything"]


def test_what_torch_dumped_by_itself_is_saved_too(volume: Path) -> None:
    folder = volume / contract.DUMPS_FOLDER / "recorder"
    folder.mkdir(parents=True)
    (folder / "rank-0").write_bytes(b"\x80\x02\0\0")
    bundle = save(volume)
    assert (bundle.folder / "recorder-rank-0").read_bytes() == b"\x80\x02\0\0"


def test_a_second_collection_replaces_the_first(volume: Path) -> None:
    save(volume)
    (volume / contract.LOG).write_text("later\n")
    bundle = save(volume, lambda request, seconds: {"ok": True})
    assert (bundle.folder / contract.LOG).read_text() == "later\n"


@pytest.mark.parametrize("id", ["", "../up", "a/b", "-x", "x" * 200])
def test_an_id_is_a_plain_name(volume: Path, id: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name"):
        collect(str(volume), volume.parent / "x", id, ask=refuse)
