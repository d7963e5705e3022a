# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The peak of a GPU by the name that its driver reports."""

from __future__ import annotations

import pytest

from mwatch.model.machines import peak_tflops

KNOWN = {
    "NVIDIA A10G": 70,
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA A100 80GB PCIe": 312,
    "NVIDIA H100 80GB HBM3": 989,
    "NVIDIA H100 PCIe": 756,
    "NVIDIA H100 NVL": 835,
    "NVIDIA H200": 989,
    "NVIDIA GH200 480GB": 989,
    "NVIDIA B200": 2250,
    "Tesla V100-SXM2-32GB": 125,
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_names_have_a_peak(name: str) -> None:
    assert peak_tflops(name) == KNOWN[name]


@pytest.mark.parametrize(
    "name", ["", "NVIDIA GeForce RTX 4090", "NVIDIA H1000", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"]
)
def test_unknown_gpus_and_slices_have_none(name: str) -> None:
    assert peak_tflops(name) is None
