# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A plan as JSON: bytes and seconds, never rounded for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mwatch.app.plan import Plan, Save
from mwatch.plan import stages as stages_of
from mwatch.plan.interval import Saving
from mwatch.plan.layout import Layout

VERSION = 1


def plan_json(plan: Plan) -> dict[str, Any]:
    cluster = plan.wish.cluster
    found: dict[str, Any] = {
        "version": VERSION,
        "works": plan.works,
        "model": {
            "name": plan.wish.model,
            "parameters": plan.parameters,
            **asdict(plan.wish.shape),
        },
        "cluster": {
            "instance": cluster.instance,
            "nodes": cluster.nodes,
            "gpus_per_node": cluster.machine.gpus,
            "gpu": cluster.machine.gpu.name,
            "gpu_memory_bytes": cluster.memory_bytes,
        },
        "layout": layout_json(plan.layout),
        "problems": [each._asdict() for each in plan.problems],
        "would_work": None if plan.other is None else layout_json(plan.other),
        "would_work_with_nodes": plan.nodes,
    }
    return {**found, **_figures(plan)} if plan.can_be_counted else found


def layout_json(layout: Layout) -> dict[str, Any]:
    return {
        **asdict(layout),
        "data": layout.data,
        "gradient_accumulation": layout.microbatches,
    }


def _figures(plan: Plan) -> dict[str, Any]:
    stages = [
        {
            "stage": each.stage,
            "layers": stages_of.count(plan.wish.shape.layers, plan.layout, each.stage),
            "parameters": each.parameters,
            **each.parts,
            "total": each.total,
        }
        for each in plan.stages
    ]
    report = plan.report
    return {
        "memory_bytes": {"stages": stages, "fullest_stage": plan.fullest.stage},
        "megatron_report_mib": None
        if report is None
        else {**report._asdict(), "total": report.total, "unseen": plan.unseen},
        "bubble": plan.bubble,
        "step_seconds": plan.step_seconds,
        "step_seconds_is_estimate": plan.wish.step_seconds is None,
        "checkpoint_bytes": plan.checkpoint_bytes,
        "seconds_between_failures": plan.seconds_between_failures,
        "saves": [_save_json(plan, each) for each in plan.saves],
    }


def _save_json(plan: Plan, save: Save) -> dict[str, Any]:
    return {
        "store": save.store.name,
        "tib": save.store.tib,
        "gbytes_per_second": save.store.gbytes,
        "write_seconds": save.write_seconds,
        "waiting": _saving_json(plan, save.waiting),
        "background": _saving_json(plan, save.background),
    }


def _saving_json(plan: Plan, saving: Saving) -> dict[str, Any]:
    return {**saving._asdict(), "interval_steps": plan.steps(saving.interval_seconds)}
