# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A plan as values for `manifests/charts/megatron-training`: only what the plan has decided.

The interval between saves is that of the first store, for a save in the background.
"""

from __future__ import annotations

from typing import Any

from mwatch.app.plan import Plan
from mwatch.errors import InputError
from mwatch.plan.machines import Machine
from mwatch.plan.presets import PRESETS
from mwatch.plan.shape import Shape

_HEAD = (
    "# SPDX-FileCopyrightText: The mwatch authors\n# SPDX-License-Identifier: Apache-2.0\n"
    "# Made by 'mwatch plan'; for charts/megatron-training: helm install NAME CHART -f THIS\n"
)
_CUSTOM = "custom"


def values(plan: Plan) -> dict[str, Any]:
    """InputError where the chart has no way to say it."""
    _refuse(plan)
    layout, cluster = plan.layout, plan.wish.cluster
    found: dict[str, Any] = {
        "model": _model(plan.wish.model, plan.wish.shape),
        "training": {
            "nodes": cluster.nodes,
            "gpusPerNode": cluster.machine.gpus,
            "microBatchSize": layout.micro_batch,
            "globalBatchSize": layout.global_batch,
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
    if (experts := plan.wish.shape.experts) is not None:
        found["moe"] = {"experts": experts.count, "topk": experts.top_k}
        found["moe"] |= {} if experts.ffn is None else {"ffnHiddenSize": experts.ffn}
    if cluster.instance is not None:
        found |= _platform(cluster.instance, cluster.machine)
    return found


def _refuse(plan: Plan) -> None:
    shape = plan.wish.shape
    if not plan.works:
        raise InputError("no values: this layout cannot work; the plan says what would")
    if plan.layout.fully_sharded:
        raise InputError("values are for charts/megatron-training, which has no FSDP")
    if _architecture(shape) is None:
        what = "either GPT's norm, positions, bias and GELU, or all four of Llama's"
        raise InputError(f"the chart cannot mix architectures: it takes {what}")
    if shape.experts is not None and (shape.experts.shared_ffn or shape.experts.every != 1):
        raise InputError("the chart has no shared experts and none in every other layer only")


def _architecture(shape: Shape) -> str | None:
    kind = (shape.gated, shape.rms_norm, not shape.bias, not shape.learned_positions)
    return {(False,) * 4: "gpt", (True,) * 4: "llama"}.get(kind)


def _model(name: str, shape: Shape) -> dict[str, Any]:
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


def _chunk(plan: Plan) -> int | None:
    if plan.layout.virtual is None:
        return None
    return plan.wish.shape.layers // (plan.layout.pipeline * plan.layout.virtual)


def _checkpoints(plan: Plan) -> dict[str, Any]:
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


def as_yaml(tree: dict[str, Any]) -> str:
    """Two levels of plain words and numbers: no more than the chart's values have."""
    lines = []
    for part, keys in tree.items():
        lines.append(f"{part}:")
        lines += [f"  {key}: {_scalar(value)}" for key, value in keys.items()]
    return _HEAD + "\n".join(lines) + "\n"


def _scalar(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
