# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks, NCCL and network cards: the part of the dashboard that needs no GPU."""

from __future__ import annotations

from dashboards.board import Panel, Query, Row, Step
from dashboards.promql import PODS, age, equal, in_order, of, rate
from dashboards.states import ABOVE_ZERO_IS_BAD, GOOD_UP


def _by(label: str, expr: str, *more: str) -> str:
    return f"max by ({', '.join((label, *more))}) ({expr})"


_ITERATION = of("mwatch_rank_iteration", PODS)
_SECONDS = of("mwatch_rank_seconds_total", PODS)
_COLLECTIVE = of("mwatch_rank_seconds_total", PODS, equal("phase", "collective"))
_PORT = "{{pod}} {{device}}"
_RANGE = "$__rate_interval"

RANKS = Row(
    "Ranks by time",
    (
        Panel(
            "Iterations behind the first", "heat",
            (
                Query(
                    in_order(
                        f"-({_by('rank', _ITERATION)} - on () group_left () max({_ITERATION}))"
                    ),
                    "rank {{rank}}",
                ),
            ),
            "none", "0 on all is healthy: ranks step together, one apart for a moment at most.",
            alerts=("MwatchStraggler", "MwatchRankSilent"), width=12, height=9,
            steps=(Step(None, "green"), Step(1, "yellow"), Step(2, "red")),
        ),
        Panel(
            "Since the probe last wrote", "heat",
            (
                Query(
                    in_order(age(_by("rank", of("mwatch_rank_beat_timestamp_seconds", PODS)))),
                    "rank {{rank}}",
                ),
            ),
            "s", "A probe that no longer writes is in a process that is stopped, or holds the GIL.",
            alerts=("MwatchRankSilent",), width=12, height=9,
            steps=(Step(None, "green"), Step(3, "yellow"), Step(10, "red")),
        ),
        Panel(
            "Share of time in a collective", "heat",
            (
                Query(
                    in_order(
                        f"{_by('rank', rate(_COLLECTIVE))}\n"
                        f" / sum by (rank) ({rate(_SECONDS)})"
                    ),
                    "rank {{rank}}",
                ),
            ),
            "percentunit",
            "The rank that is seldom in a collective is the one that the others wait for.",
            alerts=("MwatchStraggler", "MwatchSlow"), low=0, high=1,
            steps=(Step(None, "green"), Step(0.4, "yellow"), Step(0.7, "red")),
        ),
        Panel(
            "CPU of each rank", "lines",
            (Query(_by("rank", rate(of("mwatch_rank_cpu_seconds_total", PODS))), "rank {{rank}}"),),
            "percentunit", "Cores. A rank that waits in a collective spins at 100 %; one that is "
            "stopped uses none.",
        ),
        Panel(
            "Host memory of each rank", "lines",
            (Query(_by("rank", of("mwatch_rank_resident_bytes", PODS)), "rank {{rank}}"),),
            "bytes", "One that rises on and on ends with the kernel's killer.",
            alerts=("MwatchCrashed",), width=4,
        ),
        Panel(
            "Threads of each rank", "lines",
            (Query(_by("rank", of("mwatch_rank_threads", PODS)), "rank {{rank}}"),), "none",
            "Stable after the first step.", width=4,
        ),
    ),
)  # fmt: skip
NCCL = Row(
    "NCCL (RAS)",
    (
        Panel(
            "Communicators", "lines",
            (Query(f"max({of('mwatch_nccl_communicators', PODS)})", "communicators"),), "none",
            "Communicators that NCCL's RAS knows.", width=6,
        ),
        Panel(
            "Ranks that do not answer", "lines",
            (Query(f"max({of('mwatch_nccl_missing_ranks', PODS)})", "missing"),), "none",
            "By NCCL's own service: their process is gone or stopped, or their network is.",
            alerts=("MwatchNcclRankMissing",), steps=ABOVE_ZERO_IS_BAD, width=6,
        ),
        Panel(
            "Communicators out of step", "lines",
            (Query(f"max({of('mwatch_nccl_mismatched_communicators', PODS)})", "out of step"),),
            "none", "Ranks at different operations for longer than a moment.",
            alerts=("MwatchStalled", "MwatchNcclRankMissing",), steps=ABOVE_ZERO_IS_BAD, width=6,
        ),
        Panel(
            "Collectives for each second", "lines",
            (Query(f"max({rate(of('mwatch_nccl_operations_total', PODS))})", "collectives"),),
            "cps", "0 while training is a hang.", width=6,
        ),
    ),
)  # fmt: skip
FABRIC = Row(
    "Network cards",
    (
        Panel(
            "Ports", "heat",
            (
                Query(_by("device", of("mwatch_fabric_port_up", PODS), "pod"), _PORT),
            ),
            "none", "1 while the port is active.", alerts=("MwatchFabricPortDown",),
            states=GOOD_UP,
        ),
        Panel(
            "Traffic", "lines",
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
            "Bps", "Equal over the cards of a job as a rule.",
        ),
        Panel(
            "Errors", "bars",
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
            "none", "Counters of trouble, by the kernel's name for each.",
            alerts=("MwatchFabricFault", "MwatchFabricLinkErrors", "MwatchFabricDegraded",),
        ),
    ),
)  # fmt: skip
