# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Starts a row of `runs.toml` under `mwatch run --act`, waits for its end, and says what was done.

All seconds of the table are those of life. Trainer and policy both run `FACTOR` times faster, so
their proportions are those of life. What mwatch itself samples by (a probe record a second, the
age of a report) is not faster, and keeps its value.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from mwatch.model.settings import Settings
from support.builders import checkpoint
from support.runs.live_runs import ROOT, Finished, Running, command, environment, started

FACTOR = 10
_HERE = Path(__file__).parent
_SAMPLING = frozenset(
    {
        "look_seconds", "beat_silence_seconds", "clock_seconds", "sign_seconds",
        "probe_floor_seconds", "straggler_seconds",
    }
)  # fmt: skip
"""Settings about what mwatch itself can see, in a time that no factor changes."""
_LONGEST = 500.0
"""Only a broken run takes so long."""


@dataclass(frozen=True, slots=True)
class HealthyRun:
    name: str
    happens: str
    healthy: str
    """Why the run is healthy."""
    plan: tuple[str, ...]
    prints: str = "megatron"
    interval: int = 1
    probe: str = "iterations"
    """`iterations`; `beats`: it does not see them; `off`."""
    ranks: int = 1
    works: bool = False
    """It uses a CPU in its steps, as a rank on a GPU does; else it sleeps, which looks worse."""
    saves: bool = True
    """It has a folder of checkpoints that mwatch knows."""
    arguments: bool = True
    """It prints its arguments."""
    resumes: int = 0
    """The checkpoint that it begins with."""
    save_interval: int = 0
    eval_interval: int = 0
    zone: float = 0.0
    clock: str = "%Y-%m-%d %H:%M:%S"
    restarts: int = 0
    arithmetic: str = ""
    """Of restarts that are right, in words."""


def table() -> list[HealthyRun]:
    rows = tomllib.loads((_HERE / "runs.toml").read_text("utf-8"))["run"]
    return [HealthyRun(**{**row, "plan": tuple(row["plan"])}) for row in rows]


def policy() -> str:
    """Every duration of the default policy, `FACTOR` times shorter."""
    return "\n".join(_sections(Settings(), ""))


def _sections(settings: Any, name: str) -> list[str]:
    inner = [each for each in fields(settings) if is_dataclass(getattr(settings, each.name))]
    lines = [f"[{name}]"] if name else []
    for each in fields(settings):
        if each.name.endswith("_seconds") or each.name == "seconds":
            value = getattr(settings, each.name)
            lines.append(f"{each.name} = {value if each.name in _SAMPLING else value / FACTOR}")
    for each in inner:
        prefix = f"{name}." if name else ""
        lines += _sections(getattr(settings, each.name), prefix + each.name)
    return lines


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    attempts: int
    acts: tuple[str, ...]
    """What mwatch did, with its reasons."""
    incidents: tuple[str, ...]
    seconds: float

    @property
    def text(self) -> str:
        lines = [f"exit code {self.code}, {self.attempts} attempts, {self.seconds:.0f} s"]
        return "\n".join([*lines, *self.acts, *self.incidents])


def carry_out(run: HealthyRun, folder: Path) -> Outcome:
    began = time.monotonic()
    folder.mkdir(parents=True)
    with started(_command(run, folder), folder, _environment(run)) as running:
        code = _wait(running, folder)
    ended = Finished(code, b"", running.said.read_bytes(), running.folder)
    acts = [f"{each['action']}: {each['reason']}" for each in ended.of("action")]
    incidents = [f"{each['cause']}: {each['summary']}" for each in ended.of("incident")]
    attempts = len(ended.of("attempt"))
    return Outcome(code, attempts, tuple(acts), tuple(incidents), time.monotonic() - began)


def _command(run: HealthyRun, folder: Path) -> list[str]:
    is_megatron = run.prints == "megatron"
    trainer = folder / ("megatron/training.py" if is_megatron else "train.py")
    trainer.parent.mkdir(exist_ok=True)
    shutil.copy(_HERE / "odd_trainer.py", trainer)
    given = {**asdict(run), "factor": FACTOR, "folder": str(folder)}
    (folder / "run.json").write_text(json.dumps(given), "utf-8")
    if run.resumes:
        checkpoint.torch_dist(folder / "ckpt", run.resumes, {"__0_0.distcp": 1000})
        checkpoint.track(folder / "ckpt", run.resumes)
    line = [sys.executable, str(trainer), "--run", str(folder / "run.json")]
    if is_megatron:
        line += ["--log-interval", str(run.interval)]
    if is_megatron and run.saves:
        line += ["--save", str(folder / "ckpt"), "--load", str(folder / "ckpt")]
    options = ["--act", *(["--no-probe"] if run.probe == "off" else [])]
    return command(folder, *options, then=line, policy=policy())


def _environment(run: HealthyRun) -> dict[str, str]:
    folders = ":".join(str(ROOT / each) for each in ("tests", "sidecar", "trainer"))
    found = environment(ODD_TRAINER_PATH=folders)
    launched = () if run.ranks == 1 else ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    return {name: value for name, value in found.items() if name not in launched}


def _wait(running: Running, folder: Path) -> int:
    """Until the run ends; meanwhile, do what it asks a person for."""
    until = time.monotonic() + _LONGEST
    while running.process.poll() is None:
        if time.monotonic() > until:
            raise TimeoutError(f"the run has not ended after {_LONGEST:.0f} s")
        with suppress(FileNotFoundError):
            asked = (folder / "asked").read_text("utf-8").split()
            subprocess.run(
                [sys.executable, str(_HERE / "person.py"), *asked], check=True, timeout=_LONGEST
            )
            (folder / "asked").unlink()
            (folder / "done").touch()
        with suppress(subprocess.TimeoutExpired):
            running.process.wait(0.2)
    return running.process.wait()
