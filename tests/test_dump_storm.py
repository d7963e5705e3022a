# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A storm of dumps and incidents, with ranks that write far too much, stays inside its budgets: a
volume that overruns gets the pod evicted, and training with it.

The files have holes: they are as long as they say, and take no room here.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from mwatch.evidence.bundle import EvidenceLimits, collect
from mwatch.evidence.incident_store import IncidentFiles
from mwatch.model.cause import Cause
from mwatch.model.incident import incident_id
from mwatch_trainer.evidence.dumps import MAX_DUMPS, OLDER_BYTES, RECORDER_BYTES, DumpQuota
from mwatch_trainer.evidence.incidents import VOLUME_BYTES, folder_bytes
from mwatch_trainer.probe.dump import DUMP_BYTES
from support.builders.evidence import Wrapper, filled_volume
from support.runs.control_runs import controlled, token_file
from support.runs.wrapper_runs import ask, python, running
from support.waiting import until

# Four ranks that answer a dump as the probe does, with much more than the probe would write.
FLOOD = """
import json, os, sys, time
from mwatch_trainer.probe import record_file
from mwatch_trainer.processes import proc
from mwatch_trainer.probe.record_file import ProbeRecord
folder = sys.argv[1]
os.makedirs(folder + "/probe", exist_ok=True)
started = proc.read(os.getpid()).started
for rank in range(4):
    record = ProbeRecord(1, 0, os.getpid(), started, rank, rank, 4, 5, time.monotonic(),
                    time.time(), 1, 0, "training", "", "")
    open(f"{folder}/probe/rank-{rank}", "wb").write(record_file.pack(record, 2))
print("ready", flush=True)
done = None
while True:
    try: asked = json.load(open(folder + "/dumps/request.json"))["id"]
    except (OSError, ValueError): asked = None
    if asked and asked != done:
        done = asked
        for rank in range(4):
            place = f"{folder}/dumps/{asked}/rank-{rank}"
            with open(place + ".flight.pickle", "wb") as file: file.truncate(int(sys.argv[2]) << 20)
            open(place + ".stacks.txt", "w").write("Thread 1\\n" * 1000)
        with open(f"{folder}/dumps/recorder/rank-{len(asked)}", "wb") as file:
            file.truncate(40 << 20)
    time.sleep(0.01)
"""


def test_dumps_on_the_volume_stay_inside_their_budget(tmp_path: Path) -> None:
    """A real wrapper, asked a dozen times in a row."""
    (tmp_path / "dumps" / "recorder").mkdir(parents=True)
    with running(tmp_path, *python(FLOOD, str(tmp_path), "60")):
        log = tmp_path / "trainer.log"
        until(lambda: log.exists() and b"ready" in log.read_bytes())
        for number in range(12):
            name = f"d{number:02}" + "x" * number
            answer = ask(str(tmp_path), {"op": "dump", "id": name, "seconds": 60})
            assert answer["ranks"] == [0, 1, 2, 3]
            folder = tmp_path / "dumps" / name
            assert folder_bytes(str(folder)) <= DUMP_BYTES
            assert (folder / "rank-3.stacks.txt").stat().st_size == 9000
            told = json.loads((folder / "missing.json").read_text())["too_large"]
            assert len(told) == 3
    kept = [each for each in os.listdir(tmp_path / "dumps") if each.startswith("d")]
    assert 1 < len(kept) <= MAX_DUMPS
    DumpQuota(str(tmp_path / "dumps")).make_room("next")
    recorded = folder_bytes(str(tmp_path / "dumps" / "recorder"))
    assert 0 < recorded <= RECORDER_BYTES
    assert folder_bytes(str(tmp_path / "dumps")) - recorded <= DUMP_BYTES + OLDER_BYTES


def test_evidence_that_is_asked_for_over_and_over_stays_inside_too(tmp_path: Path) -> None:
    """Recorders that cannot be read are looked at again for some seconds: that is its time."""
    (tmp_path / "dumps" / "recorder").mkdir(parents=True)
    with (
        running(tmp_path, *python(FLOOD, str(tmp_path), "18")),
        controlled(tmp_path, token_file(tmp_path)) as client,
    ):
        log = tmp_path / "trainer.log"
        until(lambda: log.exists() and b"ready" in log.read_bytes())
        for _ in range(2):
            manifest = until(
                lambda: client.post("/v1/evidence", reason="storm", wait_seconds=25).json.get(
                    "manifest"
                )
            )
            missing = {each["what"]: each["why"] for each in manifest["missing"]}
            assert missing["rank-0.flight.pickle"] == "it is too large"
    everything = folder_bytes(str(tmp_path))
    limit = DUMP_BYTES + OLDER_BYTES + RECORDER_BYTES + (40 << 20) + VOLUME_BYTES
    assert everything <= limit


def test_many_incidents_stay_inside_their_budget_and_the_newest_is_whole(tmp_path: Path) -> None:
    volume = filled_volume(tmp_path)
    root = tmp_path / "durable"
    root.mkdir()
    (root / "mine.txt").write_bytes(b"x" * 3_000_000)
    files = IncidentFiles(root, max_incidents=20, max_bytes=2_000_000)
    limits = EvidenceLimits(bytes=600_000, log_bytes=1000)
    names: list[str] = []
    for number in range(30):
        id = incident_id(1_760_000_000 + number, 1, Cause.HANG)
        wrapper = Wrapper(volume, ranks=8)
        wrapper.flight = b"\x80\x05]\x94" + os.urandom(120_000) + b"."
        bundle = collect(str(volume), files.folder(id), id, ask=wrapper, limits=limits)
        files.prune(keep=id)
        names.append(id)
        assert sum(file.bytes for file in bundle.files) <= limits.bytes + 20_000
        assert {f"rank-{rank}.stacks.txt" for rank in range(8)} <= {
            file.name for file in bundle.files
        }
        assert any(each.why == "it is too large" for each in bundle.missing)
    ours = sum(folder_bytes(str(root / name)) for name in files.names())
    assert ours <= 2_000_000
    assert files.names() == names[-len(files.names()) :]
    assert len(files.names()) >= 2
    assert (root / "mine.txt").stat().st_size == 3_000_000


def test_what_torch_dumps_by_itself_is_bounded_and_the_newest_stay(tmp_path: Path) -> None:
    folder = tmp_path / "recorder"
    folder.mkdir()
    for rank in range(8):
        with (folder / f"rank-{rank}").open("wb") as file:
            file.truncate(20 << 20)
        os.utime(folder / f"rank-{rank}", (time.time(), 1_000_000 + rank))
    DumpQuota(str(tmp_path)).trim_recorder()
    assert sorted(os.listdir(folder)) == ["rank-5", "rank-6", "rank-7"]
