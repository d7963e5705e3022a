# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Dumps on request: who answered, who did not and why, within bounds of time and room.

The ranks here are small stand-ins that answer as the probe does; the real probe has its own tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mwatch_trainer.evidence import dumps as evidence_dumps
from mwatch_trainer.evidence.dumps import MAX_DUMPS, Dumps
from mwatch_trainer.processes.proc import Tree
from support.runs.wrapper_runs import ask, child_pid, python, running
from support.waiting import until

RANKS = """
import faulthandler, json, os, signal, subprocess, sys, time
from mwatch_trainer.probe import record_file
from mwatch_trainer.processes import proc
from mwatch_trainer.probe.record_file import ProbeRecord
from mwatch_trainer.probe.dump import stacks_name
folder, answers = sys.argv[1], json.loads(sys.argv[2])
def put(rank, pid, started, number):
    os.makedirs(folder + "/probe", exist_ok=True)
    record = ProbeRecord(1, 0, pid, started, rank, rank, 3, 5, time.monotonic(),
                    time.time(), 1, number, "training", "", "")
    open(f"{folder}/probe/rank-{rank}", "wb").write(record_file.pack(record, 2))
if len(sys.argv) == 3:
    put(9, 999999, 1, 0)
    ranks = [subprocess.Popen([sys.executable, "-c", sys.argv[0], *sys.argv[1:], str(n)])
             for n in range(len(answers))]
    for each in ranks: each.wait()
rank = int(sys.argv[3])
os.makedirs(folder + "/dumps", exist_ok=True)
number = signal.SIGRTMAX - 1 if answers[rank] in ("signal", "haltingly") else 0
if number:
    stacks = open(folder + "/dumps/" + stacks_name(rank), "wb", 0)
    def in_two(*_): stacks.write(b"first"); time.sleep(2.0); stacks.write(b", last")
    if answers[rank] == "haltingly": signal.signal(number, in_two)
    else: faulthandler.register(number, file=stacks)
put(rank, os.getpid(), proc.read(os.getpid()).started, number)
print("ready", flush=True)
while True:
    try: asked = json.load(open(folder + "/dumps/request.json"))["id"]
    except (OSError, ValueError): asked = None
    if asked and answers[rank] == "probe":
        path = f"{folder}/dumps/{asked}/rank-{rank}.stacks.txt"
        with open(path + ".tmp", "w") as file: file.write("stacks")
        os.replace(path + ".tmp", path)
    if asked and answers[rank] == "slowly":
        place = f"{folder}/dumps/{asked}/rank-{rank}"
        for kind in ("unfinished", "stacks.txt"): open(f"{place}.{kind}", "w").write("x")
        time.sleep(0.5)
        open(f"{place}.flight.pickle", "w").write("flight")
        os.unlink(f"{place}.unfinished")
        answers[rank] = "done"
    time.sleep(0.02)
"""
CODE = RANKS.replace("sys.argv[0]", "open('/proc/self/cmdline').read().split(chr(0))[2]")


PATIENT = (
    "from mwatch_trainer.evidence import dumps\n"
    "dumps._SIGNAL_SECONDS, dumps._STABLE_LOOKS = 60.0, 10 * dumps._STABLE_LOOKS"
)
"""A rank may have to wait for a core before it writes, and again in the middle of it."""


def test_stacks_that_are_written_with_a_pause_are_kept_whole(tmp_path: Path) -> None:
    """All takes ten times as long as in life, where a pause of 0.2 s must not end a dump."""
    assert evidence_dumps._STABLE_LOOKS * evidence_dumps._LOOK_SECONDS >= 2 * 0.2
    words = python(CODE, str(tmp_path), json.dumps(["haltingly"]))
    with running(tmp_path, *words, patch=PATIENT):
        path = tmp_path / "trainer.log"
        until(lambda: path.exists() and b"ready" in path.read_bytes())
        answer = ask(str(tmp_path), {"op": "dump", "id": "one", "seconds": 0.1})
    assert answer["by_signal"] == [0], answer
    text = (tmp_path / "dumps" / "one" / "rank-0.stacks.txt").read_text()
    assert text.splitlines()[-1] == "first, last"


def test_every_rank_is_asked_and_the_silent_one_is_signalled(tmp_path: Path) -> None:
    answers = json.dumps(["probe", "signal", "never"])
    with running(tmp_path, *python(CODE, str(tmp_path), answers), patch=PATIENT):
        path = tmp_path / "trainer.log"
        until(lambda: path.exists() and path.read_bytes().count(b"ready") == 3)
        answer = ask(str(tmp_path), {"op": "dump", "id": "first", "seconds": 4})
        top = child_pid(tmp_path)
    assert answer["ok"] is True, answer
    assert (answer["ranks"], answer["by_signal"]) == ([0, 1], [1])
    folder = tmp_path / "dumps" / "first"
    assert (folder / "rank-0.stacks.txt").read_text() == "stacks"
    assert "most recent call first" in (folder / "rank-1.stacks.txt").read_text()
    missing = json.loads((folder / "missing.json").read_text())["ranks"]
    assert missing == [
        {"rank": 2, "why": "no answer"},
        {"rank": 9, "why": "its process has ended"},
    ]
    facts = json.loads((folder / "processes.json").read_text())["processes"]
    assert len(facts) == 4
    assert facts[0]["pid"] == top
    assert all(each["status"]["State"] for each in facts)


def test_a_dump_is_over_when_the_recorders_are_there_too(tmp_path: Path) -> None:
    with running(tmp_path, *python(CODE, str(tmp_path), json.dumps(["slowly"]))):
        path = tmp_path / "trainer.log"
        until(lambda: path.exists() and b"ready" in path.read_bytes())
        answer = ask(str(tmp_path), {"op": "dump", "id": "first", "seconds": 60})
        left = {each.name for each in (tmp_path / "dumps" / "first").iterdir()}
    assert answer["ranks"] == [0]
    assert {"rank-0.stacks.txt", "rank-0.flight.pickle"} <= left
    assert "rank-0.unfinished" not in left


def test_without_ranks_a_dump_is_quick_and_names_itself(tmp_path: Path) -> None:
    answer = empty(tmp_path).take("", 60.0)
    assert (answer["ranks"], answer["missing"]) == ([], [])
    assert Path(answer["folder"]).is_dir()


def test_old_dumps_go_and_torchs_own_stay(tmp_path: Path) -> None:
    (tmp_path / "dumps" / "recorder").mkdir(parents=True)
    (tmp_path / "dumps" / "rank-0.signal.txt").write_text("x")
    dumps = empty(tmp_path)
    for number in range(MAX_DUMPS + 3):
        dumps.take(f"d{number:02}", 0.0)
    names = sorted(each.name for each in (tmp_path / "dumps").iterdir())
    kept = [f"d{number:02}" for number in range(3, MAX_DUMPS + 3)]
    assert names == [*kept, "rank-0.signal.txt", "recorder", "request.json"]


def test_dumps_that_fill_the_volume_go_too(tmp_path: Path) -> None:
    dumps = empty(tmp_path)
    for name in ("a", "b"):
        dumps.take(name, 0.0)
        with (tmp_path / "dumps" / name / "rank-0.flight.pickle").open("wb") as file:
            file.truncate(50 << 20)
    dumps.take("c", 0.0)
    assert not (tmp_path / "dumps" / "a").exists()
    assert (tmp_path / "dumps" / "b").exists()


def empty(directory: Path) -> Dumps:
    """Of a wrapper without a child: the tests' own children do not count."""

    class Nobody(Tree):
        def processes(self) -> list[Any]:
            return []

    return Dumps(str(directory), Nobody(list))
