# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A small bf16 transformer on one device that prints Megatron's lines and fails once, on request.

It joins a process group of one rank, as Megatron does on one GPU. Runs alone:
`python trainer.py --fault KIND --at STEP`; on a CPU the kinds that need a GPU are refused.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import types
from typing import Any

import torch

_LINE = (
    " [{now}] iteration {step:8d}/{total:8d} | consumed samples: {done:12d} |"
    " elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.000000E-04 |"
    " global batch size: {batch:5d} |{loss} loss scale: 1.0 | grad norm: {norm:.3f} |"
    " number of skipped iterations:   0 | number of nan iterations: {nan:3d} |"
)
_BATCH = 8


def main() -> None:
    args = _arguments()
    device = torch.device(args.device)
    if device.type == "cpu":
        torch.set_num_threads(1)  # more threads than cores make every step slow
    _join(device)
    model = _model(device, args.width, args.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    # The probe reads the number of finished iterations here, as from the project's own trainer.
    progress = types.ModuleType("mwatch_gpt.progress")
    sys.modules["mwatch_gpt.progress"] = progress
    print(f"[before the start of training step] datetime: {_now()} ", flush=True)
    for step in range(1, args.train_iters + 1):
        progress.__dict__.update(iteration=step - 1, phase="training")
        if step == args.at and args.fault == "nan":
            poison(model)
        began = time.monotonic()
        loss, norm = train_step(model, optimizer, device, args, step)
        time.sleep(max(0.0, args.step_seconds - (time.monotonic() - began)))
        _print_line(step, args.train_iters, time.monotonic() - began, loss, norm)
    print(f"[after training is done] datetime: {_now()} ", flush=True)


def train_step(
    model: Any, optimizer: Any, device: torch.device, args: argparse.Namespace, step: int
) -> tuple[float, float]:
    sample = torch.randn(_BATCH, args.length, args.width, device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = model(sample).float().square().mean()
    loss.backward()
    if step == args.at:
        fail(args.fault, device)
    torch.distributed.all_reduce(loss.detach())
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item(), norm.item()


def fail(fault: str, device: torch.device) -> None:
    if fault == "sigstop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "sleep":
        time.sleep(86_400)
    elif fault == "kernel":
        torch.cuda._sleep(1 << 62)  # spins on the GPU's clock, for centuries
        torch.cuda.synchronize()
    elif fault == "assert":
        table = torch.zeros(4, device=device)
        table[torch.tensor([1 << 20], device=device)].sum().item()
    elif fault == "oom":
        exhaust_memory(device)


def exhaust_memory(device: torch.device) -> None:
    if device.type == "cpu":
        torch.empty(1 << 50, dtype=torch.uint8)
    held = []
    while True:
        held.append(torch.empty(1 << 30, dtype=torch.uint8, device=device))


def poison(model: Any) -> None:
    with torch.no_grad():
        next(iter(model.parameters())).view(-1)[0] = float("nan")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add = parser.add_argument
    add("--fault", default="")
    add("--at", type=int, default=30)
    add("--train-iters", type=int, default=2000)
    add("--step-seconds", type=float, default=0.1)
    add("--width", type=int, default=1024)
    add("--layers", type=int, default=4)
    add("--length", type=int, default=128)
    add("--device", default="cuda")
    args = parser.parse_args()
    if args.device == "cpu" and args.fault in ("kernel", "assert"):
        parser.error(f"--fault {args.fault} needs a GPU")
    return args


def _join(device: torch.device) -> None:
    backend = "nccl" if device.type == "cuda" else "gloo"
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group(backend, rank=0, world_size=1, store=store)
    torch.distributed.broadcast(torch.zeros(1, device=device), 0)


def _model(device: torch.device, width: int, layers: int) -> Any:
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)


def _print_line(step: int, total: int, seconds: float, loss: float, norm: float) -> None:
    is_nan = loss != loss
    shown = "" if is_nan else f" lm loss: {loss:.6E} |"
    fields = {"now": _now(), "step": step, "total": total, "done": _BATCH * step, "batch": _BATCH}
    text = _LINE.format(**fields, ms=seconds * 1000, loss=shown, norm=norm, nan=int(is_nan))
    print(text, flush=True)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S.000000")


if __name__ == "__main__":
    main()
