# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer that trains nothing: it does what its plan says, prints it in the way of one of six
trainers, and sleeps in between. Only the standard library, so that dozens run side by side.

It runs as a file: `python odd_trainer.py --run RUN.json [flags of Megatron]`. A copy with the name
`megatron/training.py` looks to the probe like Megatron: the same functions, the same counter. After
a restart it goes on at its checkpoint. A pause or a stop happens once; an evaluation or a slow step
belongs to the run and comes again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

_ITEM = re.compile(
    r"(?:(?P<count>\d+) )?"
    r"(?P<what>start|load|first step|steps|save|evaluation|pause|stop|debugger|clock|print|batch)"
    r"(?: (?:of )?(?P<number>-?[\d.]+))?(?P<silent> in silence)?(?: (?P<text>.+))?"
)
_MEGATRON = (
    " [{clock}] iteration {step:8d}/{total:8d} | consumed samples: {done:12d} |"
    " elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.000000E-04 |"
    " global batch size: {batch:5d} | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 1.000 |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |"
)
_LINES = {
    "megatron": _MEGATRON,
    "torchtitan": (
        "[titan] {clock},000 - root - INFO - step: {step:2d}  loss:  {loss:.5f}  grad_norm:  0.8319"
        "  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%"
    ),
    "composer": (
        "[batch={step}/{total}]:\n\t Train time/batch: {before}\n\t Train time/sample: {done}\n"
        "\t Train loss/train/total: {loss:.4f}\n\t Train lr-DecoupledAdamW/group0: 0.0000"
    ),
    "deepspeed": "steps: {step} loss: {loss:.4f} iter time (s): {seconds:.3f} samples/sec: 73.153",
    "hugging face": "{{'loss': {loss:.4f}, 'grad_norm': 0.8, 'learning_rate': 1e-5, 'epoch': 1}}",
    "loop": "step {step} | loss {loss:.4f} | {ms:.0f} ms",
}
_LAST = {
    "megatron": "[after training is done] datetime: {clock} ",
    "composer": "",
    "hugging face": "{{'train_runtime': 100.0, 'train_loss': 2.0, 'epoch': 1.0}}",
}
_TRACKER = "latest_checkpointed_iteration.txt"


class Run:
    """One process of the run; all ranks follow the same plan by the same clock."""

    def __init__(self, run: dict[str, Any], arguments: argparse.Namespace) -> None:
        self.run = run
        self.rank = int(os.environ.get("RANK", "0"))
        self.is_last = self.rank == run["ranks"] - 1
        self.save, self.load = arguments.save, arguments.load
        self.resumed = _loaded(arguments)
        self.plan = [_ITEM.fullmatch(each) for each in run["plan"]]
        self.total = sum(_steps_in(each) for each in self.plan)
        self.step, self.since_line = 0, 0
        self.line_at = time.monotonic()
        self.clock_ahead = 0.0
        self.batch = 8
        self.counter: Any = None
        if run["probe"] == "iterations" and run["prints"] == "megatron":
            self.counter = types.SimpleNamespace(
                iteration=self.resumed, curr_iteration=self.resumed
            )

    def seconds(self, found: re.Match[str]) -> float:
        """Of life, in the time of this test."""
        return float(found["number"]) / float(self.run["factor"])

    def say(self, *lines: str, rank: int = 0) -> None:
        if self.rank == rank:
            print(*lines, sep="\n", flush=True)

    def clock(self) -> str:
        shown = datetime.now() + timedelta(hours=self.run["zone"], seconds=self.clock_ahead)
        return shown.strftime(self.run["clock"])

    def line(self) -> None:
        passed = time.monotonic() - self.line_at
        self.line_at = time.monotonic()
        values = {
            "clock": self.clock(), "step": self.step, "total": self.total, "before": self.step - 1,
            "done": 8 * self.step, "ms": passed * 1000 / max(1, self.since_line),
            "seconds": passed / max(1, self.since_line), "loss": 3.0 + 1.0 / self.step,
            "batch": self.batch,
        }  # fmt: skip
        self.say(_LINES[self.run["prints"]].format(**values), rank=self.run["ranks"] - 1)
        self.since_line = 0

    def is_new(self, index: int) -> bool:
        """An accident of the first attempt does not come again."""
        mark = Path(self.run["folder"]) / f"happened-{index}-{self.rank}"
        is_new = not mark.exists()
        mark.touch()
        return is_new

    def ask(self, what: str, seconds: float) -> None:
        """Ask the person outside to stop us, and wait until that is over."""
        folder = Path(self.run["folder"])
        if self.rank == 0:
            (folder / "asked.new").write_text(f"{what} {os.getpid()} {seconds}", "utf-8")
            (folder / "asked.new").rename(folder / "asked")
        while not (folder / "done").exists():
            time.sleep(0.1)


