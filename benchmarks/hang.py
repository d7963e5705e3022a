# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""From the stop of a rank (SIGSTOP, steps of 0.5 s) to the line that tells of a hang.

The same script runs under `mwatch run`, which only observes, and under NVIDIA's ft_launcher with
calculated timeouts, in turns. Its calls to NVIDIA's client are made under ft_launcher alone;
`mwatch run` needs none.

ft_launcher looks every 5 s whether a section has been open, or a heartbeat overdue, for more than
5 times the longest that was seen: after a stop that is 2.3 to 7.6 s, by where between two looks it
falls. The stops are spread evenly over these 5 s. Where no timeouts are calculated it waits as long
as its settings say: 45 minutes by default, 3 in Megatron-LM's example.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from functools import cached_property
from pathlib import Path
from statistics import median

from benchmarks import hang_job, hang_peer
from benchmarks.hang_run import Noticed, Watcher, notice
from benchmarks.measure import ROOT, python
from benchmarks.row import Row

TARGET = 2.0
_LOOKS_EVERY_SECONDS = 1.0
_SCRIPT = str(ROOT / "benchmarks" / "hang_job.py")
_JOB = (
    "--train-iters", "1000", "--log-interval", "10", "--eval-iters", "0",
    "--save", "checkpoints", "--save-interval", "20",
)  # fmt: skip


class Trial:
    """Everything is run once, when first asked."""

    def __init__(self, turns: int) -> None:
        """`turns`: an even number, so that the median lies in the middle of the 5 s."""
        self._turns = turns

    @cached_property
    def seen(self) -> dict[str, list[Noticed]]:
        """By the name of who noticed: in turns, so that all see the same load."""
        job = [_SCRIPT, *_JOB]
        env = _environment()
        watchers = [_ours(job, env)]
        watchers += [
            hang_peer.watcher(api, job, env, hang_job.API_VARIABLE) for api in hang_peer.APIS
        ]
        seen: dict[str, list[Noticed]] = {each.name: [] for each in watchers}
        for turn in range(self._turns):
            for each in watchers:
                with tempfile.TemporaryDirectory(prefix="hang-") as folder:
                    found = notice(each, Path(folder) / "run", (turn + 0.5) / self._turns)
                seen[each.name].append(found)
                text = f"{each.name}: {found.seconds:.2f} s  {found.learnt}"
                print(f"  {text}\n    {found.said}", file=sys.stderr, flush=True)
        return seen

    def row(self) -> Row:
        return self._row("hang", "sections", TARGET)

    def heartbeats_row(self) -> Row:
        return self._row("hang-heartbeats", "heartbeats", None)

    def _row(self, name: str, api: str, target: float | None) -> Row:
        ours = [each.seconds for each in self.seen["mwatch run"]]
        theirs = [each.seconds for each in self.seen[f"ft_launcher, {api}"]]
        ratio = median(theirs) / median(ours)
        return Row(
            name,
            f"{median(ours):.1f} s",
            f"{median(theirs):.1f} s",
            ratio,
            target="" if target is None else f">= {target:g}x",
            met=None if target is None else ratio >= target,
            note=f"medians of {self._turns}, {_range(ours)} and {_range(theirs)}; other:"
            f" ft_launcher {hang_peer.VERSION}, {api}, calculated timeouts",
        )


def _range(seconds: list[float]) -> str:
    return f"{min(seconds):.1f} to {max(seconds):.1f}"


def _environment() -> dict[str, str]:
    folders = (str(ROOT / "sidecar"), str(ROOT / "trainer"))
    return {"PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}


def _ours(job: list[str], env: dict[str, str]) -> Watcher:
    torchrun = python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    run = python("-m", "mwatch", "run", "--json", "--runs", "runs", "--", *torchrun, *job)
    return Watcher(
        name="mwatch run",
        command=lambda folder: run,
        env=env,
        says_hang=_is_hang,
        looks_every_seconds=_LOOKS_EVERY_SECONDS,
        first_look=lambda pid: 0.0,
    )


def _is_hang(line: bytes) -> bool:
    if b'"incident"' not in line:
        return False
    try:
        said: dict[str, object] = json.loads(line[line.index(b"{") :])
    except ValueError:
        return False
    return said.get("event") == "incident" and said.get("cause") == "hang"
