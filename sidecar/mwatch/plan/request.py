# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Turn the options of `mwatch plan` into a request: presets, instances and storage tiers by name.

InputError lists the names that are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from mwatch.errors import InputError
from mwatch.plan import machines, parameters, storage
from mwatch.plan.choose import Fixed
from mwatch.plan.layout import Recompute
from mwatch.plan.machines import MACHINES, Cluster, GpuModel, Machine
from mwatch.plan.shape import PRESETS, Experts, ModelShape, Preset, find_preset
from mwatch.plan.storage import TIERS, Store

_NEEDED = ("layers", "hidden", "heads", "sequence")
Rows = list[tuple[str, ...]]


def preset(name: str) -> Preset:
    found = find_preset(name)
    if found is None:
        raise InputError(f"no preset {name!r}{_near(name, PRESETS)}")
    return found


def shape(model: Preset | None, given: dict[str, Any], experts: dict[str, Any]) -> ModelShape:
    """Overlay the preset with what was given; without a preset four sizes are needed."""
    set_ones = {key: value for key, value in given.items() if value is not None}
    mixture = {key: value for key, value in experts.items() if value is not None}
    if mixture and "count" not in mixture:
        raise InputError("experts were described and not counted; add --experts")
    if mixture:
        set_ones["experts"] = Experts(**mixture)
    if model is not None:
        return replace(model.shape, **set_ones)
    missing = [each for each in _NEEDED if each not in set_ones]
    if missing:
        flags = ", ".join("--seq" if each == "sequence" else f"--{each}" for each in missing)
        raise InputError(f"name a model ('mwatch plan 13b'), or give its shape; missing: {flags}")
    return ModelShape(**set_ones)


def cluster(
    instance: str | None, gpus: int | None, memory_gib: float | None, nodes: int
) -> Cluster:
    if instance is None:
        if gpus is None or memory_gib is None:
            raise InputError("name the machines: --instance TYPE, or --gpus N and --gpu-memory GIB")
        gpu = GpuModel("GPU", round(memory_gib * 1024))
        return Cluster(Machine(gpu, gpus), nodes)
    found = machines.find(instance)
    if found is None:
        raise InputError(f"no instance type {instance!r}{_near(instance, machines.MACHINES)}")
    name, machine = found
    if gpus is not None and gpus > machine.gpus:
        raise InputError(f"--gpus {gpus} is more than the {machine.gpus} of {name}; use --nodes")
    if gpus is not None:
        machine = machine._replace(gpus=gpus)
    if memory_gib is not None:
        machine = machine._replace(gpu=machine.gpu._replace(memory_mib=round(memory_gib * 1024)))
    return Cluster(machine, nodes, name)


def stores(texts: Sequence[str], cloud: str) -> tuple[Store, ...]:
    """`amlfs-125:16` is 16 TiB of a tier, `nfs=2.5` a measured rate in GB/s."""
    return tuple(map(_store, texts)) or storage.usual_stores(cloud)


def _store(text: str) -> Store:
    name, is_rate, rate = text.partition("=")
    if is_rate and name.strip():
        return Store(name.strip(), _number(rate, text))
    name, _, size = text.partition(":")
    tier = storage.TIERS.get(name.strip().lower())
    if tier is None:
        raise InputError(f"no storage tier {name!r}{_near(name, storage.TIERS)}; or NAME=GB/s")
    tib = _number(size, text) if size else None
    if tib is not None and tib < tier.least_tib:
        raise InputError(f"{text}: {name} begins at {tier.least_tib:g} TiB")
    return storage.store(tier, tib)


def _number(text: str, whole: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e9:
        raise InputError(f"--storage {whole}: {text!r} is not a size; use amlfs-125:16 or nfs=2")
    return found


def _near(name: str, known: dict[str, Any]) -> str:
    found = get_close_matches(name, known, n=3, cutoff=0.5)
    return f"; near it: {', '.join(found)}" if found else f"; there are: {', '.join(known)}"


def name(model: str | None) -> str:
    """Return the preset's own spelling."""
    if model is None:
        return "custom"
    asked = model.strip().lower()
    return next((each for each in PRESETS if each.lower() == asked), model)


def fixed(model: Preset | None, given: dict[str, Any]) -> Fixed:
    """LLM-Foundry shards all states and has no TP or PP; its batch is that of its YAML."""
    found = Fixed(**given)
    if model is None or model.trainer != "llm-foundry":
        return found
    if any((each or 1) > 1 for each in (*found[:5], found.first_layers, found.last_layers)):
        raise InputError(
            "LLM-Foundry trains MPT with FSDP: it has no --tp, --pp, --cp, --ep, --vpp"
        )
    whole = found.global_batch or model.global_batch
    return found._replace(fully_sharded=True, global_batch=whole)


def recompute(text: str | None) -> Recompute | None:
    return None if text is None else Recompute(text)


def known_presets() -> Rows:
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
