# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The process that a sidecar is, once its options are understood.

What reads a command line (typer, and pydantic below it) holds 15 MiB, which a process that runs
for months beside every pod does not need. So the command replaces itself by this module: the same
process, the same pid, without them. What it was told comes through a pipe, for an address may hold
a password, and a command line is for all to read.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mwatch.errors import MwatchError

if TYPE_CHECKING:
    from mwatch.config.sidecar import SidecarSettings

_PIPE_BYTES = 1 << 15
"""A pipe takes at least so much without a reader."""


def become(settings: SidecarSettings) -> NoReturn:
    """Never returns."""
    reported = {
        name: _plain(value) for name, value in asdict(settings).items() if value is not None
    }
    data = json.dumps(reported).encode()
    if not sys.executable or len(data) > _PIPE_BYTES:
        sys.exit(_run(settings))
    reading, writing = os.pipe()
    os.write(writing, data)
    os.set_inheritable(reading, True)
    os.execv(sys.executable, [sys.executable, "-m", "mwatch.cli.sidecar_process", str(reading)])


def main(words: list[str]) -> int:
    from mwatch.config.sidecar import resolve

    with open(int(words[0]), "rb") as reported:
        return _run(resolve(json.load(reported), {}))


def _run(settings: SidecarSettings) -> int:
    from mwatch.cli.render.run_lines import SidecarLines
    from mwatch.sidecar import sidecar as app

    return app.run(settings, SidecarLines(as_json=settings.json_logs, clean=app.clean))


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except MwatchError as error:
        print(f"mwatch: {error}", file=sys.stderr)
        sys.exit(2)
