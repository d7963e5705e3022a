# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Instance types and their GPUs, the peak speeds of GPUs, and a cluster of machines.

Memory is the total of `nvidia-smi`. Speeds are the makers' figures for dense 16-bit arithmetic,
NVLink in one direction, and the network of one machine.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MIB = 1024**2


class GpuModel(NamedTuple):
    name: str
    memory_mib: int
    tflops: float | None = None
    link_gbytes: float | None = None  # NVLink in GB/s; None: unknown, or PCIe


class Machine(NamedTuple):
    gpu: GpuModel
    gpus: int
    network_gbits: float | None = None
    efa: int = 0
    cloud: str = ""


PEAK_TFLOPS: dict[str, float] = {
    "GB200": 2500.0,
    "B200": 2250.0,
    "GH200": 989.0,
    "H200 NVL": 836.0,
    "H200": 989.0,
    "H100 NVL": 835.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "H800": 989.0,
    "H20": 148.0,
    "A100": 312.0,
    "A800": 312.0,
    "A10G": 70.0,
    "A10": 125.0,
    "L40S": 362.0,
    "L4": 121.0,
    "V100-SXM2": 125.0,
    "V100-SXM3": 125.0,
    "V100-PCIE": 112.0,
}
"""Peak TFLOPS by words of the driver's name, the longer ones first. From NVIDIA's data sheets of
each GPU: tensor cores, BF16 (V100: FP16), without sparsity, which the sheets often include."""

A10G = GpuModel("A10G", 23028, PEAK_TFLOPS["A10G"])
A100_40 = GpuModel("A100 40GB", 40536, PEAK_TFLOPS["A100"], 300.0)
A100_80 = GpuModel("A100 80GB", 81251, PEAK_TFLOPS["A100"], 300.0)
H100 = GpuModel("H100 80GB", 81559, PEAK_TFLOPS["H100"], 450.0)
H200 = GpuModel("H200", 143771, PEAK_TFLOPS["H200"], 450.0)
B200 = GpuModel("B200", 183359, PEAK_TFLOPS["B200"], 900.0)

MACHINES: dict[str, Machine] = {
    "g5.8xlarge": Machine(A10G, 1, 25.0, 0, "aws"),
    "p4d.24xlarge": Machine(A100_40, 8, 400.0, 4, "aws"),
    "p4de.24xlarge": Machine(A100_80, 8, 400.0, 4, "aws"),
    "p5.48xlarge": Machine(H100, 8, 3200.0, 32, "aws"),
    "p5e.48xlarge": Machine(H200, 8, 3200.0, 32, "aws"),
    "p5en.48xlarge": Machine(H200, 8, 3200.0, 16, "aws"),
    "p6-b200.48xlarge": Machine(B200, 8, 3200.0, 8, "aws"),
    "Standard_NC24ads_A100_v4": Machine(A100_80, 1, 20.0, 0, "azure"),
    "Standard_ND96asr_v4": Machine(A100_40, 8, 1600.0, 0, "azure"),
    "Standard_ND96amsr_A100_v4": Machine(A100_80, 8, 1600.0, 0, "azure"),
    "Standard_ND96isr_H100_v5": Machine(H100, 8, 3200.0, 0, "azure"),
    "Standard_ND96isr_H200_v5": Machine(H200, 8, 3200.0, 0, "azure"),
}


class Cluster(NamedTuple):
    machine: Machine
    nodes: int
    instance: str | None = None  # none: GPUs and memory were given as numbers

    @property
    def world(self) -> int:
        return self.nodes * self.machine.gpus

    @property
    def memory_bytes(self) -> int:
        return self.machine.gpu.memory_mib * MIB

    @property
    def network_gbytes(self) -> float | None:
        """GB/s of one GPU between machines."""
        gbits = self.machine.network_gbits
        return None if gbits is None else gbits / 8 / self.machine.gpus

    @property
    def text(self) -> str:
        gpu = self.machine.gpu
        where = f"{self.instance}: " if self.instance else ""
        return (
            f"{where}{self.nodes} x {self.machine.gpus} {gpu.name} "
            f"({gpu.memory_mib / 1024:.1f} GiB) = {self.world} GPUs"
        )


def peak_tflops(driver_name: str) -> float | None:
    """Return the peak TFLOPS by the driver's name, such as `NVIDIA H100 80GB HBM3`.

    None: unknown, or a slice (MIG).
    """
    words = f" {' '.join(re.split('[ -]+', driver_name.lower()))} "
    for name, tflops in PEAK_TFLOPS.items():
        wanted = name.lower().split()
        if " mig " not in words and all(f" {each.replace('-', ' ')} " in words for each in wanted):
            return tflops
    return None


def find(name: str) -> tuple[str, Machine] | None:
    """Find a machine by name; HyperPod's `ml.` and Azure's `Standard_` are optional prefixes."""
    asked = name.strip().lower().removeprefix("ml.").removeprefix("standard_")
    for each, machine in MACHINES.items():
        if each.lower().removeprefix("standard_") == asked:
            return each, machine
    return None
