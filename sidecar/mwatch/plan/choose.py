# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Choose the inputs of `mwatch plan`: presets, instances and storage by name, and a layout.

Every combination that Megatron accepts is tried: TP within a machine, PP that divides the layers or
leaves a smaller first and last stage, CP only for long sequences, EP for experts. Values that the
user has set are kept. Of the layouts that fit, the one with the shortest estimated step is chosen;
of nearly equal ones the simplest: least recomputation first, then fewest GPUs per copy of the
model. For an unknown name, InputError lists the known ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import product, takewhile
from typing import Any, NamedTuple

from mwatch.errors import InputError
from mwatch.model import machines
from mwatch.model.machines import MACHINES, Cluster, GpuModel, Machine
from mwatch.plan import memory, parameters, speed, stages, storage
from mwatch.plan.check import divisors, holds
from mwatch.plan.layout import ParallelLayout, Recompute
from mwatch.plan.shape import PRESETS, Experts, ModelShape, Preset, find_preset
from mwatch.plan.storage import TIERS, Store

BATCH_PER_GPU = 16  # global batch per GPU, about as in the AKS document
HEADROOM = 0.95
LONG_SEQUENCE = 8192
_MICRO_BATCHES = (1, 2, 4, 8, 16)
_MOST_STAGES = 64
_MOST_EXPERT_RANKS = 64
_NEARLY = 0.05
_AGAIN = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
_UNKNOWN_TFLOPS = 300.0  # only to rank layouts, if only the memory of the GPU is known


class Fixed(NamedTuple):
    """Values that the user has set; None: to be chosen."""

    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    expert: int | None = None
    virtual: int | None = None  # 1: not interleaved
    micro_batch: int | None = None
    global_batch: int | None = None
    recompute: Recompute | None = None
    sequence_parallel: bool = True
    distributed_optimizer: bool = True
    flash_attention: bool = True
    fully_sharded: bool = False
    first_layers: int | None = None
    last_layers: int | None = None


def choose(shape: ModelShape, cluster: Cluster, fixed: Fixed) -> ParallelLayout | None:
    """The best layout that fits; None: none does."""
    fitting = list(_fitting(shape, cluster, fixed))
    if not fitting:
        return None
    ranked = [(_seconds(shape, each, cluster), each) for each in fitting]
    best = min(seconds for seconds, _ in ranked)
    near = [each for seconds, each in ranked if seconds <= best * (1 + _NEARLY)]
    return min(near, key=_plainness)


def _fitting(shape: ModelShape, cluster: Cluster, fixed: Fixed) -> Iterator[ParallelLayout]:
    """Stop at the first micro batch that does not fit: larger ones or more chunks do not either."""
    for base in _bases(shape, cluster, fixed):
        for recompute in recomputes(fixed):
            for virtual in _virtuals(shape, base, fixed):
                chosen = fixed._replace(recompute=recompute, virtual=virtual or 1)
                small = next(_batched(shape, base, chosen), None)
                if small is not None and not fits(shape, small, cluster):
                    break
                every = _batched(shape, base, chosen)
                yield from takewhile(lambda each: fits(shape, each, cluster), every)


def fits(shape: ModelShape, layout: ParallelLayout, cluster: Cluster) -> bool:
    return memory.fullest(shape, layout).total <= cluster.memory_bytes * HEADROOM


