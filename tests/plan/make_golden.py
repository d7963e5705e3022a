# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Makes golden_memory.json: what Megatron-LM's own function says of presets and other shapes.

Run by hand, once for a release: `python make_golden.py CHECKOUT TAG COMMIT > golden_memory.json`
with `sidecar` and `tests` on PYTHONPATH and a checkout of Megatron-LM at that tag. The file with
the function is loaded alone, so neither torch nor a GPU is needed; only its printing is replaced.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mwatch.plan.shape import Preset
from plan.golden_shapes import ALL

_FILE = "megatron/training/theoretical_memory_usage.py"
_FIGURES = ("weight_and_optimizer", "activation", "total")


class Case(NamedTuple):
    """Parallel sizes and what else the function reads of a layout."""

    tensor: int
    pipeline: int
    data: int
    micro: int
    microbatches: int
    sequence_parallel: bool
    recompute: str | None
    distributed_optimizer: bool
    virtual: int | None


def cases(preset: Preset) -> Iterator[Case]:
    """The preset's own layout in six forms, and one GPU without anything."""
    tensor, stages, micro = preset.tensor, preset.pipeline, preset.micro_batch
    split = tensor > 1
    many = max(2 * stages, 4)
    yield Case(tensor, stages, 4, micro, many, split, "selective", True, None)
    yield Case(tensor, stages, 4, micro, many, False, None, False, None)
    yield Case(tensor, stages, 64, 2 * micro, 1, split, "selective", True, None)
    yield Case(tensor, stages, 8, micro, many, split, "full", True, None)
    if split:
        yield Case(tensor, stages, 8, micro, many, split, None, False, None)
    if stages > 1:
        yield Case(tensor, stages, 4, micro, many, split, "selective", True, 2)
    if (tensor, stages) != (1, 1):
        yield Case(1, 1, 1, micro, 1, False, None, False, None)
    elif preset.shape.heads % 2 == 0:
        yield Case(2, 1, 2, micro, 2, True, "selective", True, None)


def arguments(preset: Preset, case: Case) -> types.SimpleNamespace:
    """Under the names of Megatron's arguments."""
    shape, mixture = preset.shape, preset.shape.experts
    experts = {
        "num_experts": mixture and mixture.count,
        "moe_layer_freq": mixture.every if mixture else 1,
        "moe_ffn_hidden_size": shape.expert_ffn if mixture else None,
        "moe_shared_expert_intermediate_size": (mixture.shared_ffn or None) if mixture else None,
    }
    return types.SimpleNamespace(
        kv_channels=shape.channels, num_attention_heads=shape.heads, hidden_size=shape.hidden,
        group_query_attention=shape.groups is not None, num_query_groups=shape.key_groups,
        swiglu=shape.gated, num_layers=shape.layers, mtp_num_layers=None, **experts,
        normalization="RMSNorm" if shape.rms_norm else "LayerNorm", multi_latent_attention=False,
        ffn_hidden_size=shape.ffn_size, padded_vocab_size=shape.padded_vocabulary(case.tensor),
        untie_embeddings_and_output_weights=not shape.tied, seq_length=shape.sequence,
        pipeline_model_parallel_size=case.pipeline, tensor_model_parallel_size=case.tensor,
        data_parallel_size=case.data, use_distributed_optimizer=case.distributed_optimizer,
        micro_batch_size=case.micro, virtual_pipeline_model_parallel_size=case.virtual,
        sequence_parallel=case.sequence_parallel, recompute_granularity=case.recompute,
        is_hybrid_model=False,
    )  # fmt: skip


def load(checkout: Path) -> Any:
    """Megatron's module, with a package around it that holds nothing but its `print_rank_0`."""
    package, near = types.ModuleType("theirs"), types.ModuleType("theirs.utils")
    package.__path__ = []
    vars(near)["print_rank_0"] = lambda *_: None
    sys.modules |= {"theirs": package, "theirs.utils": near}
    spec = importlib.util.spec_from_file_location("theirs.memory", checkout / _FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(checkout: str, tag: str, commit: str) -> None:
    module = load(Path(checkout))
    rows = []
    for name, preset in ALL.items():
        for case in cases(preset):
            with contextlib.redirect_stdout(io.StringIO()):
                found = module.report_theoretical_memory(
                    arguments(preset, case), num_microbatches=case.microbatches
                )
            figures = {key: round(value, 3) for key, value in zip(_FIGURES, found, strict=True)}
            rows.append({"preset": name, **case._asdict(), **figures})
    source = {"repository": "NVIDIA/Megatron-LM", "tag": tag, "commit": commit, "file": _FILE}
    lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
    head = json.dumps({**source, "function": "report_theoretical_memory", "unit": "MiB"})
    print(f'{{\n  "made_by": {head},\n  "rows": [\n{lines}\n  ]\n}}')


if __name__ == "__main__":
    main(*sys.argv[1:])
