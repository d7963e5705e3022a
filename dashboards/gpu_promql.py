# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""PromQL for GPU metrics: from mwatch or, if it has no value, from dcgm-exporter.

dcgm-exporter labels GPU and pod but not the rank. Its series take the rank from mwatch's series of
the same UUID; if mwatch has no GPU data, they are shown for the pods of the run without a rank.
The host label was `Hostname` and is now `hostname`: both become `node`. If Prometheus does not
honour its labels, `pod` is the exporter's own pod and `exported_pod` the trainer's.
"""

from __future__ import annotations

from dashboards.promql import PODS, of

_KEPT = "cluster, namespace, pod, node, rank, gpu, UUID"
LEGEND = "rank {{rank}} gpu {{gpu}} {{node}}"
_MEBI = 1048576


def by_gpu(own: str, *labels: str) -> str:
    """Aggregate an mwatch expression to one series per GPU."""
    return f"max by ({', '.join((_KEPT, *labels))}) ({own})"


def own_or_dcgm(own: str, dcgm: str) -> str:
    """Prefer the mwatch expression; fall back to dcgm-exporter."""
    return f"{by_gpu(own)}\n or on (UUID) {with_rank(dcgm)}\n or on (UUID) {of_pods(dcgm)}"


def dcgm_only(dcgm: str) -> str:
    """A value that only dcgm-exporter has."""
    return f"{with_rank(dcgm)}\n or on (UUID) {of_pods(dcgm)}"


def with_rank(dcgm: str) -> str:
    ranked = of("mwatch_gpu_up", PODS, 'rank!=""')
    # One series per UUID, even if several pods report the same GPU: the join must be unambiguous.
    ranks = f"topk by (UUID) (1, {ranked} >= bool 0)"
    return f"max by ({_KEPT}) ({_named(dcgm)} * on (UUID) group_left (rank) {ranks})"


def of_pods(dcgm: str) -> str:
    ours = of("mwatch_attempt", PODS)
    return f"max by ({_KEPT}) ({_named(dcgm)} and on (cluster, namespace, pod) {ours})"


def _named(dcgm: str) -> str:
    """Normalise the labels: `node`, and the namespace and pod of the trainer."""
    for source, target in (
        ("Hostname", "node"),
        ("hostname", "node"),
        ("exported_namespace", "namespace"),
        ("exported_pod", "pod"),
    ):
        dcgm = f'label_replace({dcgm}, "{target}", "$1", "{source}", "(.+)")'
    return dcgm


UTILIZATION = own_or_dcgm(of("mwatch_gpu_utilization_ratio", PODS), "DCGM_FI_DEV_GPU_UTIL / 100")
TENSOR = own_or_dcgm(of("mwatch_gpu_tensor_active_ratio", PODS), "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")
POWER = own_or_dcgm(of("mwatch_gpu_power_watts", PODS), "DCGM_FI_DEV_POWER_USAGE")
TEMPERATURE = own_or_dcgm(of("mwatch_gpu_temperature_celsius", PODS), "DCGM_FI_DEV_GPU_TEMP")
CLOCK = own_or_dcgm(of("mwatch_gpu_sm_clock_hertz", PODS), "DCGM_FI_DEV_SM_CLOCK * 1000000")
MEMORY = own_or_dcgm(of("mwatch_gpu_memory_used_bytes", PODS), f"DCGM_FI_DEV_FB_USED * {_MEBI}")
XID = own_or_dcgm(of("mwatch_gpu_last_xid", PODS), "DCGM_FI_DEV_XID_ERRORS")
REMAP_FAILED = own_or_dcgm(of("mwatch_gpu_row_remap_failed", PODS), "DCGM_FI_DEV_ROW_REMAP_FAILURE")
PCIE_REPLAYS = own_or_dcgm(
    f"increase({of('mwatch_gpu_pcie_replays_total', PODS)}[$__rate_interval])",
    "increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[$__rate_interval])",
)
BANDWIDTH = dcgm_only("DCGM_FI_PROF_DRAM_ACTIVE")

DCGM = frozenset(
    {
        "DCGM_FI_DEV_FB_USED",
        "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "DCGM_FI_DEV_SM_CLOCK",
        "DCGM_FI_DEV_XID_ERRORS",
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    }
)
"""All are in the default set of dcgm-exporter."""
