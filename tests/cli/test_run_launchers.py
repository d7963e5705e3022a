# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A stopped process is found and acted on under every launcher, and without one.

All with real processes: torchrun, accelerate, deepspeed and Ray as they are, tasks in the manner of
`srun`, and single processes that no launcher has given a rank.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from mwatch_trainer.processes import proc
from support.runs import live_runs
from support.runs.live_runs import HANGS, PATIENCE, QUICK, Running, environment, started, trainer
from support.waiting import until

pytestmark = pytest.mark.timeout(600)  # loading torch takes most of the time
HERE = Path(__file__).parents[1] / "support" / "runs"
STOP = ("--train-iters", "4000", "--step-seconds", "0.05", "--then", "stop", "--at", "40")
SRUN = """
import os, subprocess, sys
step = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}
tasks = [
    subprocess.Popen(
        sys.argv[1:], stdout=None if rank == 0 else subprocess.DEVNULL,
        env={**os.environ, **step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
    )
    for rank in range(2)
]
sys.exit(max(each.wait() for each in tasks))
"""
WITH_TORCH = (
    f"import runpy, torch; runpy.run_path({str(HERE / 'printing_trainer.py')!r}, None, '__main__')"
)
MODULE = (sys.executable, "-m")
LAUNCHERS = {
    "torchrun": (*MODULE, "torch.distributed.run", "--nproc-per-node", "2"),
    "accelerate": (
        *MODULE, "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2",
        "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
    ),
    "deepspeed": (*MODULE, "deepspeed.launcher.runner", "--num_gpus", "2", "--no_local_rank"),
}  # fmt: skip


WITH_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def without_rank(**more: str) -> dict[str, str]:
    kept = environment(**more)
    return {name: text for name, text in kept.items() if name not in WITH_RANK or name in more}


PATIENT = QUICK.replace("= 90", "= 20")
"""A rank that waits some seconds for its turn on a busy machine does not hang, and has no name."""


def command(folder: Path, *options: str, then: list[str], policy: str = PATIENT) -> list[str]:
    return live_runs.command(folder, *options, then=then, policy=policy)


def events(running: Running, kind: str) -> list[dict[str, Any]]:
    lines = running.said.read_text("utf-8", "replace").splitlines()
    found = [json.loads(line) for line in lines if line.startswith('{"event"')]
    return [each for each in found if each["event"] == kind]


def restarted(
    running: Running, seconds: float = 2 * PATIENCE
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first hang, and what was done about it.

    On a busy machine an incident may open before all ranks have been looked at; who is acted on is
    named with the act. There a launcher may also give up its own start, which is a crash and is
    restarted."""
    done = until(lambda: _hangs(running, "action"), seconds=seconds)
    return _hangs(running, "incident")[0], done[0]


def _hangs(running: Running, event: str) -> list[dict[str, Any]]:
    return [each for each in events(running, event) if each["cause"] == "hang"]


@pytest.mark.parametrize("given", [{}, {"RANK": "0"}], ids=["no-variables", "RANK-alone"])
def test_a_single_process_without_a_launcher_is_acted_on(
    tmp_path: Path, given: dict[str, str]
) -> None:
    line = command(tmp_path, "--act", then=trainer(*STOP))
    with started(line, tmp_path, without_rank(**given)) as running:
        incident, action = restarted(running)
    assert incident["cause"] == "hang"
    assert (action["action"], "stopped every process" in action["reason"]) == ("restart", True)


def test_a_torch_process_without_a_launcher_is_acted_on(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(WITH_TORCH)
    line = [sys.executable, str(script), *STOP]
    line = command(tmp_path, "--act", then=line)
    with started(line, tmp_path, without_rank()) as running:
        incident, action = restarted(running)
    assert (incident["cause"], action["action"]) == ("hang", "restart")


def test_tasks_of_srun_are_ranks_without_the_probe_too(tmp_path: Path) -> None:
    launcher = tmp_path / "srun.py"
    launcher.write_text(SRUN)
    line = [sys.executable, str(launcher), *trainer(*STOP)]
    line = command(tmp_path, "--act", "--no-probe", then=line)
    with started(line, tmp_path, without_rank()) as running:
        incident, action = restarted(running)
    assert incident["cause"] == "hang"
    assert action["action"] == "restart"


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_stopped_rank_of_a_real_launcher_is_named_and_acted_on(tmp_path: Path, name: str) -> None:
    flags = ["--meeting", str(tmp_path / "meeting"), "--state", str(tmp_path / "once")]
    flags += [] if name == "torchrun" else ["--without-torch"]
    line = [*LAUNCHERS[name], str(HERE / "torch_trainer.py"), *flags]
    line = command(tmp_path, "--act", then=line)
    with started(line, tmp_path, without_rank(DS_ACCELERATOR="cpu")) as running:
        _, action = restarted(running)
    assert action["culprit"].startswith("rank 1")
    assert action["action"] == "restart"


@pytest.mark.timeout(600)  # on a busy machine Ray starts twice, for half a minute each
def test_a_stopped_ray_actor_is_named_and_acted_on(tmp_path: Path) -> None:
    flags = ["--meeting", str(tmp_path / "meeting"), "--state", str(tmp_path / "once")]
    line = [sys.executable, str(HERE / "ray_trainer.py"), *flags]
    line = command(tmp_path, "--act", then=line)
    with started(line, tmp_path, without_rank(RAY_USAGE_STATS_ENABLED="0")) as running:
        _, action = restarted(running, seconds=8 * PATIENCE)
    assert action["culprit"].startswith("rank 1")
    assert action["action"] == "restart"


def test_a_person_may_stop_the_whole_command_and_continue_it(tmp_path: Path) -> None:
    flags = ("--train-iters", "400", "--step-seconds", "0.05")
    line = ["bash", "-c", f"{' '.join(trainer(*flags))}; exit $?"]
    line = command(tmp_path, "--act", then=line, policy=HANGS.replace("suspended_seconds = 3", ""))
    with started(line, tmp_path) as running:
        pid = running.starts()["pid"]
        log = running.folder / "volume" / "trainer.log"
        until(lambda: b"iteration       40/" in log.read_bytes())
        tree = [pid, *(each.pid for each in proc.descendants(pid, proc.all_processes()))]
        for each in tree:
            os.kill(each, signal.SIGSTOP)
        until(lambda: events(running, "incident"))
        story = running.folder / "story.json"
        until(lambda: "has 300 s to be continued" in story.read_text("utf-8"))
        for each in tree:
            os.kill(each, signal.SIGCONT)
        ended = running.ends()
    assert ended.code == 0
    assert (len(ended.of("attempt")), ended.of("action")) == (1, [])
