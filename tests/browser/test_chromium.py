# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Chromium is fetched with all that it needs, whole or not at all; a stand-in plays apt-get."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from browser.chromium import PACKAGE, chromium
from support.debian_tools import CommandAbsent, CommandFailed, ToolMissing


class FakeApt:
    """Leaves an archive of the browser, one of a library and one of the C library."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.unpacked: list[str] = []

    def __call__(self, command: Sequence[str], folder: Path, seconds: float) -> None:
        if self.failing and self.failing in command:
            raise CommandFailed(f"{self.failing} failed")
        if "install" in command:
            option = next(word for word in command if word.startswith("Dir::Cache::Archives="))
            for name in (f"{PACKAGE}_1_amd64.deb", "libogg0_1_amd64.deb", "libc6_2_amd64.deb"):
                (Path(option.partition("=")[2]) / name).touch()
        if "-x" in command:
            root = Path(command[-1])
            name = Path(command[-2]).name.partition("_")[0]
            self.unpacked.append(name)
            file = root / ("usr/lib/chromium" if name == PACKAGE else "usr/lib/x") / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o755)
            (file.parent / f"{name}.so.1").touch()


def test_the_browser_comes_with_its_libraries_but_not_the_c_library(tmp_path: Path) -> None:
    apt = FakeApt()
    found = chromium(cache=tmp_path, search_path="", run=apt)
    assert apt.unpacked == [PACKAGE, "libogg0"]
    assert found.binary.is_file() and found.root is not None
    with found.environment() as environment:
        assert environment["LD_LIBRARY_PATH"] == str(found.root / "usr/lib/x")
        assert Path(environment["FONTCONFIG_FILE"]).is_file()
        home = environment["HOME"]
    assert not os.path.exists(home)


def test_what_was_fetched_is_not_fetched_again(tmp_path: Path) -> None:
    first = chromium(cache=tmp_path, search_path="", run=FakeApt())
    assert chromium(cache=tmp_path, search_path="", run=FakeApt("install")) == first


def test_a_failed_fetch_leaves_nothing(tmp_path: Path) -> None:
    for failing in ("install", "-x"):
        with pytest.raises(ToolMissing, match=f"no {PACKAGE}.*failed"):
            chromium(cache=tmp_path, search_path="", run=FakeApt(failing))
    assert [each.name for each in tmp_path.iterdir()] == ["lock"]


def test_a_machine_without_apt_is_identified_by_name(tmp_path: Path) -> None:
    def absent(command: Sequence[str], folder: Path, seconds: float) -> None:
        raise CommandAbsent(f"this machine has no {command[0]}")

    with pytest.raises(
        ToolMissing, match="this machine has no apt-get; install the Debian package"
    ):
        chromium(cache=tmp_path, search_path="", run=absent)


def test_an_installed_chromium_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "chromium").touch(mode=0o755)
    found = chromium(cache=tmp_path / "cache", search_path=str(tmp_path))
    assert (found.binary, found.root) == (tmp_path / "chromium", None)
    with found.environment() as environment:
        assert "FONTCONFIG_FILE" not in environment or "FONTCONFIG_FILE" in os.environ