def pretrain(run: Run) -> None:
    opening = [each for each in run.plan if each is not None and each["what"] == "start"]
    if run.run["prints"] == "megatron" and run.run["arguments"]:
        run.say(*_arguments_block(run))
    seconds = sum(run.seconds(each) for each in opening)
    if run.resumed:
        time.sleep(seconds / 2)
        load_checkpoint(run)
        seconds /= 2
    time.sleep(seconds)
    if run.run["prints"] == "megatron":
        run.say(f"[before the start of training step] datetime: {run.clock()} ")
    if run.counter is not None:
        module = types.ModuleType("megatron.training.global_vars")
        module.__dict__["_GLOBAL_ARGS"] = run.counter
        sys.modules["megatron.training.global_vars"] = module
    train(run)
    if last := _LAST.get(run.run["prints"], "Training completed"):
        run.say(last.format(clock=run.clock()))


def load_checkpoint(run: Run) -> None:
    run.say(f" loading distributed checkpoint from {run.load} at iteration {run.resumed}")
    time.sleep(sum(run.seconds(each) for each in run.plan if each and each["what"] == "load"))
    place = f"{run.load} [ t 1/1, p 1/1 ] at iteration {run.resumed}"
    run.say(f"  successfully loaded checkpoint from {place}")


def train(run: Run) -> None:
    done = _done_before(run)
    for index, item in enumerate(run.plan):
        assert item is not None
        if _steps_in(item):
            for seconds in _durations(run, item):
                train_step(run, seconds)
                finish_step(run)
        elif index > done:
            happen(run, index, item)


def _done_before(run: Run) -> int:
    """The last item of the plan that the checkpoint has behind it."""
    step, done = 0, -1
    for index, item in enumerate(run.plan):
        step += _steps_in(item)
        if item is not None and item["what"] == "save" and step == run.resumed:
            done = index
    return done


def _durations(run: Run, item: re.Match[str]) -> Iterator[float]:
    """Those of the steps that this process has to do. Its first one is slow."""
    first = next(each for each in run.plan if each and each["what"] == "first step")
    for _ in range(_steps_in(item)):
        if run.step < run.resumed:
            run.step += 1
        else:
            yield run.seconds(first if run.step == run.resumed else item)


def train_step(run: Run, seconds: float) -> None:
    if run.counter is not None:
        run.counter.curr_iteration = run.step
    if not run.run["works"]:
        time.sleep(seconds)
        return
    end = time.monotonic() + seconds
    while time.monotonic() < end:  # a rank that trains launches kernels all the time
        busy = time.monotonic() + 0.008
        while time.monotonic() < busy:
            pass
        time.sleep(max(0.0, min(0.1, end - time.monotonic())))


def finish_step(run: Run) -> None:
    run.step += 1
    run.since_line += 1
    if run.step % run.run["interval"] == 0:
        run.line()


