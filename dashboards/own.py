# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""mwatch itself: can it see, does its loop turn, what does it cost, what has it lost."""

from __future__ import annotations

from dashboards.board import Board, Panel, Query, Row, Step
from dashboards.own_controller import CONTROLLER
from dashboards.promql import BY_SIDECARS, MANY_RUNS, age, of, rate
from dashboards.states import ABOVE_ZERO_IS_BAD, GOOD_UP, SOURCE_STATES

_WHERE = f'{MANY_RUNS}, pod=~"$pod"'
_BY = "namespace, pod, instance, run"
_NAME = "{{run}} {{pod}} {{instance}}"
_UP = of("mwatch_source_up", _WHERE)
_SOURCES = f"{_UP} + 2 * (max_over_time({_UP}[1d]) == bool 0)"
_LOOK = of("mwatch_last_look_timestamp_seconds", _WHERE)
_SIDECARS = of("mwatch_last_look_timestamp_seconds", _WHERE, BY_SIDECARS)


def _by(expr: str, *labels: str) -> str:
    return f"max by ({', '.join((_BY, *labels))}) ({expr})"


def _scraped(metric: str) -> str:
    """Of the targets that have shown a watcher in the last hour, also while they are down."""
    return f"{metric} and on (job, instance) last_over_time({_LOOK}[1h])"


SIGHT = Row(
    "Can it see",
    (
        Panel(
            "Sources", "heat",
            (Query(_by(_SOURCES, "source"), "{{run}} {{pod}} {{source}}"),),
            "none",
            "Up while a source can be read, down while one that could be read cannot. One that was "
            "not there within a day (no GPU, no RAS) is shown as such.",
            alerts=("MwatchSourceDown", "MwatchBlind"), states=SOURCE_STATES, width=12, height=9,
        ),
        Panel(
            "Since each source was read well", "lines",
            (
                Query(
                    age(_by(of("mwatch_source_read_timestamp_seconds", _WHERE), "source")),
                    "{{run}} {{pod}} {{source}}",
                ),
            ),
            "s", "A source that stands still tells nothing new.", alerts=("MwatchSourceDown",),
            width=12, height=9,
        ),
        Panel(
            "Blind", "heat", (Query(_by(of("mwatch_blind", _WHERE)), _NAME),), "none",
            "1 while this watcher cannot see how the job is.", alerts=("MwatchBlind",),
            steps=ABOVE_ZERO_IS_BAD, width=12,
        ),
        Panel(
            "Since the last look", "lines", (Query(age(_by(_LOOK)), _NAME),), "s",
            "The loop turns about once a second; evidence may hold it for 20 s. Longer: it is "
            "stuck.", alerts=("MwatchLoopStuck",), width=12,
            steps=(Step(None, "green"), Step(20, "yellow"), Step(60, "red")),
        ),
    ),
)  # fmt: skip
COST = Row(
    "What it costs",
    (
        Panel(
            "CPU", "lines", (Query(_by(rate(of("mwatch_own_cpu_seconds_total", _WHERE))), _NAME),),
            "percentunit", "Of one core. Usual: about 1 %.",
            steps=(Step(None, "green"), Step(0.2, "yellow")),
        ),
        Panel(
            "Memory", "lines", (Query(_by(of("mwatch_own_resident_bytes", _WHERE)), _NAME),),
            "bytes", "Usual: below 64 MiB for a sidecar.", alerts=("MwatchOwnMemoryHigh",),
        ),
        Panel(
            "Running for", "lines",
            (Query(age(_by(of("mwatch_start_timestamp_seconds", _WHERE))), _NAME),), "s",
            "A saw tooth is a watcher that is being restarted.", alerts=("MwatchOwnErrors",),
        ),
    ),
)  # fmt: skip
WORK = Row(
    "What it reads and loses",
    (
        Panel(
            "Log lines", "lines", (Query(_by(rate(of("mwatch_log_lines_total", _WHERE))), _NAME),),
            "cps", "Lines of the trainer's log that were read, for each second.", width=6,
        ),
        Panel(
            "Log bytes", "lines", (Query(_by(rate(of("mwatch_log_bytes_total", _WHERE))), _NAME),),
            "Bps", "The same in bytes.", width=6,
        ),
        Panel(
            "Dropped", "lines",
            (
                Query(
                    _by(rate(of("mwatch_dropped_total", _WHERE)), "source"),
                    "{{run}} {{pod}} {{source}}",
                ),
            ),
            "none",
            "Lost before anybody could look at it, for each second, in the unit of the source.",
            alerts=("MwatchDataDropped",), width=6, when_empty="nothing",
        ),
        Panel(
            "Faults of its own", "lines",
            (Query(_by(of("mwatch_own_errors_total", _WHERE)), _NAME),),
            "none", "Faults of mwatch that it survived. Each is a bug: please report it.",
            alerts=("MwatchOwnErrors",), width=6,
        ),
    ),
)  # fmt: skip
SCRAPE = Row(
    "Scrape",
    (
        Panel(
            "Sidecars of each run", "lines",
            (Query(f"count by (namespace, run) ({_SIDECARS})", "{{namespace}} {{run}}"),), "none",
            "One for each pod of the run. Fewer than before: a sidecar is no longer scraped.",
            alerts=("MwatchSidecarMissing", "MwatchRunVanished"), width=12,
        ),
        Panel(
            "Clock against Prometheus's", "lines",
            (Query(_by(f"timestamp({_LOOK}) - {_LOOK}"), _NAME),), "s",
            "Age of the newest look at the moment of the scrape: about a second, unless the loop "
            "is stuck or the clocks differ.",
            alerts=("MwatchClockSkew", "MwatchLoopStuck"), width=12,
        ),
        Panel(
            "Targets", "heat", (Query(_scraped("up"), "{{job}} {{instance}}"),), "none",
            "1 while Prometheus can scrape the watcher.",
            alerts=("MwatchSidecarMissing", "MwatchRunVanished"), states=GOOD_UP,
        ),
        Panel(
            "Time of a scrape", "lines",
            (Query(_scraped("scrape_duration_seconds"), "{{job}} {{instance}}"),), "s",
            "As Prometheus measured it. Usual: 20 ms.",
        ),
        Panel(
            "Series", "lines",
            (Query(_scraped("scrape_samples_scraped"), "{{job}} {{instance}}"),), "none",
            "Values in one scrape. It is bounded: an iteration is never a label.",
        ),
    ),
)  # fmt: skip

BOARD = Board(
    "mwatch",
    "mwatch-own",
    "mwatch / mwatch itself",
    "The watchers: what they see, cost and lose.",
    (SIGHT, COST, WORK, SCRAPE, CONTROLLER),
    many_runs=True,
    has_pods=True,
)
