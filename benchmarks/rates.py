# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lines per second of mwatch and of mtail, on the same files, after the same values.

Start-up is taken off: each program is also run on a file with a single line.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from benchmarks.make_logs import iterations, make_log
from benchmarks.measure import REPEATS, Usage, python, run, run_in_turns
from benchmarks.row import Row
from benchmarks.ten_fields import FIELDS, check_equal
from support.debian_tools import debian_tool

_PROGRAMS = Path(__file__).parent / "mtail"
PLAIN = _PROGRAMS / "plain.mtail"
NESTED = _PROGRAMS / "nested.mtail"
_METRIC = re.compile(r"^(\w+)\{[^}]*\} (\S+)$", re.MULTILINE)
Command = Callable[[Path], list[str]]


def read_command(log: Path) -> list[str]:
    return python("-m", "benchmarks.read_events", str(log))


def parse_command(log: Path) -> list[str]:
    return python("-m", "mwatch", "parse", str(log))


def replay_command(log: Path) -> list[str]:
    return python("-m", "mwatch", "replay", "--json", str(log))


def mtail_command(program: Path, log: Path) -> list[str]:
    # Its JSON cannot hold a NaN.
    shot = ["--one_shot", "--one_shot_format", "prometheus"]
    quiet = ["--logtostderr", "--address", "127.0.0.1", "--port", "0"]
    tool = debian_tool("mtail", "mtail")
    return [str(tool), *shot, *quiet, "--progs", str(program), "--logs", str(log)]


@dataclass(frozen=True)
class Cost:
    """CPU seconds on a log, of them start-up, and what the program printed."""

    whole: Usage
    start_seconds: float
    lines: int

    @property
    def net_seconds(self) -> float:
        return max(self.whole.cpu_seconds - self.start_seconds, 1e-9)

    @property
    def rate(self) -> float:
        return self.lines / self.net_seconds

    def __str__(self) -> str:
        return f"{self.rate / 1e6:.3f} M lines/s"


class Race:
    """One log and what each program needs for it; everything is run once, when first asked."""

    def __init__(self, name: str, lines: int) -> None:
        self.name = name
        self.lines = lines
        self.log = make_log(name, lines)

    @cached_property
    def _both(self) -> tuple[Cost, Cost]:
        pair = (read_command, partial(mtail_command, PLAIN))
        with self._single() as single:
            commands = [each(log) for log in (single, self.log) for each in pair]
            *starts, ours, theirs = run_in_turns(*commands, tries=REPEATS)
        check_equal(json.loads(ours.output), _metrics(theirs.output), self.log.name)
        first, second = (each.cpu_seconds for each in starts)
        return Cost(ours, first, self.lines), Cost(theirs, second, self.lines)

    @property
    def ours(self) -> Cost:
        return self._both[0]

    @property
    def theirs(self) -> Cost:
        return self._both[1]

    @cached_property
    def tuned(self) -> Cost:
        return self._cost(partial(mtail_command, NESTED))

    @cached_property
    def printed(self) -> Cost:
        return self._cost(parse_command, keep_output=False)

    @cached_property
    def replayed(self) -> Cost:
        return self._cost(replay_command, keep_output=False)

    @contextmanager
    def _single(self) -> Iterator[Path]:
        """A log of one line: what is left is the start."""
        with tempfile.TemporaryDirectory() as folder:
            single = Path(folder) / "single.log"
            single.write_text(next(iterations(1)))
            yield single

    def _cost(self, command: Command, *, keep_output: bool = True) -> Cost:
        with self._single() as single:
            start = run(command(single), keep_output=keep_output, tries=REPEATS)
        whole = run(command(self.log), keep_output=keep_output, tries=REPEATS)
        return Cost(whole, start.cpu_seconds, self.lines)


def _metrics(exposition: bytes) -> dict[str, float]:
    found = _METRIC.findall(exposition.decode())
    return {name: float(value) for name, value in found if name in FIELDS}


def read_row(race: Race, *, target: float) -> Row:
    """The reader alone: the ten values are kept, nothing is printed."""
    ratio = race.ours.rate / race.theirs.rate
    met = ratio >= target
    return _row(f"read-{race.name}", race.ours, race.theirs, f">= {target:g}x", met)


def tuned_row(race: Race) -> Row:
    """The reader against an mtail program that looks for the fields only behind a head."""
    return _row(f"read-{race.name}-tuned", race.ours, race.tuned)


def parse_row(race: Race) -> Row:
    """The command, which prints each event as JSON."""
    return _row(f"parse-{race.name}", race.printed, race.theirs)


def _row(name: str, ours: Cost, theirs: Cost, target: str = "", met: bool | None = None) -> Row:
    note = (
        f"{ours.lines} lines; CPU s {ours.net_seconds:.2f} and {theirs.net_seconds:.2f}, "
        f"start-up taken off: {ours.start_seconds:.2f} and {theirs.start_seconds:.2f}"
    )
    return Row(name, str(ours), str(theirs), ours.rate / theirs.rate, target, met, note)
