# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Preparations of an attempt on real folders, and what the folders look like before and after."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mwatch_trainer import contract
from mwatch_trainer.attempt.plan import AttemptOptions, AttemptPlan, WaitClock
from mwatch_trainer.attempt.prepare import prepare
from support.builders.checkpoint import torch_dist, track

SMALL = {"__0_0.distcp": 64}
HONEST_SOURCE = 'if getattr(args, "ckpt_step", None):\n    iteration = args.ckpt_step\n'


def saved(save: Path, *iterations: int) -> Path:
    """Complete checkpoints; the tracker names the last."""
    for iteration in iterations:
        torch_dist(save, iteration, SMALL)
    if iterations:
        track(save, iterations[-1])
    return save


def broken(save: Path, iteration: int) -> Path:
    """A save that was stopped: no `metadata.json`."""
    folder = torch_dist(save, iteration, SMALL)
    (folder / "metadata.json").unlink()
    track(save, iteration)
    return folder


def megatron(folder: Path, source: str | None = HONEST_SOURCE) -> str:
    """A script with Megatron's source beside it."""
    script = folder / "pretrain_gpt.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text("")
    if source is not None:
        training = folder / "megatron" / "training"
        training.mkdir(parents=True, exist_ok=True)
        (training / "checkpointing.py").write_text(source)
    return str(script)


def act(
    argv: list[str],
    volume: Path,
    *,
    environ: Mapping[str, str] | None = None,
    wait: float = 0.3,
    controller_wait: float | None = None,
    mode: str = contract.ACT,
    sleep: Callable[[float], None] = time.sleep,
) -> AttemptPlan:
    volume.mkdir(parents=True, exist_ok=True)
    asked = wait if controller_wait is None else controller_wait
    options = AttemptOptions(mode, str(volume), wait_seconds=wait, controller_seconds=asked)
    return prepare(argv, environ or {}, options, WaitClock(sleep=sleep))


def ran(volume: Path, number: int, **more: Any) -> None:
    """This volume saw that attempt running."""
    document = {"attempt": number, "started_at": 1.0, **more}
    volume.mkdir(parents=True, exist_ok=True)
    contract.write_json(str(volume / contract.ATTEMPT), document)


def decide(volume: Path, number: int, **more: Any) -> None:
    document = {"attempt": number, "resume_from": None, "reason": "", **more}
    volume.mkdir(parents=True, exist_ok=True)
    contract.write_json(str(volume / contract.DECISION), document)


def timeline_of(save: Path) -> dict[str, Any]:
    document = json.loads((save / ".mwatch" / "timeline.json").read_text())
    assert isinstance(document, dict)
    return document


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every path below it with what it holds; None for a folder."""
    found: dict[str, bytes | None] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        found[name] = path.read_bytes() if path.is_file() else None
    return found
