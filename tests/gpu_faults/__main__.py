# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
r"""`PYTHONPATH=tests:sidecar:trainer python -m gpu_faults [FAULT...]`: run each fault under mwatch.

Six faults of one rank on one GPU: SIGSTOP, `time.sleep` in the step, a CUDA kernel that does not
end, a device-side assert, GPU memory used up, and a NaN. For each it prints the verdict, the place,
the advice and the seconds from the fault to its detection. Exit code 0: all as expected, 1: not,
3: skipped, because there is no GPU (`--cpu` runs the faults that need none).

The interpreter needs torch and mwatch's dependencies. For a machine without network, make a folder
of them here and carry it (37 MB; `build/` is not part of the repository):

    pip install --target build/deps --python-version 3.12 --only-binary=:all: hyperscan msgspec \
        nvidia-ml-py prometheus-client rich ruamel.yaml tomli typer urllib3
    PYTHONPATH=build/deps:tests:sidecar:trainer TORCH/bin/python -m gpu_faults --json results.json
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

_TRAINER = Path(__file__).with_name("trainer.py")
_ROOT = Path(__file__).resolve().parents[2]
_LOOK_SECONDS = 0.25
_SETTLE_SECONDS = 30.0
"""Evidence is collected within seconds after an incident is found."""


class Expected(NamedTuple):
    causes: tuple[str, ...]
    words: str  # a pattern that the verdict's summary, place or culprit matches
    place: str = ""  # a pattern of the culprit's place
    needs_gpu: bool = False


FAULTS = {
    "sigstop": Expected(("hang",), r"stopped"),
    "sleep": Expected(
        ("hang",), r"is in Python, at trainer\.py:\d+ in fail .*time\.sleep", r"trainer\.py:\d+ in"
    ),
    "kernel": Expected(
        ("hang",), r"waits for its GPU, whose SMs are busy", r"trainer\.py:\d+ in fail", True
    ),
    "assert": Expected(("data", "user_error", "crash"), r"(?i)assert|index", needs_gpu=True),
    "oom": Expected(("oom",), r"(?i)memory"),
    "nan": Expected(("nan",), r"(?i)nan|loss"),
}


class Result(NamedTuple):
    fault: str
    cause: str
    seconds: float | None
    summary: str
    culprit: dict[str, Any]
    next_step: str
    problems: tuple[str, ...]


def main(arguments: list[str] | None = None) -> int:
    args = _arguments(arguments)
    device = "cpu" if args.cpu else "cuda"
    if device == "cuda" and not has_gpu():
        print("skipped: torch finds no GPU; --cpu runs the faults that need none")
        return 3
    wanted = args.faults or [
        name for name, each in FAULTS.items() if device == "cuda" or not each.needs_gpu
    ]
    folder = Path(args.runs or tempfile.mkdtemp(prefix="gpu-faults-"))
    results = [run(fault, folder, device, args.limit, args.at) for fault in wanted]
    for each in results:
        _show(each)
    if args.json:
        Path(args.json).write_text(json.dumps([each._asdict() for each in results], indent=1))
    print(f"runs are in {folder}")
    return 1 if any(each.problems for each in results) else 0


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_faults", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("faults", nargs="*", metavar="FAULT", help="faults to run; by default all")
    add("--cpu", action="store_true", help="train on the CPU, without the faults of a GPU")
    add("--runs", help="keep the folders of the runs here")
    add("--json", help="write the results to this file")
    add("--limit", type=float, default=120.0, help="seconds for one fault")
    add("--at", type=int, default=30, help="step of the fault")
    args = parser.parse_args(arguments)
    if unknown := set(args.faults) - FAULTS.keys():
        parser.error(f"unknown fault {min(unknown)!r}: one of {', '.join(FAULTS)}")
    return args


def has_gpu() -> bool:
    code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def run(fault: str, folder: Path, device: str, limit: float, at: int) -> Result:
    command = [
        *_mwatch("run", "--name", fault, "--runs", str(folder), "--port", "0", "--plain"),
        *("--grace", "2", "--", sys.executable, str(_TRAINER)),
        *("--fault", fault, "--at", str(at), "--device", device),
        *(() if device == "cuda" else ("--width", "16", "--layers", "1", "--length", "8")),
    ]
    environment = {
        **os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{fault}.txt", "wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=_ROOT
        )
        try:
            record = _wait_for_incident(folder / fault, process, limit)
            result = _settled(fault, folder / fault, record)
        finally:
            _end(process)
    return result


def _mwatch(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mwatch", *arguments]


def _wait_for_incident(
    run: Path, process: subprocess.Popen[bytes], limit: float
) -> dict[str, Any] | None:
    """Wait for the first incident; None if the time or the command is over without one."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        is_over = process.poll() is not None
        records = sorted(run.glob("incidents/*/incident.json"))
        found = _read(records[0]) if records else None
        if found is not None or is_over:
            return found
        time.sleep(_LOOK_SECONDS)
    return None


