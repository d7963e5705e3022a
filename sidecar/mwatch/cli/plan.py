# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch plan`: how to lay a model out over a cluster, and what it will need.

Exit codes: 0 it works, 1 it cannot work, 2 usage. It asks no cluster and runs nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mwatch.cli.flag_groups import grouped
from mwatch.cli.output import write
from mwatch.cli.plan_flags import (
    UNPLANNED,
    ClusterFlags,
    LayoutFlags,
    ModelFlags,
    OutFlags,
    SavingFlags,
    UnplannedFlags,
)

if TYPE_CHECKING:
    from mwatch.app.plan import Plan


@grouped(ModelFlags, ClusterFlags, LayoutFlags, SavingFlags, OutFlags, UnplannedFlags)
def plan(
    model: ModelFlags, cluster: ClusterFlags, layout: LayoutFlags, saving: SavingFlags,
    out: OutFlags, unplanned: UnplannedFlags,
) -> None:  # fmt: skip
    """Plan a training run: parallel layout, batch, memory, checkpoints, goodput.

    What you leave open is chosen; what you give is checked, and where it cannot work it is said
    why and what would. Memory of each pipeline stage by part, and the line that Megatron's own
    report would print; speed and goodput are estimates.

    Exit code: 0 it works, 1 it cannot, 2 usage.

    Examples: 'mwatch plan 175b --instance Standard_ND96isr_H100_v5 --nodes 64' and 'mwatch plan
    13b --instance p4d.24xlarge --nodes 2 --tp 2 --pp 4 --values plan.yaml'.
    """
    if out.names:
        from mwatch.cli.render_plan_names import render as render_names

        write(render_names())
        return
    _refuse(unplanned)
    found = _made(model, cluster, layout, saving)
    if out.as_json:
        import json

        from mwatch.app.plan_json import plan_json

        write(json.dumps(plan_json(found), indent=2))
    elif out.values != Path("-"):
        from mwatch.cli.render_plan import render
        from mwatch.cli.terminal import show

        show(render(found))
    if out.values is not None:
        _hand_over(found, out.values)
    raise typer.Exit(found.exit_code)


def _refuse(asked: UnplannedFlags) -> None:
    """What Megatron can do and this cannot count: better no figure than a wrong one."""
    from mwatch.errors import InputError

    for name, value in asked._asdict().items():
        if value:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag} is not planned: {UNPLANNED[name]}; leave it out for the rest")


def _made(
    model: ModelFlags, cluster: ClusterFlags, layout: LayoutFlags, saving: SavingFlags
) -> Plan:
    from mwatch.app import plan as app
    from mwatch.app import plan_wish as words

    preset = None if model.model is None else words.preset(model.model)
    machines = words.cluster(cluster.instance, cluster.gpus, cluster.gpu_memory, cluster.nodes)
    again = None if layout.recompute is None else layout.recompute.value
    given = {
        "tensor": layout.tp, "pipeline": layout.pp, "context": layout.cp, "expert": layout.ep,
        "virtual": layout.vpp, "micro_batch": layout.micro_batch,
        "global_batch": layout.global_batch, "recompute": words.recompute(again),
        "sequence_parallel": layout.sequence_parallel,
        "distributed_optimizer": layout.distributed_optimizer,
        "flash_attention": layout.flash_attention,
        "first_layers": layout.first_stage_layers, "last_layers": layout.last_stage_layers,
    }  # fmt: skip
    return app.make(
        app.Wish(
            words.name(model.model),
            words.shape(preset, *_shape(model)),
            machines,
            words.fixed(preset, given),
            words.stores(saving.storage or (), machines.machine.cloud),
            saving.failure_rate,
            saving.mtbf,
            saving.restart_minutes * 60,
            saving.step_seconds,
            saving.mfu,
        )
    )


def _shape(model: ModelFlags) -> tuple[dict[str, object], dict[str, object]]:
    given: dict[str, object] = {
        "layers": model.layers, "hidden": model.hidden, "heads": model.heads,
        "sequence": model.seq, "vocabulary": model.vocab, "max_positions": model.max_positions,
        "ffn": model.ffn, "groups": model.groups, "head_size": model.head_size,
    }  # fmt: skip
    if model.llama:
        given |= {"gated": True, "rms_norm": True, "bias": False}
        given |= {"learned_positions": False, "tied": False}
    experts: dict[str, object] = {
        "count": model.experts, "top_k": model.top_k, "ffn": model.moe_ffn,
        "shared_ffn": model.shared_ffn, "every": model.moe_every,
    }  # fmt: skip
    return given, experts


def _hand_over(found: Plan, path: Path) -> None:
    from mwatch.app.plan_values import as_yaml, notes, values
    from mwatch.errors import InputError

    text = as_yaml(values(found), notes(found))
    if path == Path("-"):
        write(text.rstrip("\n"))
        return
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
