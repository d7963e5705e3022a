# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Law 12: nothing secret leaves the process. Keys of the usual kinds are planted in the arguments,
environment, output, printed arguments and traceback of a real command under the real wrapper and
the real engine, and are found in nothing that mwatch writes. What the command prints itself goes
through as it is.

Real processes: the tests take some seconds each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from mwatch_trainer.control.client import ask
from support.free_ports import free_port
from support.repository.secrets_planted import (
    ALL,
    ENVIRONMENT,
    OWN_PATTERN,
    USUAL,
    collector,
    found_in,
    leaks,
    modes,
    trainer,
    unpacked,
)
from support.runs import control_runs, live_runs, sidecar_runs, wrapper_runs
from support.runs.commands import mwatch
from support.runs.http_runs import get
from support.waiting import until

EVERYTHING = {**ENVIRONMENT, "MWATCH_SCRUB": OWN_PATTERN}


def words(folder: Path) -> list[str]:
    return [sys.executable, *trainer(folder)[1:]]


def bare(folder: Path) -> subprocess.CompletedProcess[bytes]:
    env = live_runs.environment(**ENVIRONMENT)
    return subprocess.run(words(folder), capture_output=True, env=env, check=False, timeout=120)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> live_runs.Finished:
    folder = tmp_path_factory.mktemp("planted")
    line = live_runs.command(folder, then=words(folder))
    return live_runs.run(line, folder, env=live_runs.environment(**EVERYTHING))


def test_the_planted_ones_would_be_seen(tmp_path: Path) -> None:
    done = bare(tmp_path)
    inputs = "\0".join([*words(tmp_path), *EVERYTHING.values()]).encode()
    assert found_in(done.stdout + done.stderr + inputs) == ALL
    (tmp_path / "spilt").write_bytes(done.stdout)
    assert set(leaks(tmp_path)[str(tmp_path / "spilt")]) >= set(USUAL)


def test_mwatch_run_keeps_them_out_of_all_that_it_writes(finished: live_runs.Finished) -> None:
    assert finished.records, "there was no incident to write about"
    assert (finished.folder / "story.json").exists()
    assert b"[scrubbed" in (finished.folder / "volume" / "trainer.log").read_bytes()
    assert leaks(finished.folder) == {}
    reason = str(finished.attempt["exit"]["reason"])
    assert "PermissionError" in reason
    assert "[scrubbed" in reason


def test_mwatch_run_says_none_of_them(finished: live_runs.Finished) -> None:
    own = [line for line in finished.err.splitlines() if line.startswith((b'{"event"', b"mwatch"))]
    assert len(own) >= 3
    assert found_in(b"\n".join(own)) == []


def test_what_the_command_prints_goes_through_as_it_is(
    finished: live_runs.Finished, tmp_path: Path
) -> None:
    done = bare(tmp_path)
    assert finished.out == done.stdout
    own = (b'{"event"', b"mwatch-run: ")
    through = [line for line in finished.err.splitlines() if not line.startswith(own)]
    places = str(tmp_path).encode(), str(finished.folder.parents[1]).encode()
    expected = [line.replace(*places) for line in done.stderr.splitlines()]
    assert through == expected


def test_evidence_is_for_its_owner_alone(finished: live_runs.Finished) -> None:
    for folder in (finished.folder / "incidents").iterdir():
        assert modes(folder) == {0o600, 0o700}


def test_the_page_of_the_run_has_none_of_them(finished: live_runs.Finished, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    env = live_runs.environment(**EVERYTHING)
    done = mwatch("report", finished.folder, "--out", page, environment=env)
    assert page.stat().st_size > 1000
    assert found_in(page.read_bytes() + (done.stdout + done.stderr).encode()) == []


COMMANDS = [
    ["replay"], ["replay", "--json"], ["diagnose"], ["diagnose", "--json"], ["parse"],
    ["report", "--out", "out/page.html"], ["report", "--json", "--out", "out/page.html"],
    ["replay", "--out", "out/report.md"], ["replay", "--out", "out/report.json"],
]  # fmt: skip


@pytest.mark.parametrize("words_of", COMMANDS, ids=" ".join)
def test_a_log_recorded_without_mwatch_is_reported_without_them(
    tmp_path: Path, words_of: list[str]
) -> None:
    done = bare(tmp_path)
    (tmp_path / "trainer.log").write_bytes(done.stdout + done.stderr)
    env = live_runs.environment(**EVERYTHING)
    out = tmp_path / "out"
    out.mkdir()
    told = mwatch(*words_of, "trainer.log", cwd=tmp_path, environment=env)
    files = {each.name: each.read_bytes() for each in out.iterdir()}
    assert list(files) == [Path(each).name for each in words_of[-1:] if "/" in each]
    for written in (told.stdout.encode(), *files.values()):
        assert b"Error" in written or b"page.html" in written
        assert found_in(written) == []
    assert found_in(told.stderr.encode()) == []
    documents = [data for name, data in files.items() if name.endswith(".json")]
    if "--json" in words_of:
        documents.append(told.stdout.encode())
    for document in documents:
        assert isinstance(json.loads(document), dict)


@pytest.mark.parametrize("name", ["report.md", "report.json", "page.html"])
def test_a_report_of_the_run_has_none_of_them(
    finished: live_runs.Finished, tmp_path: Path, name: str
) -> None:
    """Nor where the log lies beside its story."""
    env = live_runs.environment(**EVERYTHING)
    word = "report" if name.endswith("html") else "replay"
    for source in (finished.folder, finished.folder / "volume" / "trainer.log"):
        done = mwatch(word, source, "--out", tmp_path / f"{source.name}-{name}", environment=env)
        assert (tmp_path / f"{source.name}-{name}").stat().st_size > 500, done.stderr
    assert leaks(tmp_path) == {}


@contextmanager
def planted(folder: Path) -> Iterator[tuple[Path, Path]]:
    """The volume of a wrapper whose trainer has spilt everything, and the file that keeps that one
    alive."""
    volume, alive = folder / "volume", folder / "alive"
    alive.touch()
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "SPILL_AND_WAIT": str(alive)}
    given = wrapper_runs.environ(**EVERYTHING, **rank)
    with wrapper_runs.running(volume, *words(folder), given=given):
        log = volume / "trainer.log"
        until(lambda: log.exists() and b"spilt" in log.read_bytes())
        yield volume, alive


