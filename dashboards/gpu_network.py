# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs and network of one run, by rank, to find the one that differs from the others."""

from __future__ import annotations

from dashboards import gpu_promql as gpu
from dashboards.board import Board, Panel, Query, Row, Step
from dashboards.gpu_promql import by_gpu
from dashboards.marks import marks
from dashboards.promql import ONE_RUN, PODS, of, rate, worst
from dashboards.rank_panels import FABRIC, NCCL, RANKS
from dashboards.states import ABOVE_ZERO_IS_BAD, GOOD_NO, GOOD_UP

_NAME = gpu.LEGEND
_RED = Step(None, "red")
_UNCORRECTED = of("mwatch_gpu_ecc_uncorrected_errors_total", PODS)
_CORRECTED = of("mwatch_gpu_ecc_corrected_errors_total", PODS)


def _increase(metric: str, *labels: str) -> str:
    return by_gpu(f"increase({of(metric, PODS)}[$__rate_interval])", *labels)


HEAT = Row(
    "GPUs by rank over time",
    (
        Panel(
            "Utilisation", "heat", (Query(worst(gpu.UTILIZATION, is_lowest=True), _NAME),),
            "percentunit",
            "Healthy: 70 to 95 %. Below 50 %: the GPU waits for something. 0 on all: a hang. 0 on "
            "some: ranks are out of step. A rank waiting in NCCL also reads 100 %: compare with "
            "the tensor cores.",
            alerts=("MwatchStalled",), low=0, high=1, width=12, height=9,
            steps=(_RED, Step(0.01, "orange"), Step(0.5, "yellow"), Step(0.7, "green")),
        ),
        Panel(
            "Tensor cores active", "heat", (Query(worst(gpu.TENSOR, is_lowest=True), _NAME),),
            "percentunit",
            "The reliable sign of work (Hopper and newer, or dcgm-exporter). If one rank stays "
            "active while the others drop, the others wait for it.",
            alerts=("MwatchStalled", "MwatchStraggler"), low=0, high=1, width=12, height=9,
            steps=(_RED, Step(0.02, "orange"), Step(0.1, "yellow"), Step(0.2, "green")),
        ),
        Panel(
            "Power", "heat", (Query(worst(gpu.POWER, is_lowest=True), _NAME),), "watt",
            "Near the limit under load (400 W on an A100, 700 W on an H100). A waiting GPU draws "
            "visibly less.", width=12, height=9,
            steps=(_RED, Step(150, "orange"), Step(300, "yellow"), Step(400, "green")),
        ),
        Panel(
            "Temperature", "heat", (Query(worst(gpu.TEMPERATURE), _NAME),), "celsius",
            "Healthy: below 83 °C (A100).", alerts=("MwatchGpuHot",), width=12, height=9,
            steps=(Step(None, "green"), Step(78, "yellow"), Step(83, "red")),
        ),
    ),
)  # fmt: skip
LOAD = Row(
    "GPUs: load",
    (
        Panel(
            "Memory used", "lines",
            (
                Query(gpu.MEMORY, _NAME),
                Query(f"max({of('mwatch_gpu_memory_total_bytes', PODS)})", "total"),
            ),
            "bytes", "GPU memory in use, and the total of one GPU.",
        ),
        Panel(
            "Memory bandwidth (dcgm-exporter)", "lines", (Query(gpu.BANDWIDTH, _NAME),),
            "percentunit", "Healthy: 40 to 70 %. Available from dcgm-exporter only.", low=0, high=1,
            steps=(Step(None, "yellow"), Step(0.4, "green"), Step(0.7, "yellow")),
            when_empty="no dcgm-exporter",
        ),
        Panel(
            "SM clock", "lines", (Query(gpu.CLOCK, _NAME),), "hertz",
            "Normally equal on all GPUs of a job. A GPU with a lower clock is throttled, and all "
            "ranks wait for it.",
            alerts=("MwatchGpuThrottled",),
        ),
        Panel(
            "Power relative to its limit", "lines",
            (
                Query(
                    f"{by_gpu(of('mwatch_gpu_power_watts', PODS))}\n"
                    f" / {by_gpu(of('mwatch_gpu_power_limit_watts', PODS))}",
                    _NAME,
                ),
            ),
            "percentunit", "Near 100 % under load.", low=0, high=1.1,
        ),
        Panel(
            "Throttled now, by reason", "heat",
            (Query(by_gpu(of("mwatch_gpu_throttled", PODS), "reason"), _NAME + " {{reason}}"),),
            "none",
            "The power cap (sw_power_cap) is normal at full load; heat and power brake are not.",
            alerts=("MwatchGpuThrottled",), when_empty="no GPU is throttled",
            steps=(Step(None, "green"), Step(0.5, "orange")),
        ),
        Panel(
            "Share of time throttled, by reason", "lines",
            (
                Query(
                    by_gpu(rate(of("mwatch_gpu_throttled_seconds_total", PODS)), "reason"),
                    _NAME + " {{reason}}",
                ),
            ),
            "percentunit", "From the counters of the driver.", alerts=("MwatchGpuThrottled",),
        ),
    ),
    is_collapsed=True,
)  # fmt: skip
FAULTS = Row(
    "GPUs: faults",
    (
        Panel(
            "Reachable by the driver", "heat",
            (Query(worst(by_gpu(of("mwatch_gpu_up", PODS)), is_lowest=True), _NAME),), "none",
            "down: the GPU fell off the bus, or the driver lost it.", alerts=("MwatchGpuLost",),
            states=GOOD_UP,
        ),
        Panel(
            "Last Xid", "heat", (Query(gpu.XID, _NAME),), "none",
            "The last Xid of each GPU. `mwatch faults xid-NN` explains it.",
            alerts=("MwatchGpuFault", "MwatchGpuSuspect"), steps=ABOVE_ZERO_IS_BAD,
            when_empty="none",
        ),
        Panel(
            "Recovery action requested by the driver", "heat",
            (Query(by_gpu(of("mwatch_gpu_recovery_action", PODS)), _NAME),), "none",
            "0 nothing, 1 reset the GPU, 2 reboot the node, 3 drain peers, 4 drain and reset, 5 "
            "recover the IMEX domain, 6 reset the bus, 7 reboot the system.",
            alerts=("MwatchGpuResetDue",), steps=ABOVE_ZERO_IS_BAD,
        ),
        Panel(
            "Memory errors", "lines",
            (
                Query(by_gpu(_UNCORRECTED), _NAME + " uncorrected"),
                Query(by_gpu(_CORRECTED), _NAME + " corrected"),
            ),
            "none", "Since the driver was loaded. An uncorrected error usually ends the job.",
            alerts=("MwatchGpuMemoryErrors",),
        ),
        Panel(
            "Remapped rows", "lines",
            (
                Query(by_gpu(of("mwatch_gpu_remapped_rows", PODS), "kind"), _NAME + " {{kind}}"),
            ),
            "none", "Memory rows replaced by spare rows.", alerts=("MwatchGpuRowRemapFailed",),
        ),
        Panel(
            "Row remapping pending or failed", "heat",
            (
                Query(by_gpu(of("mwatch_gpu_row_remap_pending", PODS)), _NAME + " pending"),
                Query(gpu.REMAP_FAILED, _NAME + " failed"),
            ),
            "none", "pending: reset the GPU after the job. failed: replace the GPU.",
            alerts=("MwatchGpuRowRemapFailed", "MwatchGpuResetDue"), states=GOOD_NO,
        ),
        Panel(
            "NVLink errors", "bars",
            (Query(_increase("mwatch_gpu_nvlink_errors_total", "reason"), _NAME + " {{reason}}"),),
            "none", "All links of the GPU, by kind of error. Repeated errors mean a bad link.",
            alerts=("MwatchNvlinkErrors",), width=12,
        ),
        Panel(
            "PCIe replays", "bars", (Query(gpu.PCIE_REPLAYS, _NAME),), "none",
            "Packets sent again over PCIe. A few are normal; many slow the GPU down.", width=12,
        ),
    ),
    is_collapsed=True,
)  # fmt: skip

BOARD = Board(
    "gpu-network",
    "mwatch-gpu-network",
    "mwatch / GPU and network per rank",
    "GPUs, NCCL and network of one run, by rank. Works with and without dcgm-exporter. Of more "
    "than 64 ranks, the maps show the 64 worst at each moment.",
    (RANKS, HEAT, LOAD, FAULTS, NCCL, FABRIC),
    many_runs=False,
    has_pods=True,
    annotations=marks(ONE_RUN),
)
