# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch plan`: the plan, its JSON, and its values for `manifests/charts/megatron-training`.

A given layout is checked; otherwise one is searched for. The JSON uses bytes and seconds. The chart
values contain only decisions of the plan. Their save interval is for background saves to the first
store, and settings that the chart has no value for become arguments of Megatron.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from mwatch.errors import InputError
from mwatch.model.machines import Cluster, Machine
from mwatch.plan import check, choose, memory, parameters, speed, storage
from mwatch.plan import stages as pipeline_stages
from mwatch.plan.choose import Fixed
from mwatch.plan.layout import ParallelLayout
from mwatch.plan.memory import Footprint, footprint
from mwatch.plan.shape import GPT2_VOCABULARY, PRESETS, ModelShape
from mwatch.plan.storage import Saving, Store

VERSION = 1
_HEAD = (
    "# SPDX-FileCopyrightText: The mwatch authors\n# SPDX-License-Identifier: Apache-2.0\n"
    "# Made by 'mwatch plan'; for charts/megatron-training: helm install NAME CHART -f THIS\n"
)
_CUSTOM = "custom"


class PlanRequest(NamedTuple):
    model: str  # the preset's name, or `custom`
    shape: ModelShape
    cluster: Cluster
    fixed: Fixed
    stores: tuple[Store, ...]
    failures_per_1000_gpu_days: float = storage.FAILURES_PER_1000_GPU_DAYS
    hours_between_failures: float | None = None  # for the whole job; overrides the rate
    restart_seconds: float = 300.0
    step_seconds: float | None = None
    peak_share: float = speed.PEAK_SHARE


class SaveCost(NamedTuple):
    store: Store
    write_seconds: float
    waiting: storage.Saving  # training waits for the write
    background: storage.Saving  # `--async-save`: training waits only for the copy to the host


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    request: PlanRequest
    layout: ParallelLayout
    problems: tuple[check.LayoutProblem, ...]
    other: ParallelLayout | None  # a layout that would work, if this one does not
    nodes: int | None  # machines that `other` needs, if these are too few

    @property
    def works(self) -> bool:
        return not any(each.level == "error" for each in self.problems)

    @property
    def is_shape(self) -> bool:
        return check.is_shape(self.request.shape)

    @property
    def can_be_counted(self) -> bool:
        """Whether stages have a size: layers, heads and GPUs must divide."""
        return check.holds(self.request.shape, self.layout)

    @property
    def exit_code(self) -> int:
        return 0 if self.works else 1

    @property
    def parameters(self) -> int:
        return parameters.total(self.request.shape, self.layout.tensor)

    @property
    def stages(self) -> tuple[memory.StageMemory, ...]:
        return memory.all_stages(self.request.shape, self.layout)

    @property
    def fullest(self) -> memory.StageMemory:
        return max(self.stages, key=lambda each: each.total)

    @property
    def report(self) -> Footprint | None:
        """Megatron's memory report; None for LLM-Foundry, which prints none."""
        return None if self.layout.fully_sharded else footprint(self.request.shape, self.layout)

    @property
    def unlisted(self) -> tuple[str, ...]:
        return memory.unlisted(self.request.shape, self.layout)

    @property
    def bubble(self) -> float:
        return pipeline_stages.bubble(self.layout)

    @property
    def step_seconds(self) -> float | None:
        request = self.request
        if request.step_seconds is not None:
            return request.step_seconds
        return speed.step_seconds(request.shape, self.layout, request.cluster, request.peak_share)

    @property
    def checkpoint_bytes(self) -> int:
        return storage.size(self.request.shape, self.layout)

    @property
    def seconds_between_failures(self) -> float:
        request = self.request
        if request.hours_between_failures is not None:
            return request.hours_between_failures * 3600
        return storage.mean_time_between_failures(
            request.cluster.world, request.failures_per_1000_gpu_days
        )

    @property
    def saves(self) -> tuple[SaveCost, ...]:
        return tuple(self._save(each) for each in self.request.stores)

    def _save(self, store: Store) -> SaveCost:
        between = self.seconds_between_failures
        write = store.seconds(self.checkpoint_bytes)
        restart = self.request.restart_seconds + write  # the checkpoint is read at the same speed
        stall = storage.async_stall_seconds(self.request.shape, self.layout)
        return SaveCost(
            store,
            write,
            storage.saving(write, write, between, restart),
            storage.saving(min(stall, write), write, between, restart),
        )

    def steps(self, seconds: float) -> int | None:
        """Steps in that time, at least one; None if the step time is unknown."""
        step = self.step_seconds
        return None if step is None else max(round(seconds / step), 1)


def make(request: PlanRequest) -> CapacityPlan:
    found = choose.choose(request.shape, request.cluster, request.fixed)
    if found is not None:
        reported = check.problems(request.shape, found, request.cluster)
        return CapacityPlan(request, found, reported, None, None)
    layout = _nearest(request)
    reported = check.problems(request.shape, layout, request.cluster)
    if all(each.level != "error" for each in reported) or not check.is_shape(request.shape):
        return CapacityPlan(request, layout, reported, None, None)
    return CapacityPlan(request, layout, reported, *_would_work(request))


