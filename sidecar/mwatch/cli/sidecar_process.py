# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The process of a sidecar, after its options have been parsed.

typer and what it imports take 15 MiB, which a process that runs for months beside every pod does
not need. So the command replaces itself by this module: the same process and pid, without typer.
The settings come through a pipe, because an address may hold a password and everybody can read a
command line.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, NoReturn

from mwatch.errors import MwatchError

if TYPE_CHECKING:
    from mwatch.config.sidecar import SidecarSettings

_PIPE_BYTES = 1 << 15
"""A pipe holds at least this much without a reader."""


def become(settings: SidecarSettings) -> NoReturn:
    given = {name: value for name, value in asdict(settings).items() if value is not None}
    data = json.dumps(given, default=str).encode()
    if not sys.executable or len(data) > _PIPE_BYTES:
        sys.exit(_run(settings))
    reading, writing = os.pipe()
    os.write(writing, data)
    os.set_inheritable(reading, True)
    os.execv(sys.executable, [sys.executable, "-m", "mwatch.cli.sidecar_process", str(reading)])


def main(pipe: int) -> int:
    from mwatch.config.sidecar import resolve

    with open(pipe, "rb") as given:
        return _run(resolve(json.load(given), {}))


def _run(settings: SidecarSettings) -> int:
    from mwatch.cli.render.run_lines import SidecarLines
    from mwatch.sidecar import sidecar as app
    from mwatch_trainer.scrub.scrubber import scrub_text

    return app.run(settings, SidecarLines(as_json=settings.json_logs, clean=scrub_text))


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1])))
    except MwatchError as error:
        print(f"mwatch: {error}", file=sys.stderr)
        sys.exit(2)
