# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Entry point of every command, and the only place where errors are mapped to exit codes.

Exit codes: 0 fine, 1 a finding, 2 usage or bad input, 3 not enough data or no cluster, 70 an error
of mwatch itself, 130 interrupted; see docs/exit-codes.md.
"""

from __future__ import annotations

import os
import sys

from mwatch.cli.sidecar_process import become_by_variables
from mwatch.errors import MwatchError
from mwatch.kube.errors import KubeError

_OWN_ERROR = 70
_IN_PODS = ("sidecar", "controller")
_SHOWN = "MWATCH_TRACEBACK"
_MAX_CHARACTERS = 1 << 20


def main() -> None:
    try:
        if sys.argv[1:] == ["sidecar"]:
            become_by_variables()
        from mwatch.cli.program import run_command

        sys.exit(run_command())
    except MwatchError as error:
        from mwatch.cli.shared.cluster import UNREACHABLE

        print(f"mwatch: {error}", file=sys.stderr)
        sys.exit(UNREACHABLE if isinstance(error, KubeError) else 2)
    except KeyboardInterrupt as interrupted:
        sys.exit(getattr(interrupted, "exit_code", 130))
    except BrokenPipeError:
        from mwatch.cli.shared.terminal import ignore_closed_pipe

        ignore_closed_pipe()
        sys.exit(0)
    except Exception as error:
        sys.exit(report_own(error))


def report_own(error: Exception) -> int:
    """Report an error of mwatch itself and return the exit code: one line for the user, and the
    traceback in a file to attach to a bug report. A process in a pod prints the traceback too,
    because nobody finds a file there."""
    import traceback

    from mwatch_trainer.scrub.scrubber import scrub_text

    whole = scrub_text("".join(traceback.format_exception(error)))[-_MAX_CHARACTERS:]
    if (sys.argv[1:2] and sys.argv[1] in _IN_PODS) or os.environ.get(_SHOWN):
        print(whole, file=sys.stderr, end="")
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    text = f"mwatch: this is an error of mwatch, not of yours: {type(error).__name__}{place}"
    print(f"{text}; please report it with {_saved(whole)}", file=sys.stderr)
    return _OWN_ERROR


def _saved(whole: str) -> str:
    import tempfile

    try:
        handle, name = tempfile.mkstemp(prefix="mwatch-error-", suffix=".txt")
        with open(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(whole)
    except OSError:
        return f"what {_SHOWN}=1 prints"
    return name
