# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Debian's headless Chromium for tests, without installing it and without root.

The package and all that it depends on beyond what this machine has are downloaded with apt-get
into the user's cache and unpacked there, about 100 MB; a font comes with it, so that pictures
are alike everywhere. Libraries are found by LD_LIBRARY_PATH. The C library is the machine's own.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from debian_tools import (
    UNPACK_SECONDS,
    CommandFailed,
    Run,
    ToolMissing,
    apt_get,
    locked,
    run_command,
    user_cache,
)

PACKAGE = "chromium-headless-shell"
_FONTS = ("fonts-inter", "fonts-dejavu-core")
_OF_THE_MACHINE = ("libc6_", "libc-bin_")
_INSTALLED = (PACKAGE, "chromium")
_FONT_CONFIGURATION = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><dir>/usr/share/fonts</dir><cachedir>{cache}</cachedir>
<alias binding="strong"><family>system-ui</family><prefer><family>Inter</family></prefer></alias>
<alias binding="strong"><family>monospace</family>
<prefer><family>DejaVu Sans Mono</family></prefer></alias></fontconfig>
"""


@dataclass(frozen=True)
class Chromium:
    binary: Path
    root: Path | None
    """Where it is unpacked; None: it is installed."""

    @contextmanager
    def environment(self) -> Iterator[dict[str, str]]:
        """What it must be started with, while a folder for its own files exists."""
        with tempfile.TemporaryDirectory(prefix="mwatch-chromium-") as home:
            found = {**os.environ, "HOME": home, "XDG_CONFIG_HOME": home, "XDG_CACHE_HOME": home}
            if self.root is not None:
                config = Path(home) / "fonts.conf"
                config.write_text(
                    _FONT_CONFIGURATION.format(fonts=self.root / "usr/share/fonts", cache=home)
                )
                found["FONTCONFIG_FILE"] = str(config)
                found["LD_LIBRARY_PATH"] = os.pathsep.join(_libraries(self.root))
            yield found


def _libraries(root: Path) -> list[str]:
    folders = {path.parent for path in root.rglob("*.so*")}
    return sorted(str(each) for each in folders if each.name != "chromium")


def chromium(
    *, cache: Path | None = None, search_path: str | None = None, run: Run = run_command
) -> Chromium:
    """The installed one, else that of the cache; ToolMissing names what mends it."""
    for name in _INSTALLED:
        if installed := shutil.which(name, path=search_path):
            return Chromium(Path(installed), None)
    home = user_cache() if cache is None else cache
    root = home / f"{PACKAGE}-{platform.machine()}"
    if not root.is_dir():
        try:
            home.mkdir(parents=True, exist_ok=True)
            with locked(home / "lock"):
                if not root.is_dir():
                    _fetch(root, run)
        except (CommandFailed, OSError) as error:
            raise ToolMissing(PACKAGE, PACKAGE, str(error)) from error
    binary = root / "usr/lib/chromium" / PACKAGE
    if not os.access(binary, os.X_OK):
        raise ToolMissing(PACKAGE, PACKAGE, f"{root} has no {binary.relative_to(root)}")
    return Chromium(binary, root)


def _fetch(root: Path, run: Run) -> None:
    """Aside, then renamed: `root` is whole or not there."""
    print(f"mwatch: fetching {PACKAGE}, about 100 MB", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix=".fetch-") as folder:
        aside = Path(folder)
        archives = aside / "archives"
        (archives / "partial").mkdir(parents=True)
        options = ["-y", "-o", f"Dir::Cache::Archives={archives}", "-o", "Debug::NoLocking=1"]
        for name in ("pkgcache", "srcpkgcache"):
            options += ["-o", f"Dir::Cache::{name}={aside / name}"]
        wanted = ["--no-install-recommends", "--download-only", "install", PACKAGE, *_FONTS]
        apt_get([*options, *wanted], aside, run)
        found = sorted(archives.glob("*.deb"))
        if not any(each.name.startswith(f"{PACKAGE}_") for each in found):
            raise CommandFailed(f"apt-get left no archive of {PACKAGE}")
        for archive in found:
            if not archive.name.startswith(_OF_THE_MACHINE):
                run(["dpkg-deb", "-x", str(archive), str(aside / "root")], aside, UNPACK_SECONDS)
        (aside / "root").rename(root)
