# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The start of every command, and the one place where errors become exit codes.

Exit codes: 0 fine, 1 a finding, 2 usage or bad input, 3 not enough data or no cluster, 130
interrupted; see docs/exit-codes.md.
"""

from __future__ import annotations

import sys

from mwatch.cli.sidecar_process import become_by_variables
from mwatch.errors import MwatchError
from mwatch.kube.errors import KubeError


def main() -> None:
    try:
        if sys.argv[1:] == ["sidecar"]:
            become_by_variables()
        from mwatch.cli.program import run_command

        sys.exit(run_command())
    except MwatchError as error:
        from mwatch.cli.cluster import UNREACHABLE

        print(f"mwatch: {error}", file=sys.stderr)
        sys.exit(UNREACHABLE if isinstance(error, KubeError) else 2)
    except KeyboardInterrupt as interrupted:
        sys.exit(getattr(interrupted, "exit_code", 130))
    except BrokenPipeError:
        from mwatch.cli.terminal import ignore_closed_pipe

        ignore_closed_pipe()
        sys.exit(0)
