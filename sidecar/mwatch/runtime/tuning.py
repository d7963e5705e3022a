# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Prepare this process for a large, steady heap, two busy threads and thousands of connections."""

from __future__ import annotations

import gc
import resource
import sys
from contextlib import suppress

_SWITCH_SECONDS = 0.001
_OBJECTS = 50_000, 20, 50


def tune_process() -> None:
    """Thousands of pods live for days, so the garbage collector need not look at them often; the
    thread that listens to them must not wait for the one that evaluates them."""
    gc.freeze()
    gc.set_threshold(*_OBJECTS)
    sys.setswitchinterval(_SWITCH_SECONDS)
    allow_open_files()


def allow_open_files() -> None:
    """As many as this process may ask for: each pod is one connection, and the usual limit of a
    shell or of systemd is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # a container may forbid it: the pods beyond it fail
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
