# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A Debian tool for tests and benchmarks, without installing it and without root.

The package is downloaded with apt-get into the user's cache and unpacked there: no maintainer
script runs and no service starts. Only the package itself is fetched, not what it depends on,
so this serves self-contained programs such as `mtail`.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

DOWNLOAD_SECONDS = 120.0
UPDATE_SECONDS = 240.0
UNPACK_SECONDS = 60.0
# Longer than one fetch by another process may take.
LOCK_SECONDS = 2 * DOWNLOAD_SECONDS + UPDATE_SECONDS + UNPACK_SECONDS + 60.0
LOCK_POLL_SECONDS = 0.2

Run = Callable[[Sequence[str], Path, float], None]


class ToolMissing(RuntimeError):
    """The tool cannot be had here; the message names package, binary and the fix."""

    def __init__(self, package: str, binary: str, reason: str) -> None:
        fix = f"install the Debian package {package}, or put {binary} on PATH"
        super().__init__(f"no {binary} (Debian package {package}): {reason}; {fix}")


class CommandFailed(RuntimeError):
    """A command ended badly or ran out of time."""


class CommandAbsent(CommandFailed):
    """There is no such command on this machine."""


def run_command(command: Sequence[str], folder: Path, seconds: float) -> None:
    """Run it in `folder`, silently; `CommandFailed` carries the last line that it printed."""
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        subprocess.run(
            command,
            cwd=folder,
            env=environment,
            timeout=seconds,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except subprocess.CalledProcessError as error:
        last = (error.stdout.strip().splitlines() or ["it printed nothing"])[-1]
        raise CommandFailed(f"{command[0]} ended with {error.returncode}: {last}") from error
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"{command[0]} took longer than {seconds:.0f} s") from error
    except (FileNotFoundError, PermissionError) as error:  # the latter: a closed folder on PATH
        raise CommandAbsent(f"this machine has no {command[0]}") from error


def user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mwatch" / "debian"


def debian_tool(
    package: str,
    binary: str,
    *,
    cache: Path | None = None,
    search_path: str | None = None,
    run: Run = run_command,
) -> Path:
    """Path of `binary`: the installed one, else the one of `package` in the cache.

    `search_path` stands for PATH.
    """
    if installed := shutil.which(binary, path=search_path):
        return Path(installed)
    home = user_cache() if cache is None else cache
    unpacked = home / f"{package}-{platform.machine()}"
    if not unpacked.is_dir():
        try:
            home.mkdir(parents=True, exist_ok=True)
            with locked(home / "lock"):
                if not unpacked.is_dir():
                    _fetch(package, binary, unpacked, run)
        except (CommandFailed, OSError) as error:
            raise ToolMissing(package, binary, str(error)) from error
    for folder in ("usr/bin", "usr/sbin", "bin", "sbin"):
        if os.access(found := unpacked / folder / binary, os.X_OK):
            return found
    raise ToolMissing(package, binary, f"the package as unpacked in {unpacked} has no {binary}")


def _fetch(package: str, binary: str, unpacked: Path, run: Run) -> None:
    """Download and unpack aside, then rename: `unpacked` is whole or not there."""
    print(f"mwatch: fetching {binary} (Debian package {package})", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=unpacked.parent, prefix=".fetch-") as name:
        aside = Path(name)
        apt_get(["download", package], aside, run)
        archives = sorted(aside.glob("*.deb"))
        if not archives:
            raise CommandFailed("apt-get download left no .deb file")
        root = aside / "root"
        run(["dpkg-deb", "-x", str(archives[0]), str(root)], aside, UNPACK_SECONDS)
        root.rename(unpacked)


def apt_get(words: Sequence[str], folder: Path, run: Run) -> None:
    """With the system's package lists, else (none, or too old) with lists of our own."""
    # A sandboxed download could not write here, in a folder of the user's.
    apt = ["apt-get", "-q", "-o", "APT::Sandbox::User=root"]
    try:
        run([*apt, *words], folder, DOWNLOAD_SECONDS)
        return
    except CommandAbsent:
        raise
    except CommandFailed as error:
        print(f"mwatch: {error}; trying with fresh package lists", file=sys.stderr, flush=True)
    for private in ("lists/partial", "cache/archives/partial"):
        (folder / private).mkdir(parents=True)
    apt += ["-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"]
    apt += ["-o", "Acquire::Languages=none"]
    run([*apt, "update"], folder, UPDATE_SECONDS)
    run([*apt, *words], folder, DOWNLOAD_SECONDS)


@contextmanager
def locked(path: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """One fetch at a time; the kernel frees the lock of a process that dies."""
    deadline = time.monotonic() + seconds
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CommandFailed(f"another process holds {path}") from None
                time.sleep(LOCK_POLL_SECONDS)
        yield