def smallest(
    shape: ModelShape, cluster: Cluster, fixed: Fixed, most_nodes: int = 1024
) -> int | None:
    """Return the least number of machines that fits, within an eighth; None: over `most_nodes`."""
    least = fixed._replace(
        micro_batch=fixed.micro_batch or 1, recompute=fixed.recompute or Recompute.FULL
    )

    def do(nodes: int) -> bool:
        of = cluster._replace(nodes=nodes)
        small = (next(_batched(shape, base, least), None) for base in _bases(shape, of, least))
        return any(each is not None and fits(shape, each, of) for each in small)

    doubled = [cluster.nodes]
    while 2 * doubled[-1] <= most_nodes:
        doubled.append(2 * doubled[-1])
    # The largest number allows every split of a smaller one: if it does not fit, none does.
    if len(doubled) == 1 or not do(doubled[-1]):
        return None
    enough = next(each for each in doubled[1:] if do(each))
    fewer = range(enough // 2, enough, max(enough // 16, 1))[1:]
    return next((each for each in fewer if do(each)), enough)


def candidates(shape: ModelShape, cluster: Cluster, fixed: Fixed) -> Iterator[ParallelLayout]:
    for base in _bases(shape, cluster, fixed):
        yield from _batched(shape, base, fixed)


def _bases(shape: ModelShape, cluster: Cluster, fixed: Fixed) -> Iterator[ParallelLayout]:
    if fixed.fully_sharded:
        fixed = fixed._replace(tensor=1, pipeline=1, context=1, expert=1)
    even = divisors(shape.layers, _MOST_STAGES)
    pipelines = tuple(dict.fromkeys((*even, *divisors(cluster.world, _MOST_STAGES))))
    experts = divisors(shape.experts.count, _MOST_EXPERT_RANKS) if shape.experts else (1,)
    sizes = product(
        _sizes(fixed.tensor, divisors(cluster.machine.gpus)),
        _sizes(fixed.pipeline, pipelines),
        _sizes(fixed.context, (1, 2, 4, 8, 16) if shape.sequence >= LONG_SEQUENCE else (1,)),
        _sizes(fixed.expert, experts),
    )
    for tensor, pipeline, context, expert in sizes:
        ranks = math.lcm(tensor * pipeline * context, tensor * pipeline * expert)
        if cluster.world % ranks == 0:
            base = ParallelLayout(
                cluster.world, tensor, pipeline, context, expert,
                sequence_parallel=fixed.sequence_parallel,
                distributed_optimizer=fixed.distributed_optimizer,
                flash_attention=fixed.flash_attention, fully_sharded=fixed.fully_sharded,
                first_layers=fixed.first_layers, last_layers=fixed.last_layers,
            )  # fmt: skip
            # Smaller first and last stages if layers do not divide and the user has set none.
            ends = None if base.is_uneven else stages.uneven(shape.layers, base.pipeline)
            yield (
                base
                if ends is None
                else replace(base, first_layers=ends.first, last_layers=ends.last)
            )


def recomputes(fixed: Fixed) -> tuple[Recompute, ...]:
    """Recomputation modes to try. A fused kernel keeps no scores, so selective saves no memory."""
    if fixed.recompute is not None:
        return (fixed.recompute,)
    if fixed.flash_attention:
        return (Recompute.NONE, Recompute.FULL)
    return _AGAIN


def _batched(shape: ModelShape, base: ParallelLayout, fixed: Fixed) -> Iterator[ParallelLayout]:
    choices = product(
        recomputes(fixed), _virtuals(shape, base, fixed), _sizes(fixed.micro_batch, _MICRO_BATCHES)
    )
    for recompute, virtual, micro in choices:
        whole = fixed.global_batch or usual_batch(base.world, micro * base.data)
        found = replace(
            base, micro_batch=micro, global_batch=whole, recompute=recompute, virtual=virtual
        )
        if holds(shape, found):
            yield found


def usual_batch(world: int, step: int) -> int:
    """A global batch of 16 per GPU, rounded up to a multiple of `step`."""
    return -(-BATCH_PER_GPU * world // step) * step


def plain_or(virtual: int | None) -> int | None:
    """One chunk per stage is the plain schedule, as in Megatron."""
    return None if virtual == 1 else virtual


def _sizes(fixed: int | None, open_to: tuple[int, ...]) -> tuple[int, ...]:
    return open_to if fixed is None else (fixed,)


def _virtuals(shape: ModelShape, base: ParallelLayout, fixed: Fixed) -> tuple[int | None, ...]:
    if fixed.virtual is not None:
        return (plain_or(fixed.virtual),)
    if base.pipeline == 1 or base.is_uneven or shape.layers % base.pipeline:
        return (None,)
    return (None, *(each for each in divisors(shape.layers // base.pipeline, 4) if each > 1))


def _seconds(shape: ModelShape, layout: ParallelLayout, cluster: Cluster) -> float:
    found = speed.step_seconds(shape, layout, cluster)
    if found is None:
        gpu: GpuModel = cluster.machine.gpu._replace(tflops=_UNKNOWN_TFLOPS)
        machine = cluster.machine._replace(gpu=gpu)
        found = speed.step_seconds(shape, layout, cluster._replace(machine=machine))
    assert found is not None
    # Per sample: a larger, rounded-up batch is more work, not a slower layout.
    return found / layout.global_batch


def _plainness(layout: ParallelLayout) -> tuple[int, ...]:
    return (
        _AGAIN.index(layout.recompute), int(layout.is_uneven), layout.model,
        layout.virtual or 1, layout.expert, layout.pipeline, layout.micro_batch,
    )  # fmt: skip


_NEEDED = ("layers", "hidden", "heads", "sequence")
Rows = list[tuple[str, ...]]


def preset(name: str) -> Preset:
    found = find_preset(name)
    if found is None:
        raise InputError(f"no preset {name!r}{_near(name, PRESETS)}")
    return found


def shape(model: Preset | None, given: dict[str, Any], experts: dict[str, Any]) -> ModelShape:
    """Apply the given values to the preset; without a preset, four sizes are required."""
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
    """Parse stores: `amlfs-125:16` is 16 TiB of a tier, `nfs=2.5` a measured rate in GB/s."""
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
    """For LLM-Foundry: all states sharded, no TP or PP, and the batch of its YAML."""
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
