# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Debian packages with all that they depend on, unpacked into one folder of the user's cache.

Nothing is installed: no maintainer script runs, no service starts. What this machine already has
is not fetched, and its C library is always its own.
"""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from support.debian_tools import (
    UNPACK_SECONDS,
    CommandFailed,
    Run,
    ToolMissing,
    apt_get,
    debian_tool,
    locked,
    run_command,
    user_cache,
)

_OF_THE_MACHINE = ("libc6_", "libc-bin_")


def debian_tree(
    packages: Sequence[str],
    *,
    size: str,
    cache: Path | None = None,
    run: Run = run_command,
) -> Path:
    """The folder that holds them, named after the first; `size` is for who waits. ToolMissing
    names what fixes it."""
    home = user_cache() if cache is None else cache
    root = home / f"{packages[0]}-{platform.machine()}"
    if not root.is_dir():
        try:
            home.mkdir(parents=True, exist_ok=True)
            with locked(home / "lock"):
                if not root.is_dir():
                    print(f"mwatch: fetching {packages[0]}, {size}", file=sys.stderr, flush=True)
                    _fetch(packages, root, run)
        except (CommandFailed, OSError) as error:
            raise ToolMissing(packages[0], packages[0], str(error)) from error
    return root


def libraries(root: Path) -> list[str]:
    """Folders for LD_LIBRARY_PATH."""
    return sorted({str(path.parent) for path in root.rglob("*.so*")})


def with_libraries(program: Path, root: Path) -> Path:
    """A copy of a program of the folder that finds its libraries there in any environment: one that
    starts itself again may do so without LD_LIBRARY_PATH."""
    found = root / "with-libraries" / program.name
    if not found.exists():
        patchelf = debian_tool("patchelf", "patchelf")
        with tempfile.TemporaryDirectory(dir=root, prefix=".patch-") as folder:
            copy = shutil.copy2(program, folder)
            words = [str(patchelf), "--force-rpath", "--set-rpath", ":".join(libraries(root))]
            run_command([*words, str(copy)], Path(folder), UNPACK_SECONDS)
            found.parent.mkdir(exist_ok=True)
            Path(copy).rename(found)
    return found


def _fetch(packages: Sequence[str], root: Path, run: Run) -> None:
    """Aside, then renamed: `root` is whole or not there."""
    with tempfile.TemporaryDirectory(dir=root.parent, prefix=".fetch-") as folder:
        aside = Path(folder)
        archives = aside / "archives"
        (archives / "partial").mkdir(parents=True)
        apt_get(_install(packages, aside, archives), aside, run)
        found = sorted(archives.glob("*.deb"))
        if not any(each.name.startswith(f"{packages[0]}_") for each in found):
            raise CommandFailed(f"apt-get left no archive of {packages[0]}")
        for archive in found:
            if not archive.name.startswith(_OF_THE_MACHINE):
                run(["dpkg-deb", "-x", str(archive), str(aside / "root")], aside, UNPACK_SECONDS)
        (aside / "root").rename(root)


def _install(packages: Sequence[str], aside: Path, archives: Path) -> list[str]:
    options = ["-y", "-o", f"Dir::Cache::Archives={archives}", "-o", "Debug::NoLocking=1"]
    for name in ("pkgcache", "srcpkgcache"):
        options += ["-o", f"Dir::Cache::{name}={aside / name}"]
    # One that is installed is fetched all the same: then the folder is whole everywhere.
    return [
        *options,
        "--no-install-recommends",
        "--download-only",
        "--reinstall",
        "install",
        *packages,
    ]
