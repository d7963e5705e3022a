# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence and restarts over HTTP: a real server, a real wrapper around a small command, and its
real control socket."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mwatch_trainer.evidence.incidents import MANIFEST
from support.runs.control_runs import Client, controlled, token_file
from support.runs.wrapper_runs import LIMIT_SECONDS, attempt, child_pid, is_alive, running
from support.waiting import until

FOREVER = ["sh", "-c", "echo ready; while :; do sleep 0.1; done"]
ASKED = {"reason": "a look", "who": "a test"}


def ready(directory: Path, times: int = 1) -> None:
    path = directory / "trainer.log"
    until(lambda: path.exists() and path.read_bytes().count(b"ready") >= times)


@contextmanager
def acting(directory: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], Client]]:
    with (
        running(directory, *FOREVER, options=["--act", *options]) as wrapper,
        controlled(directory, token_file(directory)) as client,
    ):
        yield wrapper, client


def test_without_the_token_nothing_is_done_and_the_list_is_open(tmp_path: Path) -> None:
    with controlled(tmp_path, token_file(tmp_path)) as client:
        for other, status in ((client._replace(token=None), 401), (Client(client.port, "x"), 401)):
            assert other.post("/v1/evidence", reason="x").status == status
            assert other.post("/v1/restart", attempt=1, **ASKED).status == status
            assert other.get("/v1/evidence/20260105T121314Z-a1-hang.tgz").status == status
            assert other.get("/v1/evidence").json == {"version": 1, "bundles": []}
        assert not (tmp_path / "incidents").exists()


def test_without_a_configured_token_it_is_closed(tmp_path: Path) -> None:
    with controlled(tmp_path, None) as client:
        answer = client.post("/v1/restart", attempt=1, **ASKED)
        assert answer.status == 403
        assert "no token is configured" in answer.json["error"]


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/evidence", {}, "reason must be a non-empty text"),
    ("/v1/evidence", {"reason": "x", "wait_seconds": 26}, "wait_seconds must be"),
    ("/v1/evidence", {"reason": "x", "wait_seconds": "5"}, "wait_seconds must be"),
    ("/v1/restart", {"attempt": "1", **ASKED}, "attempt must be"),
    ("/v1/restart", {"attempt": True, **ASKED}, "attempt must be"),
    ("/v1/restart", {"attempt": 1, "resume_from": -1, **ASKED}, "resume_from must be"),
    ("/v1/restart", {"attempt": 1, "reason": "x"}, "who must be"),
]


def test_a_request_that_is_wrong_learns_how(tmp_path: Path) -> None:
    with controlled(tmp_path, token_file(tmp_path)) as client:
        for path, body, why in BAD:
            answer = client.post(path, **body)
            assert (answer.status, why in answer.json["error"]) == (400, True)
        assert client._ask("POST", "/v1/restart", b"[" * 60_000).status == 400
        assert client._ask("POST", "/v1/restart", b"[]").status == 400
        for name in ("20260105T121314Z-a1-hang", "token", "x"):
            assert client.get(f"/v1/evidence/{name}.tgz").status == 404


def test_without_a_wrapper_evidence_says_so_and_a_restart_is_unavailable(tmp_path: Path) -> None:
    with controlled(tmp_path, token_file(tmp_path)) as client:
        answer = client.post("/v1/evidence", reason="x", wait_seconds=25)
        assert answer.status == 200
        assert {"dump", "attempt.json"} <= {
            each["what"] for each in answer.json["manifest"]["missing"]
        }
        restart = client.post("/v1/restart", attempt=1, **ASKED)
        assert (restart.status, restart.json["outcome"]) == (503, "unreachable")


def test_a_folder_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    (tmp_path / "incidents").write_text("a file, where the folder should be")
    with controlled(tmp_path, token_file(tmp_path)) as client:
        answer = client.post("/v1/evidence", reason="x")
        assert (answer.status, "Not a directory" in answer.json["error"]) == (503, True)


def test_a_bundle_is_asked_for_listed_and_fetched(tmp_path: Path) -> None:
    """The dump of a command without ranks is quick."""
    with running(tmp_path, *FOREVER), controlled(tmp_path, token_file(tmp_path)) as client:
        ready(tmp_path)
        asked = client.post("/v1/evidence", reason="a look")
        assert asked.status == 202
        id = asked.json["id"]
        until(lambda: client.get(f"/v1/evidence/{id}.tgz").status == 200)

        def another() -> dict[str, Any] | None:
            """A request in the moment after the first is written still gets that one."""
            found = client.post("/v1/evidence", reason="once more", wait_seconds=25).json
            return found if found["id"] != id and "manifest" in found else None

        whole = until(another)
        assert whole["manifest"]["reason"] == "once more"
        assert whole["manifest"]["kept"]["folder"] is None  # it only observes
        names = {each["name"] for each in whole["manifest"]["files"]}
        assert {"attempt.json", "trainer.log", "environment.json", "processes.json"} <= names
        got = client.get(f"/v1/evidence/{whole['id']}.tgz")
        assert got.headers["Content-Type"] == "application/gzip"
        with tarfile.open(fileobj=io.BytesIO(got.body), mode="r:gz") as archive:
            members = {each.name: each for each in archive.getmembers()}
        assert set(members) == {f"{whole['id']}/{name}" for name in (*names, MANIFEST)}
        assert {each.mode for each in members.values()} == {0o600}