def happen(run: Run, index: int, item: re.Match[str]) -> None:
    what, is_silent = item["what"], bool(item["silent"])
    if what == "save":
        save_checkpoint_and_time(run, run.seconds(item), is_silent)
    elif what == "evaluation" and is_silent:
        time.sleep(run.seconds(item))  # by a function of the user that nobody knows
    elif what == "evaluation":
        evaluate_and_print_results(run, run.seconds(item))
    elif what == "pause" and run.is_new(index):
        time.sleep(run.seconds(item))  # it waits for its data
    elif what in ("stop", "debugger") and run.is_new(index):
        run.ask(what, run.seconds(item))
    elif what == "clock":
        run.clock_ahead += float(item["number"])
    elif what == "batch":
        run.batch = int(item["number"])
    elif what == "print":
        run.say(item["text"])
    if what in ("save", "evaluation"):
        run.line_at = time.monotonic()  # timers leave both out


def save_checkpoint_and_time(run: Run, seconds: float, is_silent: bool) -> None:
    if not is_silent and run.run["prints"] == "megatron":
        run.say(f"saving checkpoint at iteration {run.step:7d} to {run.save} in torch_dist format")
    time.sleep(seconds)
    if run.rank == 0 and run.save is not None:
        write_checkpoint(run.save, run.step)
    if not is_silent and run.run["prints"] == "megatron":
        place = f"{run.step:7d} to {run.save} [ t 1/1, p 1/1 ]"
        run.say(f"  successfully saved checkpoint from iteration {place}")


def write_checkpoint(save: Path, step: int) -> None:
    sys.path[:0] = os.environ["ODD_TRAINER_PATH"].split(os.pathsep)
    from support.builders import checkpoint

    checkpoint.torch_dist(save, step, {"__0_0.distcp": 1000})
    checkpoint.track(save, step)


def evaluate_and_print_results(run: Run, seconds: float) -> None:
    time.sleep(seconds)
    text = (
        f" validation loss at iteration {run.step} | lm loss value: 3.0E+00 | lm loss PPL: 2.0E+01"
    )
    if run.run["prints"] == "composer":
        text = "[Eval batch=10/10] Eval on eval data:\n\t Eval metrics/eval/loss: 3.0000"
    elif run.run["prints"] != "megatron":
        text = "{'eval_loss': 3.0, 'eval_runtime': 12.0}"
    run.say(text, rank=run.run["ranks"] - 1)


def _steps_in(item: re.Match[str] | None) -> int:
    if item is None:
        raise SystemExit("the plan has an item that nobody understands")
    return {"steps": int(item["count"] or 0), "first step": 1}.get(item["what"], 0)


def _loaded(arguments: argparse.Namespace) -> int:
    if arguments.load is None or not (arguments.load / _TRACKER).exists():
        return 0
    return arguments.ckpt_step or int((arguments.load / _TRACKER).read_text())


def _arguments_block(run: Run) -> Iterator[str]:
    known = {
        "eval_interval": run.run["eval_interval"] or 100000, "global_batch_size": 8,
        "log_interval": run.run["interval"], "save": run.save,
        "save_interval": run.run["save_interval"] or None, "tensor_model_parallel_size": 1,
        "train_iters": run.total, "world_size": run.run["ranks"],
    }  # fmt: skip
    yield "------------------------ arguments ------------------------"
    yield from (f"  {name} {'.' * (48 - len(name))} {value}" for name, value in known.items())
    yield "-------------------- end of arguments ---------------------"


def _launch(ranks: int) -> int:
    """One process for each rank, as a launcher starts them; the exit code is that of the worst."""
    children = []
    for rank in range(ranks):
        given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
        environment = {**os.environ, **{name: str(value) for name, value in given.items()}}
        children.append(subprocess.Popen([sys.executable, *sys.argv], env=environment))
    return max(abs(child.wait()) for child in children)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--load", type=Path)
    parser.add_argument("--ckpt-step", type=int)
    arguments = parser.parse_known_args()[0]
    given = json.loads(arguments.run.read_text("utf-8"))
    if given["ranks"] > 1 and "RANK" not in os.environ:
        sys.exit(_launch(given["ranks"]))
    pretrain(Run(given, arguments))


if __name__ == "__main__":
    main()
