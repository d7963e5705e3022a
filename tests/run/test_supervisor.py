# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The loop of a watched run, driven from a program: faults of our own, and what is left over.

In a process of its own, for a run takes the signals of the process that it is in.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.runs.live_runs import PATIENCE, QUICK, environment, trainer

DRIVE = """
import json, os, sys, threading
from pathlib import Path
from mwatch.run import assemble as app
from mwatch.run.process import TrainerOutput
from mwatch.watch.watcher import RunObserver
from mwatch.watch import watcher

class View(RunObserver):
    notes = []
    def noted(self, text):
        self.notes.append(text)
    def ended(self, ended):
        self.notes.append(ended.summary)

def break_one(name):
    whole = getattr(watcher.RunWatcher, name)
    def broken(self, *args, **more):
        if os.environ.get("ALWAYS") or name not in seen:
            seen.append(name)
            raise KeyError(name)
        return whole(self, *args, **more)
    setattr(watcher.RunWatcher, name, broken)

seen = []
for name in filter(None, os.environ.get("BREAK", "").split(",")):
    break_one(name)
fds = len(os.listdir("/proc/self/fd"))
request = app.RunRequest(
    argv=sys.argv[1:], is_act=bool(os.environ.get("ACT")), policy=Path("policy.toml"), name="r",
    parent=Path("runs"), port=None, grace_seconds=1, output=TrainerOutput.VIEW,
)
ended = app.run(request, lambda run: View())
print(json.dumps({
    "code": ended.exit_code, "notes": View.notes,
    "threads": sorted(each.name for each in threading.enumerate()),
    "fds": len(os.listdir("/proc/self/fd")) - fds,
}))
"""


def drive(folder: Path, *flags: str, **env: str) -> dict[str, Any]:
    (folder / "policy.toml").write_text(QUICK, "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", DRIVE, *trainer(*flags)], capture_output=True, cwd=folder,
        env=environment(**env), timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_run_of_several_attempts_leaves_no_thread_and_no_open_file(tmp_path: Path) -> None:
    flags = ("--then", "kill", "--at", "6", "--state", "once", "--save", "ckpt", "--load", "ckpt")
    told = drive(tmp_path, *flags, ACT="1")
    assert told["code"] == 0, told["notes"]
    assert told["threads"] == ["MainThread"]
    assert told["fds"] == 0


def test_a_watcher_that_always_fails_says_so_and_the_command_comes_to_its_end(
    tmp_path: Path,
) -> None:
    told = drive(tmp_path, "--train-iters", "5", "--exit-code", "4", BREAK="look", ALWAYS="1")
    assert told["code"] == 4
    failed = [each for each in told["notes"] if "mwatch failed at" in each]
    assert len(failed) == 1, "once"
    assert "KeyError: 'look'" in failed[0]
    assert told["notes"][-1] == "the command has ended; its exit code is unknown"


def test_faults_of_ours_do_not_keep_a_run_from_coming_back(tmp_path: Path) -> None:
    """Each of these fails once, in one run."""
    parts = ("begin", "look_closely", "enacted", "attempt_ended", "_note_incidents", "_recall")
    flags = ("--then", "kill", "--at", "6", "--state", "once", "--save", "ckpt", "--load", "ckpt")
    told = drive(tmp_path, *flags, ACT="1", BREAK=",".join(parts))
    assert told["code"] == 0, told["notes"]
    failed = [each for each in told["notes"] if "mwatch failed at" in each]
    assert len(failed) == len(set(failed)) >= 1


def test_a_fault_at_the_very_end_changes_no_exit_code(tmp_path: Path) -> None:
    told = drive(tmp_path, "--train-iters", "3", "--exit-code", "5", BREAK="end", ALWAYS="1")
    assert told["code"] == 5
