# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The command line of `mwatch-run`. Usage errors are reported in one line, with exit code 2."""

from __future__ import annotations

import argparse
import math
import os
import threading
from typing import Mapping, NamedTuple, NoReturn, Sequence

from mwatch_trainer import contract
from mwatch_trainer.scrub import own_patterns

DEFAULT_DIR = "/mwatch"
DEFAULT_GRACE_SECONDS = 25.0  # below Kubernetes' default of 30 s, after which it sends SIGKILL
DEFAULT_LOG_BYTES = 256 << 20
_MIN_LOG_BYTES = 4096
_LOOK_SECONDS = 5.0
_MODE_VARIABLE = "MWATCH_MODE"
_USAGE = "mwatch-run [options] -- COMMAND [ARGUMENT ...]"
_ABOUT = """Run a training command unchanged, watch it, and keep a copy of its output.

example:
  mwatch-run --dir /mwatch -- torchrun --nproc-per-node 8 pretrain_gpt.py --save /ckpt ...

Observing (the default) changes nothing: arguments, checkpoints and exit code are the command's own.
With --act a resume gets the right checkpoint, and the exit code says whether a restart can help:
0 finished, 1-127 permanent, 128-255 worth a restart."""


class Options(NamedTuple):
    command: tuple[str, ...]
    mode: str = contract.OBSERVE
    directory: str | None = None
    checkpoints: str | None = None
    grace_seconds: float | None = None
    """Time from a termination signal to SIGKILL; None: the wrapper never sends SIGKILL."""
    with_probe: bool = True
    with_node_facts: bool = True
    log_bytes: int = DEFAULT_LOG_BYTES
    scrub_patterns: tuple[str, ...] = ()
    is_watched: bool = False
    """Started by `mwatch run`, which reports in the wrapper's place."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\nusage: {_USAGE}\nhelp:  {self.prog} --help\n")


def parse(arguments: Sequence[str], environ: Mapping[str, str], version: str) -> Options:
    """Parse the command line. Raises SystemExit: 2 for a usage error, 0 after --help, --version."""
    before, command = _split(arguments)
    parser = _parser(version)
    given = parser.parse_args(before)
    if not command or not command[0]:
        parser.error("no command given; put it after --")
    mode = contract.ACT if given.act else environ.get(_MODE_VARIABLE) or contract.OBSERVE
    if mode not in contract.MODES:
        parser.error(f"{_MODE_VARIABLE} is {mode!r}; it can be {' or '.join(contract.MODES)}")
    for each in own_patterns.patterns_in(environ.get(own_patterns.VARIABLE, "")):
        try:
            own_patterns.compiled(each)
        except ValueError as error:
            parser.error(f"{own_patterns.VARIABLE}: {error}")
    grace: float | None = given.grace
    if grace is None and mode == contract.ACT:
        grace = DEFAULT_GRACE_SECONDS
    return Options(
        tuple(command),
        mode,
        _directory(given.dir, environ),
        given.checkpoints and os.path.abspath(given.checkpoints),
        grace,
        not given.no_probe,
        not given.no_node_facts,
        given.log_bytes,
        tuple(given.scrub_pattern),
        given.watched,
    )


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    given = list(arguments)
    if "--" not in given:
        return given, []
    at = given.index("--")
    return given[:at], given[at + 1 :]


def _parser(version: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mwatch-run",
        usage=_USAGE,
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--act", action="store_true",
        help="choose checkpoints and map exit codes (MWATCH_MODE=act)")  # fmt: skip
    add("--dir", metavar="DIR",
        help=f"where to write (MWATCH_DIR; else {DEFAULT_DIR} if it is there)")  # fmt: skip
    add("--checkpoints", metavar="DIR",
        help="the folder of checkpoints (else read from the command)")  # fmt: skip
    add("--grace", metavar="S", type=_seconds, help="seconds from SIGTERM to SIGKILL of everything "
        f"(default {DEFAULT_GRACE_SECONDS:.0f} with --act, else never)")  # fmt: skip
    add("--no-probe", action="store_true", help="no probe inside the ranks")
    add("--no-node-facts", action="store_true", help="do not sample processes and GPUs")
    add("--log-bytes", metavar="N", type=_log_bytes, default=DEFAULT_LOG_BYTES,
        help="bound of trainer.log and its older parts (default 256 MiB)")  # fmt: skip
    add("--scrub-pattern", metavar="RE", type=_pattern, action="append", default=[],
        help="a secret of your own, not to be copied; repeatable (or MWATCH_SCRUB)")  # fmt: skip
    add("--watched", action="store_true", help=argparse.SUPPRESS)
    add("--version", action="version", version=f"mwatch-run {version}")
    return parser


def _directory(given: str | None, environ: Mapping[str, str]) -> str | None:
    chosen = given or environ.get(contract.DIR_VARIABLE)
    if not chosen and _is_there(DEFAULT_DIR):
        chosen = DEFAULT_DIR
    return os.path.abspath(chosen) if chosen else None


def _is_there(folder: str) -> bool:
    """Check in a thread, so that a hung file system does not delay the command indefinitely."""
    found: list[bool] = []
    looking = threading.Thread(target=lambda: found.append(os.path.isdir(folder)), daemon=True)
    looking.start()
    looking.join(_LOOK_SECONDS)
    return any(found)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _log_bytes(text: str) -> int:
    if not text.isdigit() or not _MIN_LOG_BYTES <= int(text) <= 1 << 50:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of bytes of at least {_MIN_LOG_BYTES}"
        )
    return int(text)


def _pattern(text: str) -> str:
    try:
        own_patterns.compiled(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
