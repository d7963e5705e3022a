# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics of the watcher itself: what it can see, what it lost, what it costs."""

from __future__ import annotations

from mwatch.export.metric import Metric, counter, gauge

SOURCE_UP = gauge(
    "source_up", "0 or 1", "1 while this source can be read, 0 while it cannot.", "source"
)
SOURCE_READ = gauge(
    "source_read_timestamp_seconds",
    "seconds since 1970",
    "When this source was last read well.",
    "source",
)
BLIND = gauge("blind", "0 or 1", "1 while mwatch cannot see how the job is.")
LOOK = gauge(
    "last_look_timestamp_seconds",
    "seconds since 1970",
    "When mwatch last looked at the job: it stands still when its own loop does.",
)

ACTING = gauge("acting", "0 or 1", "1 where this run is acted on, 0 where it is only observed.")
STARTED = gauge("start_timestamp_seconds", "seconds since 1970", "When this watcher was started.")
LOG_LINES = counter("log_lines", "lines", "Lines of the trainer's log that were read.")
LOG_BYTES = counter("log_bytes", "bytes", "Bytes of the trainer's log that were read.")
DROPPED = counter(
    "dropped",
    "items",
    "Lost before anybody could look at it, in the unit of that source: bytes of the log, samples.",
    "source",
)
OWN_ERRORS = counter("own_errors", "errors", "Faults of mwatch itself that it survived.")
OWN_CPU = counter("own_cpu_seconds", "seconds", "CPU time of this watcher.")
OWN_MEMORY = gauge("own_resident_bytes", "bytes", "Memory of this watcher.")

ALL: tuple[Metric, ...] = tuple(each for each in vars().copy().values() if isinstance(each, Metric))
