# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""mwatch itself: its data sources, loop, resource use, errors and scrapes."""

from __future__ import annotations

from dashboards.board import Board, Panel, Query, Row, Step
from dashboards.own_controller import CONTROLLER
from dashboards.promql import BY_RUN, BY_SIDECARS, MANY_RUNS, age, of, rate
from dashboards.states import ABOVE_ZERO_IS_BAD, GOOD_UP, SOURCE_STATES

_WHERE = f'{MANY_RUNS}, pod=~"$pod"'
_BY = "cluster, namespace, pod, instance, run"
_RUN = "{{cluster}} {{namespace}} {{run}}"
_NAME = "{{run}} {{pod}} {{instance}}"
_UP = of("mwatch_source_up", _WHERE)
_SOURCES = f"{_UP} + 2 * (max_over_time({_UP}[1d]) == bool 0)"
_LOOK = of("mwatch_last_look_timestamp_seconds", _WHERE)
_SIDECARS = of("mwatch_last_look_timestamp_seconds", _WHERE, BY_SIDECARS)


def _by(expr: str, *labels: str) -> str:
    return f"max by ({', '.join((_BY, *labels))}) ({expr})"


def _scraped(metric: str) -> str:
    """Targets that exported mwatch metrics in the last hour, including those that are down."""
    return f"{metric} and on (job, instance) last_over_time({_LOOK}[1h])"


SOURCES = Row(
    "Data sources",
    (
        Panel(
            "Sources", "heat",
            (Query(_by(_SOURCES, "source"), "{{run}} {{pod}} {{source}}"),),
            "none",
            "up: can be read. down: could be read within the last day and cannot now. not there: "
            "not available within the last day (no GPU, no RAS).",
            alerts=("MwatchSourceDown", "MwatchBlind"), states=SOURCE_STATES, width=12, height=9,
        ),
        Panel(
            "Time since each source was read", "lines",
            (
                Query(
                    age(_by(of("mwatch_source_read_timestamp_seconds", _WHERE), "source")),
                    "{{run}} {{pod}} {{source}}",
                ),
            ),
            "s", "Time since the last successful read. It grows while a source gives no data.",
            alerts=("MwatchSourceDown",),
            width=12, height=9,
        ),
        Panel(
            "Blind", "heat", (Query(_by(of("mwatch_blind", _WHERE)), _NAME),), "none",
            "1 while this sidecar has no data on the progress of the job.", alerts=("MwatchBlind",),
            steps=ABOVE_ZERO_IS_BAD, width=12,
        ),
        Panel(
            "Time since the last evaluation", "lines", (Query(age(_by(_LOOK)), _NAME),), "s",
            "The loop runs about once a second; collecting evidence may take 20 s. Longer: the "
            "loop is stuck.", alerts=("MwatchLoopStuck",), width=12,
            steps=(Step(None, "green"), Step(20, "yellow"), Step(60, "red")),
        ),
    ),
)  # fmt: skip
COST = Row(
    "Resource use",
    (
        Panel(
            "CPU", "lines", (Query(_by(rate(of("mwatch_own_cpu_seconds_total", _WHERE))), _NAME),),
            "percentunit", "Share of one core. Normal: about 1 %.",
            steps=(Step(None, "green"), Step(0.2, "yellow")),
        ),
        Panel(
            "Memory", "lines", (Query(_by(of("mwatch_own_resident_bytes", _WHERE)), _NAME),),
            "bytes", "Normal: below 64 MiB for a sidecar.", alerts=("MwatchOwnMemoryHigh",),
        ),
        Panel(
            "Uptime", "lines",
            (Query(age(_by(of("mwatch_start_timestamp_seconds", _WHERE))), _NAME),), "s",
            "A sawtooth means that the process restarts repeatedly.", alerts=("MwatchOwnErrors",),
        ),
    ),
)  # fmt: skip
WORK = Row(
    "Input and errors",
    (
        Panel(
            "Log lines", "lines", (Query(_by(rate(of("mwatch_log_lines_total", _WHERE))), _NAME),),
            "cps", "Lines of the training log read per second.", width=6,
        ),
        Panel(
            "Log bytes", "lines", (Query(_by(rate(of("mwatch_log_bytes_total", _WHERE))), _NAME),),
            "Bps", "Bytes of the training log read per second.", width=6,
        ),
        Panel(
            "Dropped data", "lines",
            (
                Query(
                    _by(rate(of("mwatch_dropped_total", _WHERE)), "source"),
                    "{{run}} {{pod}} {{source}}",
                ),
            ),
            "none",
            "Data dropped per second before it was processed, in the unit of the source.",
            alerts=("MwatchDataDropped",), width=6, when_empty="nothing",
        ),
        Panel(
            "Internal errors", "lines",
            (Query(_by(of("mwatch_own_errors_total", _WHERE)), _NAME),),
            "none", "Internal errors that mwatch recovered from. Each is a bug: please report it.",
            alerts=("MwatchOwnErrors",), width=6,
        ),
    ),
    is_collapsed=True,
)  # fmt: skip
SCRAPE = Row(
    "Scrape",
    (
        Panel(
            "Sidecars of each run", "lines",
            (Query(f"count by ({BY_RUN}) ({_SIDECARS})", _RUN),), "none",
            "One per pod of the run. Fewer than before: a sidecar is no longer scraped.",
            alerts=("MwatchSidecarMissing", "MwatchRunVanished"), width=12,
        ),
        Panel(
            "Clock offset from Prometheus", "lines",
            (Query(_by(f"timestamp({_LOOK}) - {_LOOK}"), _NAME),), "s",
            "Age of the last evaluation at the time of the scrape: about a second, unless the loop "
            "is stuck or the clocks differ.",
            alerts=("MwatchClockSkew", "MwatchLoopStuck"), width=12,
        ),
        Panel(
            "Scrape targets", "heat", (Query(_scraped("up"), "{{job}} {{instance}}"),), "none",
            "up while Prometheus can scrape the sidecar or controller.",
            alerts=("MwatchSidecarMissing", "MwatchRunVanished"), states=GOOD_UP,
        ),
        Panel(
            "Scrape duration", "lines",
            (Query(_scraped("scrape_duration_seconds"), "{{job}} {{instance}}"),), "s",
            "As measured by Prometheus. Normal: about 20 ms.",
        ),
        Panel(
            "Samples per scrape", "lines",
            (Query(_scraped("scrape_samples_scraped"), "{{job}} {{instance}}"),), "none",
            "Samples in one scrape. The number is bounded: an iteration is never a label.",
        ),
    ),
    is_collapsed=True,
)  # fmt: skip

BOARD = Board(
    "mwatch",
    "mwatch-own",
    "mwatch / mwatch itself",
    "Sidecars and controllers: data sources, resource use, errors.",
    (SOURCES, COST, WORK, SCRAPE, CONTROLLER),
    many_runs=True,
    has_pods=True,
)
