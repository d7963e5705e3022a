# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Debian tools are fetched whole, once, and a missing one names its fix.

All but the last two tests hand over a stand-in for the commands; those run the real programs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.debian_tools import (
    CommandAbsent,
    CommandFailed,
    Run,
    ToolMissing,
    debian_tool,
    run_command,
    user_cache,
)
from support.debian_tree import with_libraries


class FakeApt:
    """Stands in for apt-get and dpkg-deb; the commands in `failing` fail once each."""

    def __init__(self, *failing: str) -> None:
        self.failing = list(failing)
        self.done: list[str] = []

    def __call__(self, command: Sequence[str], folder: Path, seconds: float) -> None:
        assert seconds > 0
        verb = next(word for word in command if word in ("download", "update", "-x"))
        self.done.append(verb)
        if verb in self.failing:
            self.failing.remove(verb)
            raise CommandFailed(f"{verb} failed")
        if verb == "download":
            (folder / "tool_1.0_all.deb").touch()
        if verb == "-x":
            tool = Path(command[-1]) / "usr" / "bin" / "tool"
            tool.parent.mkdir(parents=True)
            tool.touch(mode=0o755)


def fetch(cache: Path, run: Run, binary: str = "tool") -> Path:
    return debian_tool("package", binary, cache=cache, search_path="", run=run)


def test_a_fetched_tool_is_found_again_without_a_command(tmp_path: Path) -> None:
    apt = FakeApt()
    first = fetch(tmp_path, apt)
    assert fetch(tmp_path, apt) == first
    assert apt.done == ["download", "-x"]
    assert {path.name for path in tmp_path.iterdir()} == {"lock", first.parents[2].name}


def test_missing_lists_are_fetched_into_private_folders(tmp_path: Path) -> None:
    apt = FakeApt("download")
    assert fetch(tmp_path, apt).is_file()
    assert apt.done == ["download", "update", "download", "-x"]


@pytest.mark.parametrize("failing", [["-x"], ["download", "update"], ["download", "download"]])
def test_a_failed_fetch_leaves_nothing_and_can_be_repeated(
    tmp_path: Path, failing: list[str]
) -> None:
    with pytest.raises(ToolMissing, match="failed"):
        fetch(tmp_path, FakeApt(*failing))
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    assert fetch(tmp_path, FakeApt()).is_file()


def test_a_package_without_the_binary_says_so(tmp_path: Path) -> None:
    with pytest.raises(ToolMissing, match=r"no other \(Debian package package\).*has no other"):
        fetch(tmp_path, FakeApt(), binary="other")


def test_a_machine_without_apt_names_package_binary_and_fix(tmp_path: Path) -> None:
    def absent(command: Sequence[str], folder: Path, seconds: float) -> None:
        raise CommandAbsent(f"this machine has no {command[0]}")

    with pytest.raises(ToolMissing) as caught:
        fetch(tmp_path, absent)
    assert str(caught.value) == (
        "no tool (Debian package package): this machine has no apt-get; "
        "install the Debian package package, or put tool on PATH"
    )


def test_an_installed_tool_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "tool").touch(mode=0o755)
    found = debian_tool("package", "tool", cache=tmp_path / "cache", search_path=str(tmp_path))
    assert found == tmp_path / "tool"
    assert not (tmp_path / "cache").exists()


def test_the_second_of_two_parallel_fetches_waits_for_the_first(tmp_path: Path) -> None:
    apt = FakeApt()
    waiting: list[subprocess.Popen[str]] = []
    code = (
        "import sys, pathlib\nfrom support import debian_tools as d\n"
        "print('started', flush=True)\n"
        "print(d.debian_tool('package', 'tool', cache=pathlib.Path(sys.argv[1]), search_path='',"
        " run=None))\n"  # None cannot be called: it must find the work done
    )

    def slow(command: Sequence[str], folder: Path, seconds: float) -> None:
        if not waiting:
            child = subprocess.Popen(
                [sys.executable, "-c", code, str(tmp_path)],
                cwd=Path(__file__).parent,
                stdout=subprocess.PIPE,
                text=True,
            )
            waiting.append(child)
            assert child.stdout is not None
            assert child.stdout.readline() == "started\n"
        apt(command, folder, seconds)

    tool = fetch(tmp_path, slow)
    out, _ = waiting[0].communicate(timeout=60)
    assert (waiting[0].returncode, out) == (0, f"{tool}\n")


def test_commands_end_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="sh ended with 3: last"):
        run_command(["sh", "-c", "echo first; echo last >&2; exit 3"], tmp_path, 10)
    with pytest.raises(CommandFailed, match=r"sleep took longer than 0 s"):
        run_command(["sleep", "10"], tmp_path, 0.05)
    with pytest.raises(CommandAbsent, match="this machine has no mwatch-no-such-command"):
        run_command(["mwatch-no-such-command"], tmp_path, 10)


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "mwatch" / "debian"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache() == tmp_path / ".cache" / "mwatch" / "debian"


@pytest.mark.skipif(
    shutil.which("apt-get") is None and shutil.which("mtail") is None,
    reason="this machine has neither apt-get nor mtail",
)
@pytest.mark.timeout(900, func_only=False)
def test_the_real_mtail_runs() -> None:
    mtail = debian_tool("mtail", "mtail")
    done = subprocess.run([mtail, "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "mtail" in done.stdout + done.stderr


@pytest.mark.skipif(
    shutil.which("apt-get") is None and shutil.which("patchelf") is None,
    reason="this machine has neither apt-get nor patchelf",
)
@pytest.mark.timeout(900, func_only=False)
def test_an_unpacked_program_finds_its_libraries_without_a_variable(tmp_path: Path) -> None:
    program = shutil.which("ls")
    assert program is not None
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libown.so").touch()
    copy = with_libraries(Path(program), tmp_path)
    assert copy == with_libraries(Path("/none/ls"), tmp_path), "once"
    assert str(tmp_path / "lib").encode() in copy.read_bytes()
    done = subprocess.run([copy, tmp_path / "lib"], capture_output=True, timeout=60, env={})
    assert (done.returncode, done.stdout) == (0, b"libown.so\n")