def _settled(fault: str, run: Path, record: dict[str, Any] | None) -> Result:
    """Diagnose the run until it is as expected: stacks and story come some seconds later."""
    if not run.exists():
        said = run.with_suffix(".txt").read_text(errors="replace").strip()[-500:]
        return Result(fault, "none", None, said, {}, "", ("mwatch run did not start",))
    until = time.monotonic() + _SETTLE_SECONDS
    while True:
        result = judged(fault, _diagnosis(run), record)
        if not result.problems or time.monotonic() > until:
            return result
        time.sleep(_LOOK_SECONDS)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        body = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return body if isinstance(body, dict) else None


def _diagnosis(run: Path) -> dict[str, Any]:
    command = _mwatch("diagnose", str(run), "--json")
    answer = subprocess.run(command, capture_output=True, check=False, timeout=60, cwd=_ROOT)
    try:
        body = json.loads(answer.stdout)
    except ValueError:
        return {"verdict": {"cause": "none", "summary": answer.stderr.decode()[-500:]}}
    return body if isinstance(body, dict) else {}


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def judged(fault: str, body: dict[str, Any], record: dict[str, Any] | None) -> Result:
    expected, verdict = FAULTS[fault], body.get("verdict", {})
    culprit = verdict.get("culprit") or {}
    times = (record or {}).get("times", {})
    seconds = None
    if times.get("detected") is not None and times.get("fault") is not None:
        seconds = times["detected"] - times["fault"]
    said = f"{verdict.get('summary')} {json.dumps(body.get('findings', []))}"
    problems = []
    if verdict.get("cause") not in expected.causes:
        problems.append(f"the cause is {verdict.get('cause')}, not {' or '.join(expected.causes)}")
    if not re.search(expected.words, said):
        problems.append(f"nothing matches {expected.words!r}")
    if expected.place and not re.search(expected.place, culprit.get("place") or ""):
        problems.append(f"the place {culprit.get('place')!r} does not match {expected.place!r}")
    if re.search(r"fabric|broadcast", str(verdict.get("summary"))):
        problems.append("it blames the fabric or a collective of one rank")
    return Result(
        fault, str(verdict.get("cause")), seconds, str(verdict.get("summary")), culprit,
        str(body.get("next_step")), tuple(problems),
    )  # fmt: skip


def _show(result: Result) -> None:
    after = "-" if result.seconds is None else f"{result.seconds:.1f} s"
    print(
        f"{'FAILED' if result.problems else 'ok':<7}{result.fault:<9}{result.cause} after {after}"
    )
    print(f"         {result.summary}")
    print(f"         place: {result.culprit.get('place') or '-'}; next: {result.next_step}")
    for each in result.problems:
        print(f"         problem: {each}")


if __name__ == "__main__":
    sys.exit(main())
