# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Downloads from a hub that stumbles: cut off, damaged, busy, closed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fakes.fake_hub import FakeHub, fake_hub
from support.runs.dataset_runs import Dataset, hub_spec, lines

PATH = "train/chunk1/example_train_0.jsonl.xz"
OTHER = "train/chunk1/example_train_1.jsonl.xz"
BODY = os.urandom(200_000)
TOKEN = "hf_" + "x" * 20


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub({PATH: BODY, OTHER: lines("x")}, TOKEN) as made:
        yield made


@pytest.fixture
def dataset(tmp_path: Path, hub: FakeHub) -> Dataset:
    return Dataset(tmp_path, files=[hub_spec()], endpoint=hub.url)


def raw(dataset: Dataset) -> Path:
    return dataset.folder / "raw" / PATH.replace("/", "-")


def test_the_token_goes_to_the_hub_and_not_to_where_it_redirects(
    dataset: Dataset, hub: FakeHub
) -> None:
    ran = dataset.step("download", token=TOKEN)
    assert ran.code == 0, ran.said
    assert raw(dataset).read_bytes() == BODY
    assert {each.authorization for each in hub.seen} == {f"Bearer {TOKEN}"}
    assert {each.authorization for each in hub.stored} == {None}
    assert TOKEN not in ran.said and "signature" not in ran.said
    assert TOKEN not in (dataset.folder / ".state" / "files.json").read_text()


@pytest.mark.parametrize(
    ("token", "words"),
    [("", "name it in hub.tokenSecret"), ("wrong", "accept the dataset's terms")],
)
def test_without_the_right_token_no_retry_is_made(
    dataset: Dataset, hub: FakeHub, token: str, words: str
) -> None:
    ran = dataset.step("download", token=token)
    assert ran.code == 2 and words in ran.said
    assert len(hub.seen) == 1


@pytest.mark.parametrize("stumble", [503, 429, 500, "cut", "damage"])
def test_a_stumble_is_tried_again(dataset: Dataset, hub: FakeHub, stumble: int | str) -> None:
    hub.stumbles[PATH] = [stumble, stumble]
    ran = dataset.step("download", token=TOKEN)
    assert ran.code == 0, ran.said
    assert raw(dataset).read_bytes() == BODY
    assert hub.gets[PATH] == 3 and "again in" in ran.said


def test_a_cut_download_goes_on_where_it_stopped(dataset: Dataset, hub: FakeHub) -> None:
    hub.stumbles[PATH] = ["cut"]
    assert dataset.step("download", token=TOKEN).code == 0
    ranges = [each.range for each in hub.stored if PATH in each.path]
    assert ranges == [None, f"bytes={len(BODY) // 2}-"]


def test_a_killed_pod_goes_on_where_it_stopped(dataset: Dataset, hub: FakeHub) -> None:
    raw(dataset).parent.mkdir(parents=True)
    raw(dataset).with_name(raw(dataset).name + ".part").write_bytes(BODY[:150_000])
    assert dataset.step("download", token=TOKEN).code == 0
    assert raw(dataset).read_bytes() == BODY
    assert [each.range for each in hub.stored if PATH in each.path] == ["bytes=150000-"]


def test_a_server_without_ranges_starts_over(dataset: Dataset, hub: FakeHub) -> None:
    hub.knows_ranges = False
    hub.stumbles[PATH] = ["cut"]
    assert dataset.step("download", token=TOKEN).code == 0
    assert raw(dataset).read_bytes() == BODY


def test_a_part_of_something_else_is_thrown_away(dataset: Dataset) -> None:
    raw(dataset).parent.mkdir(parents=True)
    part = raw(dataset).with_name(raw(dataset).name + ".part")
    part.write_bytes(os.urandom(150_000))
    assert dataset.step("download", token=TOKEN).code == 0
    assert raw(dataset).read_bytes() == BODY
    assert not part.exists()


def test_when_all_tries_fail_the_step_fails_and_the_others_are_kept(
    dataset: Dataset, hub: FakeHub
) -> None:
    hub.stumbles[PATH] = [503] * 4
    ran = dataset.step("download", token=TOKEN)
    assert ran.code == 1 and "HTTP 503, 4 times; giving up" in ran.said
    assert "download: 1 of 2 failed" in ran.said
    assert not raw(dataset).exists()
    assert (dataset.folder / "raw" / OTHER.replace("/", "-")).is_file()
    assert dataset.step("download", token=TOKEN).code == 0
    assert hub.gets[OTHER] == 1


def test_a_file_that_is_gone_ends_it_for_good(dataset: Dataset, hub: FakeHub) -> None:
    assert dataset.step("download", token=TOKEN).code == 0
    raw(dataset).unlink()
    del hub.files[PATH]
    ran = dataset.step("download", token=TOKEN)
    assert ran.code == 2 and "HTTP 404" in ran.said


def test_nobody_at_the_address_is_worth_another_pod(dataset: Dataset) -> None:
    dataset.settings["endpoint"] = "http://127.0.0.1:9"
    ran = dataset.step("download", token=TOKEN)
    assert ran.code == 1 and "giving up" in ran.said


def test_a_folder_without_such_files_is_refused(dataset: Dataset) -> None:
    dataset.settings["files"] = [{**hub_spec(), "ending": ".parquet"}]
    ran = dataset.step("download", token=TOKEN)
    assert ran.code == 2 and "no *.parquet in train/chunk1" in ran.said


def test_a_claim_that_is_too_small_is_reported_before_the_first_byte(
    dataset: Dataset, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def huge(handler: Any, folder: str, query: str) -> None:
        body = f'[{{"type": "file", "path": "{PATH}", "size": {1 << 60}}}]'.encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    monkeypatch.setattr(hub, "_tree", huge)
    ran = dataset.step("download", token=TOKEN)
    assert ran.code == 2 and "the files need 1048576.0 TiB" in ran.said
    assert hub.stored == []


def test_an_address_without_a_size_is_taken_as_the_server_gives_it(
    dataset: Dataset, hub: FakeHub
) -> None:
    dataset.settings["files"] = [{"url": f"{hub.store}/{PATH}", "name": "one.jsonl.xz"}]
    hub.stumbles[PATH] = ["cut"]
    ran = dataset.step("download", token=TOKEN)
    assert ran.code == 0, ran.said
    assert (dataset.folder / "raw" / "one.jsonl.xz").read_bytes() == BODY
    assert {each.authorization for each in hub.stored} == {None}
