# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Renders a report as a file: JSON for machines, Markdown for a ticket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mwatch import json_codec
from mwatch.report.files import check_target, write_target
from mwatch.report.run_report import RunReport

SUFFIXES = (".md", ".json")


def to_json(report: RunReport) -> str:
    return json_text(report.to_json())


def json_text(body: dict[str, Any]) -> str:
    return json_codec.encode_scrubbed(body, indent=2).decode()


def write_report(report: RunReport, file: Path) -> None:
    check_target(file, *SUFFIXES)
    text = to_json(report) + "\n" if file.suffix == ".json" else to_markdown(report)
    write_target(file, text.encode("utf-8", "backslashreplace"))


def to_markdown(report: RunReport) -> str:
    data = json_codec.scrubbed(report.to_json())  # before texts are cut and flattened
    verdict, decision = data["verdict"], data["decision"]
    since = verdict["since"]
    verb = "acts" if report.mode == "act" else "would"
    lines = [
        f"# {verdict['cause'].replace('_', ' ')}: {_cell(verdict['summary'])}",
        "",
        f"- since: iteration {_or(since['iteration'])}, {_or(since['time'])}",
        f"- confidence: {verdict['confidence']}",
        f"- culprit: {_culprit(verdict['culprit'])}",
        f"- mwatch {verb}: {decision['action']}, from checkpoint {_or(decision['resume_from'])}",
        f"- because: {_cell(decision['reason'])}",
    ]
    if decision["resume_reason"]:
        lines.append(f"- checkpoint: {_cell(decision['resume_reason'])}")
    page = report.advice.runbook
    runbook = f"`mwatch runbook {page}`" if page else _or(None)
    lines += [f"- next: {_cell(data['next_step'])}", f"- runbook: {runbook}", ""]
    for section in (_findings, _incidents, _attempts, _timeline, _goodput, _inputs):
        lines += section(data)
    return "\n".join(lines) + "\n"


def _findings(data: dict[str, Any]) -> Iterator[str]:
    yield from _title("Findings at the end")
    for each in data["findings"]:
        source = f"{each['detector']}, {each['severity']}"
        yield f"- **{each['cause']}** ({source}): {_cell(each['summary'])}"
        for seen in each["evidence"]:
            text = " ".join(seen["text"].split())[:300].replace("`", "'")
            yield f"  - `{_or(seen['file'])}:{_or(seen['line'])}` `{text}`"
        yield from (f"  - {_cell(group['text'])}" for group in each["stacks"])
    yield "" if data["findings"] else "None.\n"


def _incidents(data: dict[str, Any]) -> Iterator[str]:
    yield from _table(
        "Incidents",
        ("attempt", "cause", "since iteration", "detected", "acted", "closed", "what"),
        (
            (each["attempt"], each["cause"], each["since"]["iteration"], each["detected"],
             each["acted"], each["closed"], each["summary"])
            for each in data["incidents"]
        ),
    )  # fmt: skip
    for number, each in enumerate(data["incidents"], 1):
        if each["stacks"]:
            yield f"Where the ranks stood in incident {number} ({each['cause']}):"
            yield ""
            yield from (f"- {_cell(group['text'])}" for group in each["stacks"])
            yield ""


def _attempts(data: dict[str, Any]) -> Iterator[str]:
    yield from _table(
        "Attempts",
        ("attempt", "started", "ended", "first", "last", "resumed from", "ended by"),
        (
            (each["number"], each["started"], each["ended"], each["first_iteration"],
             each["last_iteration"], each["resumed_from"], each["cause"])
            for each in data["attempts"]
        ),
    )  # fmt: skip


def _timeline(data: dict[str, Any]) -> Iterator[str]:
    yield from _table(
        "Timeline",
        ("time", "attempt", "what", "iteration", "times"),
        (
            (each["time"], each["attempt"], each["text"], each["iteration"], each["count"])
            for each in data["timeline"]
        ),
    )


def _goodput(data: dict[str, Any]) -> Iterator[str]:
    spent = data["goodput"]
    ratio = "?" if spent["ratio"] is None else f"{spent['ratio']:.1%}"
    yield from _table(
        f"Goodput {ratio} of {spent['wall_seconds']:.0f} s",
        ("part", "seconds", "GPU-hours"),
        (
            (part.replace("_", " "), seconds, spent["gpu_hours"][part])
            for part, seconds in spent["seconds"].items()
            if seconds
        ),
    )


def _inputs(data: dict[str, Any]) -> Iterator[str]:
    yield from _title("Read")
    for file in data["recording"]["files"]:
        yield f"- `{file}`"
    yield from (f"- note: {_cell(note)}" for note in data["notes"])


def _title(text: str) -> Iterator[str]:
    yield f"## {text}"
    yield ""


def _table(title: str, head: tuple[str, ...], rows: Iterator[tuple[Any, ...]]) -> Iterator[str]:
    yield from _title(title)
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(_cell(str(_or(value))) for value in row)} |"
    yield ""


def _culprit(culprit: dict[str, Any] | None) -> str:
    if culprit is None:
        return "-"
    return ", ".join(
        f"{name} {value}" for name, value in culprit.items() if value not in (None, {})
    )


def _or(value: Any) -> Any:
    return "-" if value is None else value


def _cell(text: str) -> str:
    """Flatten to one line, and escape Markdown and HTML."""
    flat = " ".join(text.split())
    return flat.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
