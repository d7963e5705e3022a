# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The accessibility checker axe-core: one pinned file, fetched once into the user's cache."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from browser.devtools import Page
from support.debian_tools import CommandFailed, run_command

VERSION = "4.14.0"
_SHA512 = "9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2GOm3zzpcQ=="
_CACHE = Path.home() / ".cache" / "mwatch" / "npm"
_SECONDS = 120.0
_RUN = """axe.run(document, {resultTypes: ["violations"]}).then((done) =>
  done.violations.map((each) => ({rule: each.id, what: each.nodes.map((node) =>
    node.target.join(" ") + ": " + node.failureSummary).slice(0, 8)})))"""


class AxeMissing(RuntimeError):
    """It cannot be fetched here."""


def axe_source(cache: Path = _CACHE) -> str:
    """Raise AxeMissing if npm or its registry cannot be reached."""
    file = cache / f"axe-core-{VERSION}.js"
    if not file.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            aside = Path(folder) / "axe.js"
            aside.write_bytes(_fetched(Path(folder)))
            os.replace(aside, file)
    return file.read_text("utf-8")


def _fetched(folder: Path) -> bytes:
    command = ["npm", "pack", "--silent", "--ignore-scripts", f"axe-core@{VERSION}"]
    try:
        run_command(command, folder, _SECONDS)
    except CommandFailed as error:
        raise AxeMissing(f"no axe-core {VERSION}: {error}; npm must reach its registry") from error
    package = folder / f"axe-core-{VERSION}.tgz"
    found = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    if found != _SHA512:
        raise AxeMissing(f"axe-core {VERSION} is not the pinned file")
    with tarfile.open(package) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read()


def violations(tab: Page, source: str) -> list[dict[str, Any]]:
    """What axe finds on the open page: the rule, and for a few elements what to do."""
    tab.value(f"{source};0")
    found = tab.value(_RUN)
    assert isinstance(found, list), json.dumps(found)
    return found