def test_the_sidecar_keeps_them_out_of_all_that_it_serves_sends_and_writes(tmp_path: Path) -> None:
    """Metrics, snapshot, evidence and its archive, TensorBoard notes, OTLP, its own lines."""
    token, notes = control_runs.token_file(tmp_path), tmp_path / "notes"
    notes.mkdir()
    with planted(tmp_path) as (volume, alive), collector() as (address, came):
        options = ["--token-file", str(token), "--tensorboard-notes", str(notes),
                   "--otlp-endpoint", address]  # fmt: skip
        env = sidecar_runs.environment(MWATCH_SCRUB=OWN_PATTERN)
        with sidecar_runs.sidecar(volume, *options, env=env) as sidecar:
            client = control_runs.Client(sidecar.port)
            body = {"reason": f"token={ENVIRONMENT['GITHUB_TOKEN']}", "wait_seconds": 25}
            made = client.post("/v1/evidence", **body)
            assert made.status == 200, made.body
            alive.unlink()
            served = b""
            sidecar_runs.until(lambda: b"PermissionError" in sidecar.get("/v1/snapshot"))
            for path in ("/", "/metrics", "/v1/snapshot", "/v1/evidence"):
                served += sidecar_runs.until(partial(sidecar.get, path))
            archive = client.get(f"/v1/evidence/{made.json['id']}.tgz").body
            sidecar_runs.until(lambda: list((volume / "incidents").glob("*/incident.json")))
            sidecar_runs.until(lambda: any(each.is_file() for each in notes.rglob("*")))
            sidecar_runs.until(lambda: came)  # at its end it sends for half a second only
            sidecar.ends()
            said = sidecar.said.encode()
    names = {name.rpartition("/")[2] for name, _ in unpacked(archive)}
    assert {"environment.json", "rank-0.stacks.txt", "trainer.log", "attempt.json"} <= names
    for name, data in unpacked(archive):
        assert found_in(data) == [], name
    assert found_in(served + made.body + said + b"".join(came)) == []
    assert came
    assert leaks(volume, notes) == {}
    for folder in (volume / "incidents").iterdir():
        assert modes(folder) == {0o600, 0o700}


def test_the_wrapper_shows_none_of_them_over_its_socket(tmp_path: Path) -> None:
    with planted(tmp_path) as (volume, alive):
        for request in ({"op": "status"}, {"op": "dump", "id": "d", "seconds": 5}):
            answer = ask(str(volume), request, 20)
            assert answer["ok"] is True
            assert found_in(str(answer).encode()) == []
        alive.unlink()
        until(lambda: wrapper_runs.attempt(volume)["exit"])
        assert "PermissionError" in wrapper_runs.attempt(volume)["exit"]["reason"]
        assert leaks(volume) == {}


def test_the_metrics_of_a_live_run_have_none_of_them(tmp_path: Path) -> None:
    line = live_runs.command(tmp_path, then=words(tmp_path))
    line[line.index("--port") + 1] = str(free_port())
    env = {**EVERYTHING, "SPILL_AND_WAIT": str(tmp_path)}
    with live_runs.started(line, tmp_path, given=live_runs.environment(**env)) as run:
        log = run.folder / "volume" / "trainer.log"
        until(lambda: log.exists() and b"spilt" in log.read_bytes())
        said = until(lambda: b"/metrics" in run.said.read_bytes() and run.said)
        port = int(said.read_bytes().partition(b"127.0.0.1:")[2].partition(b"/")[0])
        until(lambda: b"mwatch_iteration{" in get(port, "/metrics")[1])
        for path in ("/metrics", "/"):
            assert found_in(get(port, path)[1]) == []
