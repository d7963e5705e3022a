# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every process that a test starts reacts to signals as one started from a terminal.

A shell starts what it runs in the background with SIGINT and SIGQUIT ignored, `nohup` ignores
SIGHUP, and a child inherits what is ignored: a test that sends Ctrl-C would wait for its limit. A
signal with a handler is reset to its default in a new program, so a handler that does nothing
keeps the tests themselves deaf to the signal and gives all their children the default.
"""

from __future__ import annotations

import signal

_SENT_BY_TESTS = (
    signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip


def give_children_default_signals() -> None:
    """Only from the main thread."""
    for number in _SENT_BY_TESTS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
