# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch-run`: from the command line to an exit code.

Whatever goes wrong inside mwatch itself, the training command runs: as a last resort this process
becomes it, or, where it runs already, only passes its signals on and returns its exit code.

The version of the wrapper: the same as that of mwatch, which a test compares.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Sequence

from mwatch_trainer.processes import child
from mwatch_trainer.reporting import say
from mwatch_trainer.wrapper.options import Options, parse

if TYPE_CHECKING:
    from mwatch_trainer.wrapper.wrapper import Wrapper


VERSION = "0.1.0"


def main(arguments: Sequence[str] | None = None) -> int:
    """Raises SystemExit for --help, --version and a wrong command line."""
    _occupy_standard_files()
    given = sys.argv[1:] if arguments is None else arguments
    options = parse(given, os.environ, VERSION)
    wrapper: Wrapper | None = None
    try:
        # Here, for what cannot be imported must not keep the command from running either.
        from mwatch_trainer.wrapper.wrapper import Wrapper

        wrapper = Wrapper(options)
        return wrapper.run()
    except Exception as error:  # ours; the trainer must not pay for it
        say(f"internal error, the command goes on without mwatch: {type(error).__name__}: {error}")
        return _without_mwatch(options, wrapper)


def _without_mwatch(options: Options, wrapper: Wrapper | None) -> int:
    process = wrapper.child if wrapper is not None else None
    if wrapper is None or process is None:
        try:
            child.become(options.command, os.environ)
        except child.CannotStart as error:
            say(str(error))
            return error.code
    while process.returncode is None:
        for number in wrapper.signals.wait(1.0):
            child.forward(process, number)
        process.poll()
    return child.shell_code(process.returncode)


def _occupy_standard_files() -> None:
    """A closed stdin, stdout or stderr: else a pipe of ours would get its number."""
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return
        os.set_inheritable(fd, True)
