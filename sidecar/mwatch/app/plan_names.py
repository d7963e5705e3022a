# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The names that `mwatch plan` knows, for people: presets, instance types, storage tiers."""

from __future__ import annotations

from mwatch.plan import parameters
from mwatch.plan.machines import MACHINES
from mwatch.plan.presets import PRESETS
from mwatch.plan.storage import TIERS

Rows = list[tuple[str, ...]]


def presets() -> Rows:
    rows: Rows = [("PRESET", "PARAMETERS", "LAYERS", "HIDDEN", "HEADS", "SEQUENCE", "FROM")]
    for name, preset in PRESETS.items():
        shape = preset.shape
        sizes = (shape.layers, shape.hidden, shape.heads, shape.sequence)
        count = f"{parameters.total(shape) / 1e9:.2f} B"
        rows.append((name, count, *map(str, sizes), preset.source))
    return rows


def instances() -> Rows:
    rows: Rows = [("INSTANCE", "GPUS", "GPU", "GIB EACH", "GBIT/S", "EFA")]
    for name, each in MACHINES.items():
        memory = f"{each.gpu.memory_mib / 1024:.1f}"
        network = f"{each.network_gbits:g}" if each.network_gbits else "?"
        rows.append((name, str(each.gpus), each.gpu.name, memory, network, str(each.efa)))
    return rows


def tiers() -> Rows:
    rows: Rows = [("STORAGE", "MB/S A TIB", "FROM TIB", "GB/S AT USUAL SIZE")]
    for name, each in TIERS.items():
        rate = "one rate" if each.mbytes_per_tib is None else f"{each.mbytes_per_tib:g}"
        usual = f"{each.gbytes(each.usual_tib):.1f}"
        size = f" ({each.usual_tib:g} TiB)" if each.usual_tib else ""
        rows.append((name, rate, f"{each.least_tib:g}", usual + size))
    return rows
