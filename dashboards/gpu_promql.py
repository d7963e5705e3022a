# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Values of GPUs from mwatch or, where it has none, from dcgm-exporter.

dcgm-exporter names GPU and pod but never the rank. Its value takes the rank of mwatch's series of
the same UUID; where mwatch sees no GPUs at all, it is shown for the pods of the run without a rank.
Its host was `Hostname` and is now `hostname`: both become `node`. Where Prometheus does not honour
its labels, `pod` is the exporter's own and the trainer's is `exported_pod`.
"""

from __future__ import annotations

from dashboards.promql import PODS, of

_KEPT = "namespace, pod, node, rank, gpu, UUID"
LEGEND = "rank {{rank}} gpu {{gpu}} {{node}}"
_MEBI = 1048576


def by_gpu(own: str, *labels: str) -> str:
    """mwatch's own, one series for each GPU."""
    return f"max by ({', '.join((_KEPT, *labels))}) ({own})"


def own_or_dcgm(own: str, dcgm: str) -> str:
    """Two expressions of the same thing."""
    return f"{by_gpu(own)}\n or on (UUID) {with_rank(dcgm)}\n or on (UUID) {of_pods(dcgm)}"


def dcgm_only(dcgm: str) -> str:
    """For what mwatch does not read."""
    return f"{with_rank(dcgm)}\n or on (UUID) {of_pods(dcgm)}"


def with_rank(dcgm: str) -> str:
    ranked = of("mwatch_gpu_up", PODS, 'rank!=""')
    # One series for each UUID, whoever else reports the same GPU: a join must not be ambiguous.
    ranks = f"topk by (UUID) (1, {ranked} >= bool 0)"
    return f"max by ({_KEPT}) ({_named(dcgm)} * on (UUID) group_left (rank) {ranks})"


def of_pods(dcgm: str) -> str:
    ours = of("mwatch_attempt", PODS)
    return f"max by ({_KEPT}) ({_named(dcgm)} and on (namespace, pod) {ours})"


def _named(dcgm: str) -> str:
    """With `node`, and with the namespace and pod of the trainer."""
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
"""All are among dcgm-exporter's defaults."""
