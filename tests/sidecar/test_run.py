# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The real sidecar beside a training: what happens to the run is seen, told and kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from mwatch.engine.engine import Engine
from mwatch.model.event import Iteration
from mwatch.model.observation import AttemptStart
from mwatch.model.snapshot.snapshot_wire import from_wire
from mwatch.sidecar.event_buffer import NAME as CURSOR
from support.runs.live_volume import LiveVolume
from support.runs.sidecar_runs import Sidecar, sidecar, until
from support.runs.wrapper_runs import LIMIT_SECONDS, child_pid, running

TRAINER = Path(__file__).resolve().parents[1] / "support" / "runs" / "printing_trainer.py"
STOPPED = 'mwatch_finding{finding="rank_silent",severity="critical"}'


def looks(one: Sidecar) -> float:
    return one.metric("mwatch_last_look_timestamp_seconds") or 0.0


def looked_again(one: Sidecar) -> None:
    """Twice: one look may have begun before whatever was done."""
    for before in (looks(one), looks(one) + 0.5):
        until(partial(has_looked_since, one, before))


def has_looked_since(one: Sidecar, before: float) -> bool:
    return looks(one) > before


def iterations(body: dict[str, Any]) -> list[int]:
    """Of a snapshot, which follows the metrics."""
    return [each["iteration"] for each in body["events"] if each.get("event") == "iteration"]


def has_told(one: Sidecar, cursor: str, iteration: int) -> bool:
    return iteration in iterations(one.snapshot(cursor))


def test_a_wrapper_and_its_trainer_are_watched_to_the_end(tmp_path: Path) -> None:
    volume = tmp_path / "mwatch"
    volume.mkdir()
    with sidecar(volume, "--json") as one:
        assert one.get("/healthz") == b"ok\n"
        words = [sys.executable, str(TRAINER), "--train-iters", "40", "--exit-code", "3"]
        with running(volume, *words) as wrapper:
            wrapper.wait(LIMIT_SECONDS)
        assert until(lambda: one.metric("mwatch_iteration") == 40)
        assert until(lambda: one.metric('mwatch_phase{phase="ended"}') == 1)
        assert until(lambda: "exit" in one.snapshot()["wrapper"]), "it follows the metrics"
        body = one.snapshot()
        assert body["wrapper"]["exit"]["code"] == 3
        assert [each["event"] for each in one.lines].count("attempt") == 1


def test_a_rank_that_is_stopped_is_a_finding_within_seconds(tmp_path: Path) -> None:
    """Two ranks write records; one of them is stopped, as by kill -STOP."""
    volume = LiveVolume(tmp_path / "mwatch")
    volume.start()
    with sidecar(volume.path) as one:
        for step in range(1, 6):
            volume.say(step)
            volume.second(step)
            looked_again(one)
        began = time.monotonic()

        def is_found() -> bool:
            volume.second(6, silent=(1,))
            return one.metric(STOPPED) == 1

        until(is_found)
        assert time.monotonic() - began < 50, "it is told after 8 s, on a machine that is not busy"
        assert until(lambda: "rank 1" in one.said)
        assert until(lambda: list(volume.path.glob("incidents/*/manifest.json")))
        assert one.process.poll() is None


def test_a_new_attempt_is_followed(tmp_path: Path) -> None:
    volume = LiveVolume(tmp_path / "mwatch")
    volume.start(1)
    volume.say(1, 2, 3)
    with sidecar(volume.path) as one:
        assert until(lambda: one.metric("mwatch_iteration") == 3)
        os.rename(volume.path / "trainer.log", volume.path / "trainer.log.1")
        volume.start(2, resume_from=2)
        volume.say(3, 4)
        assert until(lambda: one.metric("mwatch_attempt") == 2)
        assert until(lambda: one.metric("mwatch_iteration") == 4)
        assert until(lambda: one.snapshot()["wrapper"]["attempt"] == 2)


def test_a_volume_that_is_emptied_and_comes_back_is_survived(tmp_path: Path) -> None:
    volume = LiveVolume(tmp_path / "mwatch")
    volume.start(1)
    volume.say(1, 2)
    with sidecar(volume.path) as one:
        assert until(lambda: one.metric("mwatch_iteration") == 2)
        # At once: file by file, the sidecar could put one of its own in between.
        shutil.rmtree(volume.path.rename(tmp_path / "removed"))
        assert until(lambda: one.metric('mwatch_source_up{source="wrapper"}') == 0)
        again = LiveVolume(tmp_path / "mwatch")
        again.start(2)
        again.say(3)
        assert until(lambda: one.metric("mwatch_iteration") == 3)
        assert one.metric("mwatch_own_errors_total") == 0