def test_who_asks_while_a_bundle_is_made_gets_that_one(tmp_path: Path) -> None:
    """The wrapper is stopped meanwhile: so none is done before the last has asked."""
    with (
        running(tmp_path, *FOREVER) as wrapper,
        controlled(tmp_path, token_file(tmp_path)) as client,
    ):
        ready(tmp_path)
        wrapper.send_signal(signal.SIGSTOP)
        together = threading.Barrier(4)

        def ask(_: int) -> str:
            together.wait(LIMIT_SECONDS)
            return str(client.post("/v1/evidence", reason="all at once").json["id"])

        try:
            with ThreadPoolExecutor(4) as pool:
                ids = set(pool.map(ask, range(4)))
        finally:
            wrapper.send_signal(signal.SIGCONT)
        assert len(ids) == 1


def test_a_restart_ends_the_named_attempt_once_after_evidence(tmp_path: Path) -> None:
    with acting(tmp_path) as (wrapper, client):
        ready(tmp_path)
        first = child_pid(tmp_path)
        answer = client.post("/v1/restart", attempt=1, **ASKED)
        assert (answer.status, answer.json["outcome"]) == (202, "accepted")
        ready(tmp_path, 2)
        assert not is_alive(first)
        until(lambda: attempt(tmp_path)["attempt"] == 2)  # a thread writes it
        second = child_pid(tmp_path)
        again = client.post("/v1/restart", attempt=1, **ASKED)
        assert (again.status, again.json["outcome"]) == (202, "already")
        wrong = client.post("/v1/restart", attempt=7, **ASKED)
        assert (wrong.status, wrong.json["attempt"]) == (409, 2)
        assert child_pid(tmp_path) == second
        assert wrapper.poll() is None
        manifest = tmp_path / "incidents" / answer.json["evidence"] / MANIFEST
        told = json.loads(manifest.read_text())["reason"]
        assert told == "before a restart in place by a test: a look"


def test_many_who_ask_at_once_restart_it_once(tmp_path: Path) -> None:
    with acting(tmp_path) as (_, client):
        ready(tmp_path)

        def ask(_: int) -> str:
            body = {"attempt": 1, "evidence": False, **ASKED}
            return str(client.post("/v1/restart", **body).json["outcome"])

        with ThreadPoolExecutor(4) as pool:
            outcomes = sorted(pool.map(ask, range(4)))
        assert outcomes == ["accepted", "already", "already", "already"]
        ready(tmp_path, 2)
        until(lambda: attempt(tmp_path)["attempt"] == 2)
        assert (tmp_path / "trainer.log").read_bytes().count(b"ready") == 2


def test_the_chosen_checkpoint_is_asked_to_the_next_attempt(tmp_path: Path) -> None:
    with acting(tmp_path) as (_, client):
        ready(tmp_path)
        body = {"attempt": 1, "resume_from": 400, "evidence": False, **ASKED}
        assert client.post("/v1/restart", **body).status == 202
        ready(tmp_path, 2)
        decision = json.loads((tmp_path / "decision.json").read_text())
        assert (decision["attempt"], decision["resume_from"]) == (2, 400)


def test_observing_refuses_a_restart_and_saves_nothing_for_it(tmp_path: Path) -> None:
    with running(tmp_path, *FOREVER), controlled(tmp_path, token_file(tmp_path)) as client:
        ready(tmp_path)
        answer = client.post("/v1/restart", attempt=1, **ASKED)
        assert (answer.status, answer.json["outcome"]) == (403, "observing")
        assert not (tmp_path / "incidents").exists()


def test_in_act_a_bundle_is_brought_beside_the_checkpoints(tmp_path: Path) -> None:
    volume, save = tmp_path / "volume", tmp_path / "save"
    volume.mkdir()
    save.mkdir()
    with acting(volume, "--checkpoints", str(save)) as (_, client):
        ready(volume)
        body = client.post("/v1/evidence", reason="a look", wait_seconds=25).json
    kept = save / ".mwatch" / "incidents" / body["id"]
    assert body["manifest"]["kept"] == {"folder": str(kept), "why": ""}
    here = volume / "incidents" / body["id"]
    for name in [each["name"] for each in body["manifest"]["files"]]:
        assert (kept / name).read_bytes() == (here / name).read_bytes()
    assert (kept / MANIFEST).exists()
