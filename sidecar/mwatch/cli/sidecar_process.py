# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The process of a sidecar, after its options have been parsed.

typer and its imports take 15 MiB, which a process that runs for months in every pod should not
waste. So the command replaces itself with this module by `exec`: the same pid, without typer. The
settings of the flags are passed through a pipe, because a URL may contain a password and every user
can read a command line. The C library gives each thread its own heap arena, which is badly
fragmented after weeks of pages and incidents; a single arena (`MALLOC_ARENA_MAX`) saves 7 MiB.

In a pod of plain containers (`until_final`) the exit code of each container counts: a failing
sidecar would fail a pod whose training succeeded. There this process only starts the sidecar,
restarts it after a crash, and always exits with 0.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, NoReturn

from mwatch.errors import MwatchError

if TYPE_CHECKING:
    from mwatch.config.sidecar import SidecarSettings

_MAY_WATCH = ("MWATCH_UNTIL_FINAL", "MWATCH_CONFIG")
"""Variables that may ask for a process that watches another."""
_PIPE_BYTES = 1 << 15
"""A pipe holds at least this much without a reader."""
RESTART_SECONDS = (1.0, 5.0, 15.0, 30.0, 60.0, 60.0, 60.0, 60.0, 60.0)
"""Between a crash and the next start. A sidecar that ran for an hour begins anew with them."""
_CALM_SECONDS = 3600.0
_END_SIGNALS = frozenset([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
_SIGNALS = _END_SIGNALS | {signal.SIGCHLD}


def become(settings: SidecarSettings) -> NoReturn:
    given = {name: value for name, value in asdict(settings).items() if value is not None}
    data = json.dumps(given, default=str).encode()
    if not sys.executable or len(data) > _PIPE_BYTES:
        sys.exit(_run(settings))
    reading, writing = os.pipe()
    os.write(writing, data)
    os.set_inheritable(reading, True)
    _replace_process(str(reading))


def become_by_variables() -> NoReturn:
    """As in a pod, where all settings are variables: there are no options to parse.

    The new process reads the variables itself, unless it may have to watch a child: that one gets
    its settings as usual, because it has to stay small.
    """
    if sys.executable and not any(map(os.environ.get, _MAY_WATCH)):
        _replace_process()
    from mwatch.config.sidecar import resolve

    become(resolve({}, os.environ))


def _replace_process(*pipe: str) -> NoReturn:
    words = [sys.executable, "-m", "mwatch.cli.sidecar_process", *pipe]
    os.execve(sys.executable, words, {"MALLOC_ARENA_MAX": "1", **os.environ})


def main(pipe: int | None = None) -> int:
    """`pipe`: where the settings come from; None: from the variables."""
    settings = {}
    if pipe is not None:
        with open(pipe, "rb") as given:
            settings = json.load(given)
    if settings.get("until_final") and not _is_child_to_watch(RESTART_SECONDS):
        return 0
    from mwatch.config.sidecar import resolve

    return _run(resolve(settings, os.environ if pipe is None else {}))


def _is_child_to_watch(waits: Sequence[float]) -> bool:
    """Return True in each child, and False in this process when all is over."""
    # Blocked, so that no signal is lost between fork and wait, or ignored, as for process 1.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    parent, left = os.getpid(), [*waits]
    while True:
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            _die_with_parent(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            return True
        status, is_asked = _wait_for(child)
        if status == 0 or is_asked:
            return False
        if time.monotonic() - began > _CALM_SECONDS:
            left = [*waits]
        how = f"exit code {status}" if status > 0 else f"signal {-status}"
        if not left:
            _report(f"the sidecar failed again ({how}): training goes on unwatched")
            return False
        _report(f"the sidecar failed ({how}): starts again in {left[0]:.0f} s")
        if signal.sigtimedwait(_END_SIGNALS, left.pop(0)) is not None:
            return False


def _wait_for(child: int) -> tuple[int, bool]:
    """The exit code, negative for a signal; and whether this process was asked to end."""
    is_asked = False
    while True:
        came = signal.sigwait(_SIGNALS)
        if came in _END_SIGNALS:
            is_asked = True
            os.kill(child, came)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), is_asked


def _die_with_parent(parent: int) -> None:
    """Else a killed parent would leave a sidecar behind, outside a container."""
    from mwatch_trainer.processes.children import die_with_parent

    die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(0)


def _report(text: str) -> None:
    print(f"mwatch: {text}", file=sys.stderr, flush=True)


def _run(settings: SidecarSettings) -> int:
    from mwatch.config.catalogue import compiled_meanwhile

    with compiled_meanwhile():
        from mwatch.cli.render.run_lines import SidecarLines
        from mwatch.sidecar import sidecar as app
        from mwatch_trainer.scrub.scrubber import scrub_text

    return app.run(settings, SidecarLines(as_json=settings.json_logs, clean=scrub_text))


if __name__ == "__main__":
    try:
        sys.exit(main(*map(int, sys.argv[1:])))
    except MwatchError as error:
        print(f"mwatch: {error}", file=sys.stderr)
        sys.exit(2)
