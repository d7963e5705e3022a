# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch demo` for real: a small training with megatron-core, broken twice and brought back.

The one with a stand-in is run from the wheel, in tests/release.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from support.free_ports import free_port
from support.repository.json_schema import read_json
from support.runs.live_runs import environment, left_behind
from support.waiting import until

SECONDS = 240.0
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["megatron"] = None
sys.argv = ["mwatch", *sys.argv[1:]]
from mwatch.cli.main import main
main()
"""
needs_torch = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("torch", "megatron"))),
    reason="needs the extra `demo` (torch and megatron-core)",
)


def environment_of_demo() -> dict[str, str]:
    """Not that of a rank: torchrun gives its own."""
    found = environment(OMP_NUM_THREADS="1")
    return {name: text for name, text in found.items() if not name.endswith(("RANK", "_SIZE"))}


def demo(folder: Path, *options: str, port: int = 0) -> list[str]:
    runs = ["--port", str(port), "--runs", str(folder / "runs")]
    return [sys.executable, "-m", "mwatch", "demo", "--quick", "--json", *runs, *options]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The demo with --stay, whose page is fetched before Ctrl-C ends it."""
    folder = tmp_path_factory.mktemp("demo")
    out, err = folder / "out", folder / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            demo(folder, "--stay", port=free_port()), stdout=stdout, stderr=stderr, cwd=folder,
            env=environment_of_demo(), stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            until(lambda: process.poll() is not None or b"(Ctrl-C" in out.read_bytes(), SECONDS)
            result, *more = out.read_bytes().splitlines(keepends=True)
            page = _fetched(more[0].split()[0].decode()) if more else b""
            process.send_signal(signal.SIGINT)
            code = process.wait(120)
        finally:
            process.kill()
            process.wait()
    (folder / "page.html").write_bytes(page)
    return subprocess.CompletedProcess([], code, result, err.read_bytes()), folder


def _fetched(address: str) -> bytes:
    with urlopen(address, timeout=60) as answer:
        found: bytes = answer.read()
    return found


@needs_torch
def test_both_faults_are_recovered_from(quick: tuple[Any, Path]) -> None:
    ended, _ = quick
    assert ended.returncode == 0, ended.stderr.decode()[-4000:]
    result = read_json(ended.stdout, "demo")
    assert (result["is_fine"], result["trainer"]) == (True, "megatron-core")
    stop, nan = result["faults"]
    assert stop["is_recovered"] and nan["is_recovered"]
    assert (stop["cause"], stop["rank"], stop["resume_from"]) == ("hang", 1, 40)
    assert (nan["cause"], nan["resume_from"]) == ("nan", 80)
    assert stop["detected_after_seconds"] < 60


@needs_torch
def test_its_report_and_its_evidence_are_there(quick: tuple[Any, Path]) -> None:
    ended, folder = quick
    (report,) = json.loads(ended.stdout)["reports"]
    page = Path(report).read_text("utf-8")
    assert "</html>" in page
    assert "checkpoint 40" in page
    stacks = list((folder / "runs").glob("demo-bf16/incidents/*-hang/rank-*.stacks.txt"))
    assert stacks, "what the other rank was doing"


@needs_torch
def test_what_was_reported_on_the_way_is_one_object_a_line(quick: tuple[Any, Path]) -> None:
    ended, _ = quick
    events = [json.loads(line)["event"] for line in ended.stderr.decode().splitlines()]
    assert events.count("attempt") == 3
    assert events[-1] == "end"


@needs_torch
def test_each_fault_is_announced_before_it_happens(quick: tuple[Any, Path]) -> None:
    ended, _ = quick
    told = [json.loads(line) for line in ended.stderr.decode().splitlines()]
    said = [each.get("summary", "") if each["event"] == "note" else each["event"] for each in told]
    first = said.index(
        "about to break: a rank stops (SIGSTOP), at iteration 45; should resume from checkpoint 40"
    )
    second = next(place for place, each in enumerate(said) if "NaN, at iteration 85" in each)
    found = [place for place, each in enumerate(said) if each == "incident"]
    assert first < found[0] < second < found[-1]


@needs_torch
def test_the_page_stays_until_control_c(quick: tuple[Any, Path]) -> None:
    _, folder = quick
    page = (folder / "page.html").read_text("utf-8")
    assert "<h1>demo-bf16</h1>" in page
    assert "checkpoint 40" in page


@needs_torch
def test_nothing_of_it_is_left_running(quick: tuple[Any, Path]) -> None:
    _, folder = quick
    assert left_behind(folder) == []


def programs(folder: Path) -> bytes:
    """The command lines of all processes of the demo but mwatch's own."""
    found = b""
    for pid in left_behind(folder):
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            found += line if b"\0mwatch\0demo\0" not in line else b""
    return found


@needs_torch
@pytest.mark.timeout(400)
def test_control_c_ends_it_and_leaves_nothing_behind(tmp_path: Path) -> None:
    process = subprocess.Popen(
        demo(tmp_path), env=environment_of_demo(), cwd=tmp_path, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        # A training that goes on is interrupted in test_run_trouble, at less cost.
        until(lambda: b"torch.distributed.run" in programs(tmp_path), 200)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
        assert left_behind(tmp_path) == []
    finally:
        process.kill()
        process.wait()
        for pid in left_behind(tmp_path):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_without_torch_the_real_demo_is_refused_in_one_line_and_makes_nothing(
    tmp_path: Path,
) -> None:
    line = [sys.executable, "-c", WITHOUT_TORCH, *demo(tmp_path, "--real")[3:]]
    ended = subprocess.run(
        line, capture_output=True, timeout=120, cwd=tmp_path, check=False,
        env=environment_of_demo(), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert ended.returncode == 2
    (said,) = ended.stderr.decode().splitlines()
    assert "torch and megatron.core" in said
    assert "pip install 'mwatch[demo]'" in said
    assert not (tmp_path / "runs").exists()
