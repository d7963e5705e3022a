# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What `make test-cluster` builds for the chosen tests, and in which order: `cluster.programs`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster import binaries, programs
from cluster.programs import TRAINS, WITH_NODE, WITHOUT_NODE

OF_ALL_TESTS = {
    WITH_NODE: {"cluster", "jobsets", "queues"},
    TRAINS: {"yard", "cluster", "old_operator", "jobsets"},
    WITHOUT_NODE: {"plane", "tmp_path"},
}
NEW, OLD = f"training-operator {binaries.OPERATOR}", f"training-operator {binaries.OLD_OPERATOR}"


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return binaries.home()


def needs_of(fixtures: dict[str, set[str]]) -> dict[str, list[programs.Program]]:
    return {part: programs.needed_by(names) for part, names in fixtures.items()}


def test_tests_without_a_node_begin_after_kubernetes_and_nothing_is_built_twice() -> None:
    found = [(part, [each.name for each in new])
             for part, new in programs.stages(needs_of(OF_ALL_TESTS))]  # fmt: skip
    assert found == [
        (WITHOUT_NODE, ["Kubernetes"]),
        (TRAINS, [NEW, OLD, "JobSet", "the image"]),
        (WITH_NODE, ["Kueue"]),
    ]


@pytest.mark.parametrize(
    ("fixtures", "built"),
    [
        ({"tmp_path"}, ["Kubernetes"]),
        ({"cluster"}, ["Kubernetes", NEW, "the image"]),
        ({"cluster", "queues"}, ["Kubernetes", NEW, "Kueue", "the image"]),
    ],
    ids=["an API server", "pods", "queues"],
)
def test_only_what_the_chosen_tests_need_is_built(fixtures: set[str], built: list[str]) -> None:
    assert [each.name for each in programs.needed_by(fixtures)] == built


def test_who_waits_reads_for_how_long(empty_cache: Path) -> None:
    lines = programs.expected(needs_of(OF_ALL_TESTS))
    once = "minutes on two cores, once"
    assert lines == [
        f"building Kubernetes: about 9 {once}",
        "the tests `not node` begin after about 9 minutes",
        f"building {NEW}: about 2 {once}",
        f"building {OLD}: about 2 {once}",
        f"building JobSet: about 2 {once}",
        f"building the image: about 2 {once}",
        "the tests `trains` begin after about 17 minutes",
        f"building Kueue: about 3 {once}",
        "the tests `node and not trains` begin after about 20 minutes",
    ]


def test_what_is_built_is_not_announced(empty_cache: Path) -> None:
    for each in programs.all_programs():
        assert not each.is_built
        (empty_cache / each.folder).mkdir(parents=True)
        assert each.is_built
    assert programs.expected(needs_of(OF_ALL_TESTS)) == []


def test_what_is_in_the_cache_is_what_would_be_built(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helm = f"helm-{binaries.kubernetes_key()}"
    for folder in (helm, *(each.folder for each in programs.all_programs())):
        (empty_cache / folder).mkdir(parents=True)
    monkeypatch.setattr(binaries, "_go", lambda *_: pytest.fail("it is there already"))
    for each in programs.all_programs():
        each.build()


def test_collected_tests_say_what_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(programs.NEEDS_FILE, str(tmp_path / "needs.json"))
    programs.write_needs([(WITH_NODE, {"cluster"}), (WITH_NODE, {"queues"})])
    needs = programs.read_needs(tmp_path / "needs.json")
    assert needs == needs_of({WITH_NODE: {"cluster", "queues"}})


def test_where_the_tests_cannot_be_collected_everything_is_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs = programs.read_needs(tmp_path / "none.json")
    built = [each.name for _, new in programs.stages(needs) for each in new]
    assert built == [each.name for each in programs.all_programs()]
    assert "could not be collected" in capsys.readouterr().err
