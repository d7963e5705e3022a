# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks, NCCL and network ports: the part of the dashboard that needs no GPU."""

from __future__ import annotations

from dashboards.board import Panel, Query, Row, Step
from dashboards.promql import PODS, age, equal, of, rate, worst
from dashboards.states import ABOVE_ZERO_IS_BAD, GOOD_UP


def _by(label: str, expr: str, *more: str) -> str:
    return f"max by ({', '.join((label, *more))}) ({expr})"


_ITERATION = of("mwatch_rank_iteration", PODS)
_SECONDS = of("mwatch_rank_seconds_total", PODS)
_COLLECTIVE = of("mwatch_rank_seconds_total", PODS, equal("phase", "collective"))
_PORT = "{{pod}} {{device}}"
_RANGE = "$__rate_interval"

RANKS = Row(
    "Ranks over time",
    (
        Panel(
            "Iterations behind the fastest rank", "heat",
            (
                Query(
                    worst(
                        f"-({_by('rank', _ITERATION)} - on () group_left () max({_ITERATION}))"
                    ),
                    "rank {{rank}}",
                ),
            ),
            "none",
            "Healthy: 0 everywhere. Ranks step together and differ by one for a moment at most.",
            alerts=("MwatchStraggler", "MwatchRankSilent"), width=12, height=9,
            steps=(Step(None, "green"), Step(1, "yellow"), Step(2, "red")),
        ),
        Panel(
            "Age of the last probe record", "heat",
            (
                Query(
                    worst(age(_by("rank", of("mwatch_rank_beat_timestamp_seconds", PODS)))),
                    "rank {{rank}}",
                ),
            ),
            "s", "Growing: the process of this rank is stopped or dead, or holds the GIL.",
            alerts=("MwatchRankSilent",), width=12, height=9,
            steps=(Step(None, "green"), Step(3, "yellow"), Step(10, "red")),
        ),
        Panel(
            "Share of time in a collective", "heat",
            (
                Query(
                    worst(
                        f"{_by('rank', rate(_COLLECTIVE))}\n"
                        f" / sum by (rank) ({rate(_SECONDS)})",
                        is_lowest=True,
                    ),
                    "rank {{rank}}",
                ),
            ),
            "percentunit",
            "The rank with the lowest share is the one that the others wait for.",
            alerts=("MwatchStraggler", "MwatchSlow"), low=0, high=1,
            steps=(Step(None, "green"), Step(0.4, "yellow"), Step(0.7, "red")),
        ),
        Panel(
            "CPU per rank", "lines",
            (Query(_by("rank", rate(of("mwatch_rank_cpu_seconds_total", PODS))), "rank {{rank}}"),),
            "percentunit", "100 % is one core. A rank waiting in a collective spins at 100 %; a "
            "stopped one uses none.",
        ),
        Panel(
            "Host memory per rank", "lines",
            (Query(_by("rank", of("mwatch_rank_resident_bytes", PODS)), "rank {{rank}}"),),
            "bytes", "If it keeps rising, the kernel will kill the process (OOM).",
            alerts=("MwatchCrashed",), width=4,
        ),
        Panel(
            "Threads per rank", "lines",
            (Query(_by("rank", of("mwatch_rank_threads", PODS)), "rank {{rank}}"),), "none",
            "Normally stable after the first step.", width=4,
        ),
    ),
)  # fmt: skip
NCCL = Row(
    "NCCL (RAS)",
    (
        Panel(
            "Communicators", "lines",
            (Query(f"max({of('mwatch_nccl_communicators', PODS)})", "communicators"),), "none",
            "Communicators known to NCCL RAS.", width=6,
        ),
        Panel(
            "Ranks not responding", "lines",
            (Query(f"max({of('mwatch_nccl_missing_ranks', PODS)})", "missing"),), "none",
            "According to NCCL RAS: the process is dead or stopped, or its network is down.",
            alerts=("MwatchNcclRankMissing",), steps=ABOVE_ZERO_IS_BAD, width=6,
        ),
        Panel(
            "Communicators out of step", "lines",
            (Query(f"max({of('mwatch_nccl_mismatched_communicators', PODS)})", "out of step"),),
            "none", "Communicators whose ranks have been at different operations for some time.",
            alerts=("MwatchStalled", "MwatchNcclRankMissing",), steps=ABOVE_ZERO_IS_BAD, width=6,
        ),
        Panel(
            "Collectives per second", "lines",
            (Query(f"max({rate(of('mwatch_nccl_operations_total', PODS))})", "collectives"),),
            "cps", "0 in the training phase means a hang.", width=6,
        ),
    ),
    is_collapsed=True,
)  # fmt: skip
FABRIC = Row(
    "Network ports",
    (
        Panel(
            "Port state", "heat",
            (
                Query(_by("device", of("mwatch_fabric_port_up", PODS), "pod"), _PORT),
            ),
            "none", "up while the port is active.", alerts=("MwatchFabricPortDown",),
            states=GOOD_UP,
        ),
        Panel(
            "Port traffic", "lines",
            (
                Query(
                    _by("device", rate(of("mwatch_fabric_received_bytes_total", PODS)), "pod"),
                    "{{pod}} {{device}} received",
                ),
                Query(
                    _by("device", rate(of("mwatch_fabric_sent_bytes_total", PODS)), "pod"),
                    "{{pod}} {{device}} sent",
                ),
            ),
            "Bps", "Usually equal on all ports of a job.",
        ),
        Panel(
            "Port errors", "bars",
            (
                Query(
                    _by(
                        "device",
                        f"increase({of('mwatch_fabric_errors_total', PODS)}[{_RANGE}])",
                        "pod", "reason",
                    ),
                    "{{pod}} {{device}} {{reason}}",
                ),
            ),
            "none", "Error counters, by their kernel name.",
            alerts=("MwatchFabricFault", "MwatchFabricLinkErrors", "MwatchFabricDegraded",),
        ),
    ),
    is_collapsed=True,
)  # fmt: skip
