# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Other ways out of the real `mwatch run`: TensorBoard, OTLP, notifications. Starts processes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from support.fakes.slack_server import SECRET, slack_server
from support.runs import live_runs
from support.waiting import until

PATIENT = {
    "mwatch.watch.metrics:_CLOSE_SECONDS": 60.0,
    "mwatch.watch.metrics:_NOTIFY_CLOSE_SECONDS": 60.0,
}
"""At its end a run gives them a moment; here that is long enough on a busy machine."""


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """Takes whatever is sent to it."""
    got: list[bytes] = []

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Taker)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_crash_is_noted_for_tensorboard(tmp_path: Path) -> None:
    notes = tmp_path / "tensorboard"
    notes.mkdir()
    trainer = live_runs.trainer("--train-iters", "10", "--then", "raise", "--at", "5")
    line = live_runs.command(tmp_path, "--tensorboard-notes", str(notes), then=trainer)
    done = live_runs.run(line, tmp_path, patches=PATIENT)
    assert done.code == 1
    (record,) = done.records
    written = b"".join(each.read_bytes() for each in notes.rglob("*tfevents*"))
    assert record["cause"].encode() in written


def test_a_collector_gets_the_last_numbers(tmp_path: Path) -> None:
    trainer = live_runs.trainer("--train-iters", "10")
    with collector() as (endpoint, got):
        line = live_runs.command(tmp_path, "--otlp-endpoint", endpoint, then=trainer)
        assert live_runs.run(line, tmp_path, patches=PATIENT).code == 0
    told = b"".join(got)
    assert b"megatron.training" in told
    assert b"mwatch" in told


def test_an_endpoint_that_is_none_is_refused_before_the_command_starts(tmp_path: Path) -> None:
    trainer = live_runs.trainer("--train-iters", "10")
    line = live_runs.command(tmp_path, "--otlp-endpoint", "nowhere", then=trainer)
    done = live_runs.run(line, tmp_path)
    assert done.code == 2
    assert b"--otlp-endpoint" in done.err
    assert b"iteration" not in done.out


def test_a_restart_is_announced_in_slacks_form_and_the_url_stays_secret(tmp_path: Path) -> None:
    state, seen = tmp_path / "once", tmp_path / "seen"
    flags = ["--train-iters", "40", "--then", "kill", "--state", str(state)]
    trainer = live_runs.trainer(*flags, "--save", "ckpt", "--load", "ckpt")
    then = ["bash", "-c", f'env >> {seen}; exec "$@"', "trainer", *trainer]
    with slack_server() as slack:
        line = live_runs.command(tmp_path, "--act", then=then)
        env = live_runs.environment(MWATCH_NOTIFY=slack.url)
        done = live_runs.run(line, tmp_path, env=env, patches=PATIENT)
    assert done.code == 0
    text = "\n".join(each.text for each in slack.all)
    stages = ["r: killed (attempt 1)", "r: restart from checkpoint 8 after killed (attempt 1)"]
    stages.append("r: recovered from killed (attempt 1)")
    assert [text.count(each) for each in stages] == [1, 1, 1]
    assert [text.index(each) for each in stages] == sorted(text.index(each) for each in stages)
    assert "SIGKILL" in text and f"see: mwatch ui {done.folder} on " in text
    assert SECRET not in seen.read_text("utf-8"), "the trainer does not inherit it"
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert not [each for each in files if SECRET.encode() in each.read_bytes()]
    assert SECRET.encode() not in done.err + done.out


def test_a_service_that_never_answers_does_not_delay_the_run_or_its_end(tmp_path: Path) -> None:
    trainer = live_runs.trainer("--train-iters", "9999", "--then", "kill", "--state", "once")
    with slack_server(answers=False) as dead:
        options = ["--act", "--grace", "1", "--notify", dead.url_without_limit]
        line = live_runs.command(tmp_path, *options, then=trainer)
        with live_runs.started(line, tmp_path) as running:
            dead.wait(1)
            until(lambda: running.attempt.get("attempt") == 2)
            began = time.monotonic()
            running.process.send_signal(signal.SIGINT)
            done = running.ends()
            took = time.monotonic() - began
    assert done.code == 130 and took < 20
    assert SECRET.encode() not in done.err


def test_a_bad_url_is_refused_before_the_command_starts(tmp_path: Path) -> None:
    trainer = live_runs.trainer("--train-iters", "10")
    line = live_runs.command(tmp_path, "--notify", f"nosuch://{SECRET}", then=trainer)
    done = live_runs.run(line, tmp_path)
    assert done.code == 2 and b"iteration" not in done.out
    assert b"--notify: URL 1" in done.err and SECRET.encode() not in done.err
