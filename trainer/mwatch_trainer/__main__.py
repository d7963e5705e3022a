# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch-run`, `python -m mwatch_trainer` and the .pyz: from the command line to an exit code.

If mwatch itself fails, the training command still runs: this process execs it or, if it is already
running, only forwards signals and returns its exit code.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Sequence

from mwatch_trainer import contract
from mwatch_trainer.processes import children
from mwatch_trainer.reporting import report
from mwatch_trainer.wrapper.options import Options, parse

if TYPE_CHECKING:
    from mwatch_trainer.wrapper.wrapper import Wrapper


VERSION = "0.1.0"  # a test compares it with the version of mwatch


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the wrapper. Raises SystemExit for --help, --version and usage errors."""
    _occupy_standard_files()
    given = sys.argv[1:] if arguments is None else arguments
    options = parse(given, os.environ, VERSION)
    wrapper: Wrapper | None = None
    try:
        # Imported here, so that the command still runs if an import fails.
        from mwatch_trainer.wrapper.wrapper import Wrapper

        wrapper = Wrapper(options)
        return wrapper.run()
    except Exception as error:  # a bug in mwatch must not end training
        why = f"{type(error).__name__}: {error}"
        report(f"internal error, the command goes on without mwatch: {why}")
        if options.directory is not None and (wrapper is None or wrapper.child is None):
            contract.leave_unwatched(options.directory, f"the wrapper failed: {why}")
        return _without_mwatch(options, wrapper)


def _without_mwatch(options: Options, wrapper: Wrapper | None) -> int:
    process = wrapper.child if wrapper is not None else None
    if wrapper is None or process is None:
        try:
            children.exec_command(options.command, os.environ)
        except children.CannotStart as error:
            report(str(error))
            return error.code
    while process.returncode is None:
        for number in wrapper.signals.wait(1.0):
            children.forward(process, number)
        process.poll()
    return children.shell_code(process.returncode)


def _occupy_standard_files() -> None:
    """Open closed standard files on /dev/null; else one of our pipes would get their number."""
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return
        os.set_inheritable(fd, True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # before the wrapper handles signals
        sys.exit(130)
