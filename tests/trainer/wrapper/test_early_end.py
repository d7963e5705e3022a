# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A training that ends by its own rules twice at the same place is done.

The wrapper sees one attempt alone: where the one before ended is kept beside the checkpoints.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mwatch_trainer.attempt.plan import AttemptPlan
from mwatch_trainer.exits.explain import explain
from mwatch_trainer.exits.log_reader import ExitLogReader
from mwatch_trainer.probe.record_file import ProbeRecord, RecordFile
from mwatch_trainer.wrapper import early_end
from support.runs.live_runs import trainer
from support.runs.wrapper_runs import LIMIT_SECONDS, attempt, command, environ

BEGIN = "[before the start of training step] datetime: 2026-11-15 09:00:00 "


def line(number: int, total: int = 1000) -> str:
    return f" iteration {number:8d}/{total:8d} | lm loss: 2.0 |"


def end(save: Path, *lines: str, number: int = 1, **more: Any) -> tuple[int, str]:
    """The exit code and the reason of an attempt that has printed this and left with 0."""
    directory = more.pop("directory", None)
    plan = AttemptPlan(number, ("python",), {}, save=str(save), **more)
    reader = ExitLogReader()
    for each in (BEGIN, *lines):
        reader.feed(each.encode())
    found = early_end.judged(explain(0, reader, None, plan), reader, plan, directory)
    return found.returned, found.reason


def probed(folder: Path, iteration: int, number: int) -> str:
    texts = ("training", "", "")
    record = ProbeRecord(number, 0, 1, 1, 0, 0, 2, iteration, 0.0, 0.0, 1, 0, *texts)
    file = RecordFile(str(folder), 0)
    folder.mkdir(exist_ok=True)
    assert file.claim()
    file.write(record)
    file.close()
    return str(folder)


def test_the_second_end_at_the_same_place_is_the_end(tmp_path: Path) -> None:
    assert end(tmp_path, line(69), line(70))[0] == 200
    again = end(tmp_path, number=2, resume_from=70)
    assert again == (0, "training finished: it ended at iteration 70 of 1000 by itself, twice")
    assert end(tmp_path, number=3, resume_from=70)[0] == 0


@pytest.mark.parametrize(
    ("lines", "resumed", "returned"),
    [
        ([line(70)], 69, 0),  # without a last save it repeats what it had done
        ([], 60, 0),  # it remembers elsewhere that it is done
        ([line(71)], 70, 200),
        ([line(65)], 60, 200),
        ([line(70)], None, 200),  # it began anew: another run may have been here before
        ([], 80, 200),
    ],
)
def test_only_without_a_new_step(
    tmp_path: Path, lines: list[str], resumed: int | None, returned: int
) -> None:
    end(tmp_path, line(69), line(70))
    assert end(tmp_path, *lines, number=2, resume_from=resumed)[0] == returned


def test_the_last_steps_may_be_too_few_for_a_line(tmp_path: Path) -> None:
    end(tmp_path, line(60), line(70))
    assert end(tmp_path, number=2, resume_from=75)[0] == 0
    assert end(tmp_path, number=2, resume_from=80)[0] == 200


def test_each_end_that_got_further_is_the_new_one(tmp_path: Path) -> None:
    assert end(tmp_path, line(70))[0] == 200
    assert end(tmp_path, line(90), number=2, resume_from=70)[0] == 200
    assert end(tmp_path, number=3, resume_from=90)[0] == 0


def test_a_failure_that_ends_with_0_is_never_the_end(tmp_path: Path) -> None:
    end(tmp_path, line(70))
    failed = "Traceback (most recent call last):", "ValueError: no such loss"
    assert end(tmp_path, *failed, number=2, resume_from=70)[0] == 200
    failed_load = "could not load the checkpoint"
    assert end(tmp_path, failed_load, number=2, resume_from=70)[0] == 200


def test_node_0_knows_by_its_probe_what_another_node_prints(tmp_path: Path) -> None:
    """Megatron prints iterations on its last rank, and the end on rank 0: whose 0 counts."""
    gang = {"nnodes": 2}
    first = probed(tmp_path / "v1", 70, 1)
    assert end(tmp_path, directory=first, **gang)[0] == 200
    assert end(tmp_path, line(70), node_rank=1, **gang)[0] == 200
    again = {"number": 2, "resume_from": 70, **gang}
    assert end(tmp_path, **again)[0] == 200  # whether there were steps is not known
    went_on = probed(tmp_path / "v2", 90, 2)
    assert end(tmp_path, directory=went_on, **again)[0] == 200
    end(tmp_path, line(70), node_rank=1, **gang)
    stood = probed(tmp_path / "v3", 70, 2)
    assert end(tmp_path, directory=stood, **again)[0] == 0
    assert end(tmp_path, node_rank=1, **again)[0] == 0  # it printed the last one's, and now none


def test_a_damaged_record_is_none(tmp_path: Path) -> None:
    end(tmp_path, line(70))
    path = tmp_path / ".mwatch" / early_end.FILE
    for text in ("{", "[]", '{"attempt": "1"}', json.dumps({"attempt": 1, "iteration": None})):
        path.write_text(text)
        assert end(tmp_path, number=2, resume_from=70)[0] == 200


@pytest.mark.parametrize("interval", [4, 9])
def test_the_pod_of_the_first_end_may_be_gone(tmp_path: Path, interval: int) -> None:
    """Each attempt has a volume of its own; with a save at the end, and without."""
    save = str(tmp_path / "ck")
    flags = ["--save", save, "--load", save, "--save-interval", str(interval), "--then", "leave"]
    for number, code in enumerate((200, 0)):
        volume = tmp_path / f"volume-{number}"
        options = ["--act", "--no-node-facts", "--dir", str(volume)]
        done = subprocess.run(
            command(*trainer(*flags), options=options),
            env=environ(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1"),
            timeout=LIMIT_SECONDS, capture_output=True, check=False,
        )  # fmt: skip
        assert (number, done.returncode) == (number, code), done.stdout.decode()
        assert attempt(volume)["exit"]["code"] == 0
