# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Debian's headless Chromium for tests, without installing it and without root.

The package and all that it depends on beyond what this machine has are downloaded with apt-get
into the user's cache and unpacked there, about 100 MB; a font comes with it, so that pictures
are alike everywhere. Libraries are found by LD_LIBRARY_PATH. The C library is the machine's own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.debian_tools import Run, ToolMissing, run_command
from support.debian_tree import debian_tree, libraries

PACKAGE = "chromium-headless-shell"
_FONTS = ("fonts-inter", "fonts-dejavu-core")
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
                found["LD_LIBRARY_PATH"] = os.pathsep.join(
                    each for each in libraries(self.root) if not each.endswith("/chromium")
                )
            yield found


def chromium(
    *, cache: Path | None = None, search_path: str | None = None, run: Run = run_command
) -> Chromium:
    """The installed one, else that of the cache; ToolMissing names what fixes it."""
    for name in _INSTALLED:
        if installed := shutil.which(name, path=search_path):
            return Chromium(Path(installed), None)
    root = debian_tree((PACKAGE, *_FONTS), size="about 100 MB", cache=cache, run=run)
    binary = root / "usr/lib/chromium" / PACKAGE
    if not os.access(binary, os.X_OK):
        raise ToolMissing(PACKAGE, PACKAGE, f"{root} has no {binary.relative_to(root)}")
    return Chromium(binary, root)
