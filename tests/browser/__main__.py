# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`make pictures`: the pictures of the pages in `docs/`, of a real training that breaks twice.

Four ranks of the small GPT train under `mwatch run --act`. A weight becomes NaN, and later a rank
stops. The live page is taken in Chromium when it names that rank, the report after the end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from browser.chromium import Chromium, chromium
from browser.devtools import Page, page
from support.debian_tools import ToolMissing
from support.free_ports import free_port
from support.runs.live_runs import Running, environment, started
from support.waiting import until

_NAME = "gpt-small"
_RANKS, _CULPRIT, _ITERATIONS = 4, 2, 320
_FAULTS = ("nan@126", f"sigstop@245:rank={_CULPRIT}")
_POLICY = """
[act]
backoff_first_seconds = 15.0
backoff_factor = 1.0
default_restart_cost_seconds = 5.0
min_restart_cost_seconds = 2.0
stall_factor = 1.0
"""
"""As in the demo, but for the wait before a restart: the picture is taken meanwhile."""
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
_SECONDS = 400.0
_WIDTH = 1200
_MAX_BYTES = 300_000
_SCALES = (2.0, 1.5, 1.25, 1.0)
"""The finest one that stays inside the bound."""


def training(folder: Path, port: int) -> list[str]:
    policy = folder / "policy.toml"
    policy.write_text(_POLICY, "utf-8")
    watched = ["--act", "--plain", "--name", _NAME, "--port", str(port), "--policy", str(policy)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(_RANKS)]
    model = [
        *("--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4"),
        *("--seq-length", "64", "--micro-batch-size", "2", "--global-batch-size", "8", "--bf16"),
        *("--lr", "1e-3", "--train-iters", str(_ITERATIONS), "--log-interval", "1"),
        *("--save", "checkpoints", "--load", "checkpoints", "--save-interval", "20"),
        *("--eval-interval", "100", "--eval-iters", "2"),
        *("--no-check-for-nan-in-loss-and-grad", "--fault-state", "faults"),
        *(part for fault in _FAULTS for part in ("--fault", fault)),
    ]
    return [
        sys.executable, "-m", "mwatch", "run", *watched, "--", sys.executable, *torchrun,
        "-m", "mwatch_gpt", *model,
    ]  # fmt: skip


def pictures(browser: Chromium, target: Path, folder: Path) -> list[Path]:
    port = free_port()
    env = environment(OMP_NUM_THREADS="1")
    kept = {name: text for name, text in env.items() if name not in _RANK_VARIABLES}
    live, report = target / "live.png", target / "report.png"
    with started(training(folder, port), folder, kept) as running, page(browser) as tab:
        here = f"http://127.0.0.1:{port}/"
        until(lambda: here in running.said.read_text("utf-8"), _SECONDS)
        print(f"{here}: waiting for rank {_CULPRIT} to stop", file=sys.stderr)
        until(lambda: names_culprit(running), _SECONDS)
        tab.open(here)
        until(lambda: tab.value("document.querySelector('#next').innerText.includes('Restart')"))
        take(tab, here, live, ".plot.band", 32)
        print("waiting for the end", file=sys.stderr)
        assert running.process.wait(_SECONDS) == 0, running.said.read_text("utf-8")[-2000:]
        file = folder / "report.html"
        run = str(folder / "runs" / _NAME)
        line = [sys.executable, "-m", "mwatch", "report", run, "--out", str(file)]
        subprocess.run(line, env=kept, check=True, capture_output=True, timeout=60)
        take(tab, file, report, "#incidents table", 6)
    return [live, report]


def names_culprit(running: Running) -> bool:
    assert running.process.poll() is None, running.said.read_text("utf-8")[-2000:]
    return f"; rank {_CULPRIT}" in running.said.read_text("utf-8")


def take(tab: Page, place: Path | str, target: Path, last: str, below: int) -> None:
    """From the headline to so many pixels below `last`, as fine as the bound of its size allows."""
    box = f"document.querySelector({last!r}).getBoundingClientRect()"
    for scale in _SCALES:
        tab.look(_WIDTH, 900, scale=scale)
        tab.open(place)
        tab.screenshot(target, (0, 0, _WIDTH, int(tab.value(f"{box}.bottom + scrollY")) + below))
        if target.stat().st_size <= _MAX_BYTES:
            break
    if tab.complaints:
        raise SystemExit(f"the page complains: {tab.complaints[0]}")


def main() -> None:
    parser = argparse.ArgumentParser("browser", description="Make the pictures of the pages.")
    parser.add_argument("folder", type=Path, help="where to write live.png and report.png")
    target = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = pictures(chromium(), target, Path(folder))
        except ToolMissing as error:
            sys.exit(str(error))
    for each in made:
        print(f"{each} ({each.stat().st_size / 1e3:.0f} kB)")


main()
