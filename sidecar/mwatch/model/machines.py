# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Instance types and their GPUs, and a cluster of them.

Memory is the total of `nvidia-smi`. Speeds are the makers' figures for dense 16-bit arithmetic,
NVLink in one direction, and the network of one machine.
"""

from __future__ import annotations

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


A10G = GpuModel("A10G", 23028, 70.0)
A100_40 = GpuModel("A100 40GB", 40536, 312.0, 300.0)
A100_80 = GpuModel("A100 80GB", 81251, 312.0, 300.0)
H100 = GpuModel("H100 80GB", 81559, 989.0, 450.0)
H200 = GpuModel("H200", 143771, 989.0, 450.0)
B200 = GpuModel("B200", 183359, 2250.0, 900.0)

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


def find(name: str) -> tuple[str, Machine] | None:
    """By name; HyperPod's `ml.` and Azure's `Standard_` are optional."""
    asked = name.strip().lower().removeprefix("ml.").removeprefix("standard_")
    for each, machine in MACHINES.items():
        if each.lower().removeprefix("standard_") == asked:
            return each, machine
    return None
