# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The real sidecar process: how it starts, is told what to do, and ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.hostile_requests import sweep
from support.runs import live_volume
from support.runs.sidecar_runs import (
    ENDS_SECONDS,
    PATIENCE,
    command,
    environment,
    sidecar,
    until,
)


def refused(*options: str, **env: str) -> str:
    """The one line that a sidecar says which does not start."""
    done = subprocess.run(
        command(*options), env=environment(**env), capture_output=True, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


def test_it_serves_what_it_sees_and_ends_when_asked(tmp_path: Path) -> None:
    volume = live_volume.LiveVolume(tmp_path / "mwatch")
    volume.start()
    volume.say(1, 2, 3)
    with sidecar(volume.path) as one:
        expected = {
            'mwatch_source_up{source="gpus"}': 1, "mwatch_iteration": 7,
            'mwatch_source_up{source="nvml"}': 0, 'mwatch_rank_threads{rank="1"}': 30,
            'mwatch_gpu_power_watts{UUID="GPU-0",gpu="0",rank="0"}': 600,
        }  # fmt: skip

        def sees_all() -> bool:
            volume.second(7)
            return expected.items() <= one.metrics().items()

        assert until(sees_all)
        assert one.metric('mwatch_loss{loss="lm loss"}') is not None
        assert one.get("/healthz") == b"ok\n"
        assert one.snapshot()["version"] == 1
        assert until((volume.path / "sidecar.json").exists)
        assert json.loads((volume.path / "sidecar.json").read_text())["port"] == one.port
        assert one.ends(signal.SIGTERM) < ENDS_SECONDS
        assert one.process.returncode == 0
        assert not (volume.path / "sidecar.json").exists(), "nobody listens there any more"


_WITHOUT_OPTIONS = """
import os, sys
from mwatch.cli.main import main
os.execve = lambda _, words, __: (print(words[2], "typer" in sys.modules, flush=True), os._exit(0))
sys.argv[1:] = ["sidecar"]
main()
"""


@pytest.mark.parametrize("until_final", ["", "true"])
def test_without_options_as_in_a_pod_it_starts_without_a_parser(until_final: str) -> None:
    words = [sys.executable, "-c", _WITHOUT_OPTIONS]
    env = environment(MWATCH_PORT="0", MWATCH_UNTIL_FINAL=until_final)
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "mwatch.cli.sidecar_process False\n", done.stderr


@pytest.mark.parametrize("until_final", ["", "true"])
def test_without_options_its_variables_are_checked(until_final: str) -> None:
    said = refused(MWATCH_PORT="no-port", MWATCH_UNTIL_FINAL=until_final)
    assert said.startswith("mwatch: invalid value for $MWATCH_PORT: expected a port"), said


def test_without_options_it_takes_its_settings_from_variables(tmp_path: Path) -> None:
    variables = {"DIR": str(tmp_path), "RUN": "gpt", "PORT": "0", "HOST": "127.0.0.1"}
    env = environment(**{f"MWATCH_{name}": value for name, value in variables.items()})
    with subprocess.Popen(command(), env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = next(line for line in process.stdout if "/metrics" in line)
            assert "run gpt," in said and f"watching {tmp_path}," in said
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


def test_an_interrupt_ends_it_as_well(tmp_path: Path) -> None:
    (tmp_path / "mwatch").mkdir()
    with sidecar(tmp_path / "mwatch") as one:
        assert one.port
        assert one.ends(signal.SIGINT) < ENDS_SECONDS
        assert one.process.returncode == 0
        assert one.said.rstrip().endswith(" ended")


def test_it_may_end_by_itself_after_the_last_attempt_of_its_pod(tmp_path: Path) -> None:
    """A pod of plain containers ends only when all of them have. Takes a while: those who poll
    must see the end too."""
    volume = live_volume.LiveVolume(tmp_path / "mwatch")
    volume.start()
    ended = {"code": 0, "signal": None, "reason": "done", "returned": 0, "at": 1.0, "asked": False}
    with sidecar(volume.path, env=environment(MWATCH_UNTIL_FINAL="true")) as one:
        assert until(lambda: one.metric('mwatch_source_up{source="wrapper"}') == 1)
        volume.start(exit=ended, final=True)
        assert until(lambda: "the last attempt of this pod has ended" in one.said)
        assert one.snapshot()["wrapper"]["is_final"] is True
        assert one.process.wait(PATIENCE) == 0


def test_beside_plain_containers_it_is_started_again_and_never_fails_the_pod(
    tmp_path: Path,
) -> None:
    volume = live_volume.LiveVolume(tmp_path / "mwatch")
    volume.start()
    ended = {"code": 0, "signal": None, "reason": "done", "returned": 0, "at": 1.0, "asked": False}
    with sidecar(volume.path, env=environment(MWATCH_UNTIL_FINAL="true")) as one:
        assert until(lambda: one.metric('mwatch_source_up{source="wrapper"}') == 1)
        (first,) = children(one.process.pid)
        os.kill(first, signal.SIGKILL)
        assert until(lambda: "the sidecar failed (signal 9): starts again in 1 s" in one.said)
        assert until(lambda: children(one.process.pid) not in ([], [first]))
        volume.start(exit=ended, final=True)
        assert one.process.wait(PATIENCE) == 0


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


FAILS = """
import os, sys
from mwatch.cli import sidecar_process
sys.exit(3 if sidecar_process._is_child_to_watch([float(each) for each in sys.argv[1:]]) else 0)
"""


def test_after_too_many_crashes_it_ends_without_an_error() -> None:
    words = [sys.executable, "-c", FAILS, "0", "0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert lines[:2] == 2 * ["mwatch: the sidecar failed (exit code 3): starts again in 0 s"]
    assert lines[2:] == [
        "mwatch: the sidecar failed again (exit code 3): training goes on unwatched"
    ]


def test_a_signal_between_two_starts_ends_it() -> None:
    words = [sys.executable, "-c", FAILS, "600"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "starts again in 600 s" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_beside_a_command_without_the_wrapper_it_says_so_and_ends_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "mwatch"
    folder.mkdir()
    os.mkfifo(folder / "running")
    held = os.open(folder / "running", os.O_RDWR)
    (folder / "unwatched").write_text("no Python here\nNever\n")
    with sidecar(folder, env=environment(MWATCH_UNTIL_FINAL="true")) as one:
        try:
            assert (
                until(lambda: one.snapshot().get("view", {}).get("unwatched")) == "no Python here"
            )
            assert one.process.poll() is None
        finally:
            os.close(held)
        assert one.process.wait(PATIENCE) == 0
        assert "the last attempt of this pod has ended" in one.said


def test_a_port_that_is_taken_gives_the_next(tmp_path: Path) -> None:
    (tmp_path / "mwatch").mkdir()
    with socket.socket() as busy:
        busy.bind(("0.0.0.0", 0))
        busy.listen()
        taken = busy.getsockname()[1]
        with sidecar(tmp_path / "mwatch", "--port", str(taken)) as one:
            assert one.port != taken
            assert one.get("/healthz") == b"ok\n"


def test_it_listens_on_both_families_where_there_are_two(tmp_path: Path) -> None:
    (tmp_path / "mwatch").mkdir()
    with sidecar(tmp_path / "mwatch") as one:
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            try:
                probe = socket.socket(family)
                probe.bind((address, 0))
            except OSError:
                pytest.skip(f"this machine has no {address}")
            probe.close()
            with socket.create_connection((address, one.port), timeout=PATIENCE):
                pass


def test_a_volume_that_comes_late_is_found(tmp_path: Path) -> None:
    with sidecar(tmp_path / "mwatch") as one:
        assert one.get("/healthz") == b"ok\n"
        assert one.metric("mwatch_iteration") is None
        assert one.metric("mwatch_blind") == 0, "who has just come need not see anything"
        volume = live_volume.LiveVolume(tmp_path / "mwatch")
        volume.start()
        volume.say(1, 2)
        assert until(lambda: one.metric("mwatch_iteration") == 2)
        assert until((volume.path / "sidecar.json").exists)
        assert until(lambda: "source log: found" in one.said)


def test_what_it_says_can_be_json(tmp_path: Path) -> None:
    (tmp_path / "mwatch").mkdir()
    with sidecar(tmp_path / "mwatch", "--json") as one:
        assert until(lambda: "/metrics" in one.said)
        one.ends()
        assert [each["event"] for each in one.lines] == ["note", "note"]
        assert all(each["time"].startswith("20") for each in one.lines)


def test_an_unknown_key_of_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("prot = 9401\n")
    words = refused("--config", str(file))
    assert f"{file}: line 1: unknown key prot; did you mean port?" in words


@pytest.mark.parametrize(
    ("options", "env", "word"),
    [
        (("--port", "70000"), {}, "--port"),
        ((), {"MWATCH_PORT": "many"}, "$MWATCH_PORT"),
        (("--mode", "acting"), {}, "--mode"),
        (("--config", "/none/such.toml"), {}, "--config"),
        (("--policy", "/none/such.toml"), {}, "policy"),
        (("--name", "a b"), {}, "--name"),
        (("--otlp-endpoint", "collector:4317"), {}, "--otlp-endpoint"),
        (("--host", "203.0.113.7"), {}, "--host"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(
    options: tuple[str, ...], env: dict[str, str], word: str, tmp_path: Path
) -> None:
    assert word in refused("--dir", str(tmp_path), *options, **env)


def test_it_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    """Neither what reads a command line, nor the client of a cluster, nor what sends by OTLP.

    And its threads share one arena of memory."""
    (tmp_path / "mwatch").mkdir()
    env = environment(PYTHONPROFILEIMPORTTIME="1")
    with sidecar(tmp_path / "mwatch", env=env) as one:
        assert one.port
        variables = Path(f"/proc/{one.process.pid}/environ").read_bytes().split(b"\0")
        assert b"MALLOC_ARENA_MAX=1" in variables
        one.ends()
        last = one.said.rpartition("imported package")[2]
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in last.splitlines()}
    assert {"mwatch", "hyperscan", "msgspec"} <= imported
    assert not imported & {"kubernetes", "opentelemetry", "tensorboard", "torch"}
    assert not imported & {"typer", "pydantic", "rich"}


def test_no_request_to_any_page_makes_it_fail_or_show_what_it_should_not(tmp_path: Path) -> None:
    volume = live_volume.LiveVolume(tmp_path / "mwatch")
    volume.start()
    volume.say(1, 2, 3)
    with sidecar(volume.path) as one:
        assert until(lambda: one.metric("mwatch_iteration") == 3)
        assert sweep(one.port) == []
        assert one.process.poll() is None
        assert "Traceback" not in one.said
