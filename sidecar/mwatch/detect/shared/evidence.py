# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Turn observations into the evidence lines of a finding.

A line of a log is quoted as it was printed, with its number, so that a search finds it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

from mwatch.model.event import Error, Straggler
from mwatch.model.finding import Evidence
from mwatch.model.job import ErrorSeen, ExitSeen, FaultSeen, ProcessGone, SignSeen
from mwatch.model.step import Step

MAX_TEXT = 2000
Quote = Callable[[str, int], str | None]
"""Returns the printed text of a line by file and line number; None if unknown."""
_STEP = re.compile(r"iteration \d+(?: \||$)")


def of_step(step: Step) -> Evidence:
    parts = [f"iteration {step.iteration}"]
    if step.seconds is not None:
        parts.append(f"{step.seconds:.3f} s per iteration")
    parts += [f"{name}: {value:.6g}" for name, value in step.losses.items()]
    if step.loss_scale is not None:
        parts.append(f"loss scale: {step.loss_scale:g}")
    if step.grad_norm is not None:
        parts.append(f"grad norm: {step.grad_norm:g}")
    if step.skipped_printed:
        parts.append(f"skipped: {step.skipped_printed}")
    if step.nan:
        parts.append(f"nan: {step.nan}")
    return _of_line(step.file, step.line, " | ".join(parts))


def with_quotes(evidence: tuple[Evidence, ...], quote: Quote) -> tuple[Evidence, ...]:
    """Replace summaries of iteration lines by the lines themselves, where they are known."""
    found = []
    for each in evidence:
        text = quote(each.file, each.line) if each.file and each.line and is_summary(each) else None
        found.append(each if text is None else replace(each, text=_short(text)))
    return tuple(found)


def is_summary(evidence: Evidence) -> bool:
    """Whether it was made by `of_step`."""
    return _STEP.match(evidence.text) is not None


def of_fault(seen: FaultSeen) -> Evidence:
    return _of_line(seen.fault.file, seen.fault.line, seen.fault.text)


def of_error(seen: ErrorSeen) -> Evidence:
    error = seen.error
    if error.error:
        is_statement = error.message.startswith("assert ")  # quoted from the line before
        message = "" if is_statement else error.message
        text = f"{error.error}: {message}" if message else error.error
        return _of_line(error.file, error.error_line or error.line, text)
    named = error.message
    if not named:
        code = "" if error.exit_code is None else f" with exit code {error.exit_code}"
        named = f"{error.kind}{code}"
    return _of_line(error.file, error.line, named)


def of_frame(seen: ErrorSeen) -> list[Evidence]:
    """Return the last frame in the user's code, as printed."""
    error = seen.error
    if error.frame is None or error.where_line is None:
        return []
    return [_of_line(error.file, error.where_line, error.frame)]


def place_of_error(error: Error | None) -> str | None:
    """Return the last frame in the user's code, as `pretrain.py:32 in train_step`, if known."""
    return None if error is None or error.where is None else error.where.rpartition("/")[2]


def of_exit(seen: ExitSeen) -> Evidence:
    return _of_line(seen.exit.file, seen.exit.line, seen.exit.text or seen.exit.reason)


def of_gone(seen: ProcessGone) -> Evidence:
    reported = (
        None if seen.exit.exit_code is None else f"exit code {seen.exit.exit_code}",
        seen.exit.signal,
        seen.exit.reason,
    )
    report = ", ".join(part for part in reported if part) or "no reason given"
    return of_text(f"{seen.stream}: the command has ended ({report})")


def of_sign(seen: SignSeen) -> Evidence:
    where = "" if seen.sign.rank is None else f" of rank {seen.sign.rank}"
    return of_text(f"{seen.sign.source}{where}: {seen.sign.text}")


def of_text(text: str) -> Evidence:
    return Evidence(None, None, _short(text))


def of_straggler(report: Straggler) -> Evidence:
    measures = islice(report.measures.items(), 8)
    text = ", ".join(f"{name} {value:g} on rank {rank}" for name, (value, rank) in measures)
    return _of_line(report.file, report.line, text)


def _of_line(file: str, line: int, text: str) -> Evidence:
    return Evidence(file or None, line or None, _short(text))


def _short(text: str) -> str:
    line = text.strip()
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…"
