# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A plan as values for `manifests/charts/megatron-training`: only what the plan has decided.

The interval between saves is that of the first store, for a save in the background. What the
chart has no value for goes as an argument of Megatron's own.
"""

from __future__ import annotations

import json
from typing import Any

from mwatch.app.plan import Plan
from mwatch.errors import InputError
from mwatch.plan.machines import Machine
from mwatch.plan.presets import PRESETS
from mwatch.plan.shape import GPT2_VOCABULARY, Shape

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
    if plan.layout.virtual is None or plan.layout.is_uneven:
        return None
    return plan.wish.shape.layers // (plan.layout.pipeline * plan.layout.virtual)


def _extra(plan: Plan) -> dict[str, list[str]]:
    layout, shape = plan.layout, plan.wish.shape
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


def notes(plan: Plan) -> tuple[str, ...]:
    """What a person must see to, for the plan to hold."""
    if plan.wish.shape.vocabulary == GPT2_VOCABULARY:
        return ()
    count = plan.wish.shape.vocabulary
    return (f"The plan counts {count} tokens: set tokenizer.* to a tokenizer of that size.",)


def as_yaml(tree: dict[str, Any], said: tuple[str, ...] = ()) -> str:
    """Two levels of plain words, numbers and lists of words: as the chart's values have."""
    lines = [f"# {each}" for each in said]
    for part, keys in tree.items():
        lines.append(f"{part}:")
        lines += [f"  {key}: {_scalar(value)}" for key, value in keys.items()]
    return _HEAD + "\n".join(lines) + "\n"


def _scalar(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, list) else str(value)