def test_who_reads_by_cursor_gets_each_event_once_and_learns_what_the_pod_knows(
    tmp_path: Path,
) -> None:
    volume = LiveVolume(tmp_path / "mwatch")
    volume.start()
    volume.say(1, 2)
    engine = Engine("r", {})
    seen: list[int] = []
    with sidecar(volume.path) as one:
        assert until(lambda: iterations(one.snapshot()) == [1, 2])
        cursor = ""
        for step in (3, 4, 5):
            found = from_wire(one.snapshot(cursor))
            cursor = found.cursor
            for observed in found.observed(time.time()):
                engine.observe(observed)
            lines = [each.what for each in found.events if isinstance(each.what, Iteration)]
            seen += [each.iteration for each in lines]
            assert not found.gap
            volume.say(step)
            assert until(partial(has_told, one, cursor, step))
        assert seen == [1, 2, 3, 4]
        assert engine.job.attempt.iteration == 4
        assert "wrapper" not in one.snapshot(cursor), "as the reader knows it"
        starts = [each for each in found.events if isinstance(each.what, AttemptStart)]
        assert not starts, "told once"


@pytest.mark.parametrize("has_lost_its_place", [False, True])
def test_a_sidecar_that_was_killed_reports_no_line_twice(
    tmp_path: Path, has_lost_its_place: bool
) -> None:
    """Without the file of its place it goes on where the reader's own cursor points."""
    volume = LiveVolume(tmp_path / "mwatch")
    volume.start()
    volume.say(1, 2, 3)
    with sidecar(volume.path) as one:
        assert until(lambda: one.metric("mwatch_iteration") == 3)
        looked_again(one)
        cursor = one.snapshot()["cursor"]
        one.ends(signal.SIGKILL)
    if has_lost_its_place:
        (volume.path / CURSOR).unlink()
    volume.say(4)
    with sidecar(volume.path) as other:
        assert until(lambda: other.metric("mwatch_iteration") == 4)
        assert until(partial(has_told, other, cursor, 4))
        body = other.snapshot(cursor)
        assert iterations(body) == [4]
        assert body["gap"] is has_lost_its_place, "events that are not log lines may be missing"
        assert other.metric("mwatch_attempt") == 1


def test_nothing_is_seen_for_too_long_is_blind(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("[hang]\nblind_after_seconds = 0.5\n")
    with sidecar(tmp_path / "mwatch", "--policy", str(policy)) as one:
        assert until(lambda: one.metric("mwatch_blind") == 1)
        assert until(lambda: "no data on the job" in one.said)
        assert one.get("/healthz") == b"ok\n", "the sidecar itself is fine"


def test_secrets_leave_by_no_page(tmp_path: Path) -> None:
    secret = "hf_" + "Q" * 34
    volume = LiveVolume(tmp_path / "mwatch")
    volume.start(argv=["python", "x.py", "--hf-token", secret], host=secret)
    volume.say(1)
    volume.print(f"RuntimeError: cannot log in with token {secret}")
    with sidecar(volume.path) as one:
        assert until(lambda: one.metric("mwatch_iteration") == 1)
        looked_again(one)
        for page in ("/metrics", "/v1/snapshot", "/v1/evidence"):
            assert secret.encode() not in one.get(page)
        assert secret not in one.said


def test_the_wrapper_is_asked_for_evidence_of_its_trainer(tmp_path: Path) -> None:
    """A real trainer that is stopped: nobody else can see its processes."""
    volume = tmp_path / "mwatch"
    volume.mkdir()
    token = tmp_path / "token"
    token.write_text("t" * 32)
    words = [sys.executable, str(TRAINER), "--train-iters", "4000", "--step-seconds", "0.05"]
    with sidecar(volume, "--token-file", str(token)) as one, running(volume, *words):
        child_pid(volume)
        assert until(lambda: (one.metric("mwatch_iteration") or 0) > 3)
        ask = Request(
            f"http://127.0.0.1:{one.port}/v1/evidence",
            json.dumps({"reason": "a test", "wait_seconds": 25}).encode(),
            {"Authorization": f"Bearer {'t' * 32}"},
        )
        with urlopen(ask, timeout=60) as answer:
            body = json.loads(answer.read())
        names = [each["name"] for each in body["manifest"]["files"]]
        assert "snapshot.json" in names
        assert "trainer.log" in names