def _would_work(request: PlanRequest) -> tuple[ParallelLayout | None, int | None]:
    """A layout that works, and its machines if more are needed. Change as little as possible: the
    parallel sizes, then micro batch and recomputation, then the global batch, then the number of
    machines. Switches are kept."""
    open_sizes = request.fixed._replace(
        tensor=None, pipeline=None, context=None, expert=None, virtual=None,
        first_layers=None, last_layers=None,
    )  # fmt: skip
    open_memory = open_sizes._replace(micro_batch=None, recompute=None)
    free = open_memory._replace(global_batch=None)
    tried = {request.fixed}
    for fixed in (each for each in (open_sizes, open_memory, free) if each not in tried):
        tried.add(fixed)
        if (found := choose.choose(request.shape, request.cluster, fixed)) is not None:
            return found, None
    nodes = choose.smallest(request.shape, request.cluster, free)
    if nodes is None:
        return None, None
    return choose.choose(request.shape, request.cluster._replace(nodes=nodes), free), nodes


def _nearest(request: PlanRequest) -> ParallelLayout:
    """The given sizes, completed for the least memory; if nothing divides, by usual values."""
    possible = tuple(choose.candidates(request.shape, request.cluster, request.fixed))
    if possible:
        return min(possible, key=lambda each: memory.fullest(request.shape, each).total)
    fixed, world = request.fixed, request.cluster.world
    tensor, pipeline, context = fixed.tensor or 1, fixed.pipeline or 1, fixed.context or 1
    micro = fixed.micro_batch or 1
    data = max(world // (tensor * pipeline * context), 1)
    batch = fixed.global_batch or choose.usual_batch(world, micro * data)
    return ParallelLayout(
        world, tensor, pipeline, context, fixed.expert or 1, choose.plain_or(fixed.virtual),
        micro, batch,
        choose.recomputes(fixed)[0], fixed.sequence_parallel,
        fixed.distributed_optimizer, fixed.flash_attention, fixed.fully_sharded,
        fixed.first_layers, fixed.last_layers,
    )  # fmt: skip


def plan_json(plan: CapacityPlan) -> dict[str, Any]:
    cluster = plan.request.cluster
    found: dict[str, Any] = {
        "version": VERSION,
        "works": plan.works,
        "model": {
            "name": plan.request.model,
            "parameters": plan.parameters,
            **asdict(plan.request.shape),
        },
        "cluster": {
            "instance": cluster.instance,
            "nodes": cluster.nodes,
            "gpus_per_node": cluster.machine.gpus,
            "gpu": cluster.machine.gpu.name,
            "gpu_memory_bytes": cluster.memory_bytes,
        },
        "layout": layout_json(plan.layout),
        # "mend" is deprecated, until 0.3
        "problems": [{**each._asdict(), "mend": each.fix} for each in plan.problems],
        "would_work": None if plan.other is None else layout_json(plan.other),
        "would_work_with_nodes": plan.nodes,
    }
    return {**found, **_figures(plan)} if plan.can_be_counted else found


def layout_json(layout: ParallelLayout) -> dict[str, Any]:
    return {**asdict(layout), "data": layout.data, "gradient_accumulation": layout.microbatches}


def _figures(plan: CapacityPlan) -> dict[str, Any]:
    stages = [
        {
            "stage": each.stage,
            "layers": pipeline_stages.count(plan.request.shape.layers, plan.layout, each.stage),
            "parameters": each.parameters,
            **each.parts,
            "total": each.total,
        }
        for each in plan.stages
    ]
    report, unlisted = plan.report, plan.unlisted
    return {
        "memory_bytes": {"stages": stages, "fullest_stage": plan.fullest.stage},
        "megatron_report_mib": None
        if report is None
        # `unseen` is the old key of `unlisted`, removed in 0.3.
        else {**report._asdict(), "total": report.total, "unlisted": unlisted, "unseen": unlisted},
        "bubble": plan.bubble,
        "step_seconds": plan.step_seconds,
        "step_seconds_is_estimate": plan.request.step_seconds is None,
        "checkpoint_bytes": plan.checkpoint_bytes,
        "seconds_between_failures": plan.seconds_between_failures,
        "saves": [_save_json(plan, each) for each in plan.saves],
    }


def _save_json(plan: CapacityPlan, save: SaveCost) -> dict[str, Any]:
    return {
        "store": save.store.name,
        "tib": save.store.tib,
        "gbytes_per_second": save.store.gbytes,
        "write_seconds": save.write_seconds,
        "waiting": _saving_json(plan, save.waiting),
        "background": _saving_json(plan, save.background),
    }


def _saving_json(plan: CapacityPlan, saving: Saving) -> dict[str, Any]:
    return {**saving._asdict(), "interval_steps": plan.steps(saving.interval_seconds)}


def values(plan: CapacityPlan) -> dict[str, Any]:
    """Values of the chart. Raises InputError if the chart cannot express the plan."""
    _refuse(plan)
    layout, cluster = plan.layout, plan.request.cluster
    found: dict[str, Any] = {
        "model": _model(plan.request.model, plan.request.shape),
        "training": {
            "nodes": cluster.nodes,
            "gpusPerNode": cluster.machine.gpus,
            "microBatchSize": layout.micro_batch,
            "globalBatchSize": layout.global_batch,
            **_extra(plan),
        },
        "parallelism": {
            "tensor": layout.tensor,
            "pipeline": layout.pipeline,
            "context": layout.context,
            "expert": layout.expert,
            "virtualStageLayers": _chunk(plan),
            "sequence": layout.sequence_parallel,
            "distributedOptimizer": layout.distributed_optimizer,
            "recompute": layout.recompute.value,
        },
        "checkpoints": _checkpoints(plan),
    }
    if (experts := plan.request.shape.experts) is not None:
        found["moe"] = {"experts": experts.count, "topk": experts.top_k}
        found["moe"] |= {} if experts.ffn is None else {"ffnHiddenSize": experts.ffn}
    if cluster.instance is not None:
        found |= _platform(cluster.instance, cluster.machine)
    return found


def _refuse(plan: CapacityPlan) -> None:
    shape = plan.request.shape
    if not plan.works:
        raise InputError("no values: this layout cannot work; the plan shows one that does")
    if plan.layout.fully_sharded:
        raise InputError("values are for charts/megatron-training, which has no FSDP")
    if _architecture(shape) is None:
        what = "either GPT's norm, positions, bias and GELU, or all four of Llama's"
        raise InputError(f"the chart cannot mix architectures: it takes {what}")


def _architecture(shape: ModelShape) -> str | None:
    kind = (shape.gated, shape.rms_norm, not shape.bias, not shape.learned_positions)
    return {(False,) * 4: "gpt", (True,) * 4: "llama"}.get(kind)


def _model(name: str, shape: ModelShape) -> dict[str, Any]:
    preset = PRESETS.get(name)
    if preset is not None and preset.shape == shape:
        return {"size": name}
    found: dict[str, Any] = {
        "size": _CUSTOM,
        "numLayers": shape.layers,
        "hiddenSize": shape.hidden,
        "numAttentionHeads": shape.heads,
        "seqLength": shape.sequence,
        "maxPositionEmbeddings": shape.positions,
        "architecture": _architecture(shape),
    }
    more = {"ffnHiddenSize": shape.ffn, "numQueryGroups": shape.groups}
    return found | {key: value for key, value in more.items() if value is not None}


def _chunk(plan: CapacityPlan) -> int | None:
    if plan.layout.virtual is None or plan.layout.is_uneven:
        return None
    return plan.request.shape.layers // (plan.layout.pipeline * plan.layout.virtual)


def _extra(plan: CapacityPlan) -> dict[str, list[str]]:
    layout, shape = plan.layout, plan.request.shape
    chunks = layout.virtual if layout.is_uneven else None
    wanted: dict[str, object] = {
        "--decoder-first-pipeline-num-layers": layout.first_layers,
        "--decoder-last-pipeline-num-layers": layout.last_layers,
        "--num-virtual-stages-per-pipeline-rank": chunks,
        "--kv-channels": shape.head_size,
        "--attention-backend": None if layout.flash_attention else "unfused",
    }
    if (experts := shape.experts) is not None:
        wanted["--moe-shared-expert-intermediate-size"] = experts.shared_ffn or None
        wanted["--moe-layer-freq"] = experts.every if experts.every > 1 else None
    words = [str(word) for pair in wanted.items() if pair[1] is not None for word in pair]
    return {"extraArguments": words} if words else {}


def _checkpoints(plan: CapacityPlan) -> dict[str, Any]:
    first = plan.saves[0]
    steps = plan.steps(first.background.interval_seconds)
    return {"async": True} | ({} if steps is None else {"saveInterval": steps})


def _platform(instance: str, machine: Machine) -> dict[str, Any]:
    found: dict[str, Any] = {"cluster": {"instanceType": instance}}
    if machine.cloud == "azure":
        found["cluster"]["platform"] = "aks"
        found["network"] = {"kind": "infiniband" if machine.gpus == 8 else "tcp"}
    elif machine.cloud == "aws":
        found["cluster"]["platform"] = "eks"
        found["network"] = {"kind": "efa" if machine.efa else "tcp"}
    return found


def notes(plan: CapacityPlan) -> tuple[str, ...]:
    if plan.request.shape.vocabulary == GPT2_VOCABULARY:
        return ()
    count = plan.request.shape.vocabulary
    return (f"The plan counts {count} tokens: set tokenizer.* to a tokenizer of that size.",)


def as_yaml(tree: dict[str, Any], reported: tuple[str, ...] = ()) -> str:
    """Write plain values of two levels, as in the chart's values."""
    lines = [f"# {each}" for each in reported]
    for part, keys in tree.items():
        lines.append(f"{part}:")
        lines += [f"  {key}: {_yaml(value)}" for key, value in keys.items()]
    return _HEAD + "\n".join(lines) + "\n"


def _yaml(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
