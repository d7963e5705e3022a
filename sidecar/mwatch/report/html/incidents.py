# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The incident cards of the page, with their evidence and the surrounding log lines.

No sentence is printed twice: a card does not repeat the page's headline or its own heading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

from mwatch.model.finding import Evidence
from mwatch.model.stacks import StackGroup, tree
from mwatch.report.html.sections import labelled
from mwatch.report.html.text import (
    DASH,
    Detail,
    cause_name,
    count,
    duration,
    esc,
    many,
    wait,
    when,
)
from mwatch.report.log_ends import MAX_LINES
from mwatch.report.model import DetectorReport, EvidenceFile, IncidentStory, LogEnd
from mwatch.report.run_report import RunReport

RUNBOOKS = "https://github.com/mwatch-dev/mwatch/blob/main/runbooks"
_MARKDOWN = 6
"""Maximum length of an incident copied as Markdown, in multiples of `Detail.characters`."""
_FEW = 3
"""At this many excerpts per detector or fewer, the page is being shortened."""
_OPEN = 6
"""With at most this many incidents, their evidence is shown unfolded."""
_CALM = '<p class="calm">None.</p>'
_NONE_RECORDED = '<p class="dim">None recorded; the verdict is based on the text of the log.</p>'
_HEAD = (
    "#", "What", "Since", "Detected after", "Culprit", "Action", "Resumed from", "Lost",
    "Recovered after",
)  # fmt: skip


def incidents(report: RunReport, detail: Detail) -> str:
    numbered = list(enumerate(report.incidents, 1))
    if not numbered:
        none = _CALM if report.exit_code == 0 else _NONE_RECORDED
        return f'<section id="incidents"><h2>Incidents</h2>{none}</section>'
    head = "".join(f'<th scope="col">{each}</th>' for each in _HEAD)
    rows = "".join(_row(report, number, each, detail) for number, each in numbered)
    cards = "".join(_card(report, number, each, detail) for number, each in numbered)
    return (
        '<section id="incidents"><h2>Incidents</h2>'
        f'<table class="cards"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        f'<div class="evidence">{cards}</div></section>'
    )


def _row(report: RunReport, number: int, each: IncidentStory, detail: Detail) -> str:
    cells = (
        f'<a class="badge {_tone(each)}" href="#evidence-{number}">{number}</a>',
        f"<b>{esc(cause_name(each.cause))}</b>"
        + (f' <span class="dim">&times; {each.times}</span>' if each.times > 1 else ""),
        _since(report, each),
        DASH if each.since_at is None else wait(each.detected_at - each.since_at),
        detail.cut(each.culprit or DASH),
        esc(_action(report, each)),
        _resumed(report, each),
        DASH if each.lost_steps is None else many(each.lost_steps, "step"),
        _recovered(report, each),
    )
    return f'<tr id="incident-{number}" class="incident">{labelled(_HEAD, cells)}</tr>'


def _tone(each: IncidentStory) -> str:
    return "warn" if each.severity == "warning" else "bad"


def _since(report: RunReport, each: IncidentStory) -> str:
    place = "" if each.since_iteration is None else f"iteration {each.since_iteration:,}"
    at = each.since_at if each.since_at is not None else each.detected_at
    moment = f'<span class="dim">{esc(when(at, report.clock, with_date=False))}</span>'
    return f"{place} {moment}" if place else moment


def _action(report: RunReport, each: IncidentStory) -> str:
    if each.action == "none":
        return "watched"
    if report.mode != "act":
        return f"would {'stop the job' if each.action == 'stop' else each.action}"
    if each.acted_at is None:
        return f"{each.action} decided on"
    return {"restart": "restarted", "stop": "stopped"}.get(each.action, each.action)


def _resumed(report: RunReport, each: IncidentStory) -> str:
    chosen = each.resume_from
    if each.resumed_from is not None:
        text = count(each.resumed_from) if each.resumed_from > 0 else "the beginning"
        if chosen is not None and chosen != each.resumed_from and each.action == "restart":
            return f'{text} <span class="dim">(mwatch chose {chosen:,})</span>'
        return text
    if each.action != "restart":
        return DASH
    return "the beginning" if chosen is None else count(chosen)


def _recovered(report: RunReport, each: IncidentStory) -> str:
    if each.recovered_at is not None:
        return duration(each.recovered_at - (each.since_at or each.detected_at))
    if each.action == "none" and each.closed_at is not None:
        own = next((one for one in report.attempts if one.number == each.attempt), None)
        has_ended = own and own.ended_at is not None and each.closed_at >= own.ended_at
        return "ended with the attempt" if has_ended else "went away by itself"
    is_last = bool(report.attempts) and each.attempt == report.attempts[-1].number
    return "not yet" if each.action == "restart" and not is_last else DASH


def _card(report: RunReport, number: int, each: IncidentStory, detail: Detail) -> str:
    unfolded = " open" if len(report.incidents) <= _OPEN else ""
    facts = "".join(
        f"<dt>{name}</dt><dd>{text}</dd>" for name, text in _facts(report, each, detail)
    )
    shown: set[str] = set()
    detectors = "".join(
        _detector(one, each.summary, shown, detail) for one in each.voices[: detail.entries]
    )
    lines = "".join(_lines(one, detail) for one in report.log_ends if one.incident == number)
    is_verdict = each.summary == report.verdict.summary
    what = '<span class="dim">(the verdict above)</span>' if is_verdict else ""
    text = esc(as_markdown(report, number, each)[: _MARKDOWN * detail.characters])
    return (
        f'<details id="evidence-{number}" class="card {_tone(each)}"{unfolded}>'
        f'<summary><span class="badge {_tone(each)}">{number}</span> '
        f"<b>{esc(cause_name(each.cause))}</b> {what or detail.cut(each.summary)}</summary>"
        f'<p class="share"><a href="#incident-{number}">Link to this incident</a> '
        f'<button type="button" data-markdown="{text}">Copy as Markdown</button></p>'
        f"<dl>{facts}</dl>{detectors}{lines}</details>"
    )


def as_markdown(report: RunReport, number: int, each: IncidentStory) -> str:
    """Render one incident as Markdown, for a chat or a ticket."""
    since = "" if each.since_iteration is None else f" since iteration {each.since_iteration:,}"
    facts = (
        ("when", when(each.since_at or each.detected_at, report.clock)),
        ("culprit", each.culprit),
        ("mwatch", _action(report, each)),
        ("why", _beyond(each.reason, each.summary)),
        ("checkpoint", each.resume_reason),
        ("next", each.advice),
        ("runbook", each.runbook and f"{RUNBOOKS}/{each.runbook}.md"),
    )
    head = f"**{cause_name(each.cause)}{since}** in {report.run}, attempt {each.attempt}"
    lines = [f"{head} (incident {number})", "", each.summary, ""]
    lines += [f"- {name}: {text}" for name, text in facts if text and text != DASH]
    proof = [one.text for voice in each.voices[:2] for one in voice.evidence[:4]]
    quoted = (" ".join(text.split())[:300].replace("```", "'''") for text in proof)
    lines += ["", "```", *dict.fromkeys(quoted), "```"] if proof else []
    return "\n".join(lines)


def _beyond(text: str, above: str) -> str:
    """Return what `text` adds to the sentence `above`, which the page has already shown."""
    stem = above.rstrip(". ")
    return text[len(stem) :].lstrip(" .:;,") if stem and text.startswith(stem) else text


def log_section(report: RunReport, detail: Detail) -> str:
    """Render the last lines of each log; the lines before an incident are in its card."""
    ends = [each for each in report.log_ends if each.incident is None]
    shown = "".join(_lines(each, detail, is_open=len(ends) == 1) for each in ends)
    if not shown:
        return ""
    missing = len(report.files) - len(ends)
    left_out = []
    if any(len(each.lines) >= MAX_LINES for each in ends):
        left_out.append("Earlier lines are not in this page.")
    if missing > 0:
        left_out.append(f"The ends of {many(missing, 'other log')} are left out.")
    note = f'<p class="dim">{" ".join(left_out)}</p>' if left_out else ""
    return f'<section id="log"><h2>The end of the log</h2>{note}{shown}</section>'


def _lines(end: LogEnd, detail: Detail, *, is_open: bool = False) -> str:
    most = len(end.lines) if detail.excerpts > _FEW else detail.entries
    kept = end.lines[-most:]
    name = f"<code>{detail.cut(end.file)}</code>"
    what = f"The last {many(len(kept), 'line')} of {name}"
    if end.first is not None:
        last = end.first + len(end.lines) - 1
        what = f"Lines {last - len(kept) + 1:,} to {last:,} of {name}"
    elif end.incident is not None:
        what = f"{many(len(kept), 'line')} of {name}"
    text = "\n".join(esc(line) for line in kept)
    return (
        f'<details class="log"{" open" * is_open}><summary>{what}</summary>'
        f'<pre tabindex="0">{text}</pre></details>'
    )


def _facts(report: RunReport, each: IncidentStory, detail: Detail) -> Iterator[tuple[str, str]]:
    clock = report.clock
    moments = [
        ("began", each.since_at),
        ("detected", each.detected_at),
        ("decided", each.decided_at),
        ("acted" if report.mode == "act" else "would have acted", each.acted_at),
        ("recovered", each.recovered_at),
    ]
    shown = (f"{name} {when(at, clock, with_date=False)}" for name, at in moments if at is not None)
    yield "Times", esc(" → ".join(shown))
    texts = (
        ("Culprit", each.culprit),
        ("Why", _beyond(each.reason, each.summary)),
        ("Why this checkpoint", each.resume_reason),
        ("Proposal", each.proposal),
    )
    yield from ((name, detail.cut(text)) for name, text in texts if text)
    if each.witnesses:
        yield (
            "Witnesses",
            "<br>".join(
                f"{'✓' if one.agrees else '✗ against:'} <b>{detail.cut(one.name)}</b> "
                f"{detail.cut(_beyond(one.text, each.summary))}"
                for one in each.witnesses[: detail.entries]
            ),
        )
    if each.stacks:
        yield "Stacks", _stacks(each.stacks, detail)
    if each.files:
        files = _files(each.files[: detail.entries], detail)
        yield "Files", f'{files}<br><span class="dim">They are not part of this page.</span>'
    if each.advice:
        yield "Next", detail.cut(each.advice) + _runbook(each.runbook)


def _runbook(name: str | None) -> str:
    if not name:
        return ""
    link = esc(f"{RUNBOOKS}/{quote(name[:100], errors='replace')}.md")
    return f' (<a href="{link}" rel="noreferrer">mwatch runbook {esc(name[:100])}</a>)'


def _stacks(groups: Sequence[StackGroup], detail: Detail) -> str:
    """Render where each group of ranks is, and all call stacks as one tree."""
    places = "<br>".join(detail.cut(each.text) for each in groups[: detail.entries])
    calls = "\n".join(detail.cut(line) for line in tree(groups[: detail.entries]))
    return f"{places}<details><summary>Calls</summary><pre tabindex='0'>{calls}</pre></details>"


def _files(files: Sequence[EvidenceFile], detail: Detail) -> str:
    """Link the files relative to the folder of the run; name each folder once."""
    folders: dict[str, list[str]] = {}
    for each in files:
        folder, _, name = each.path[:1000].rpartition("/")
        link = esc(quote(each.path[:1000], errors="replace"))
        about = f" ({detail.cut(each.about)})" if each.about else ""
        shown = detail.cut(name)
        shown = f'<a href="{link}">{shown}</a>' if detail.has_links else shown
        folders.setdefault(folder, []).append(f"{shown}{about}")
    return "<br>".join(
        (f'<span class="dim">{detail.cut(folder)}/</span> ' if folder else "") + ", ".join(names)
        for folder, names in folders.items()
    )


def _detector(report: DetectorReport, above: str, shown: set[str], detail: Detail) -> str:
    """`shown`: lines that an earlier detector of the same card has already shown."""
    new = [each for each in report.evidence[: detail.excerpts] if each.text not in shown]
    new = list({each.text: each for each in new}.values())
    shown.update(each.text for each in new)
    lines = "".join(_excerpt(each, detail) for each in new)
    return (
        f'<p class="voice"><code>{detail.cut(report.detector)}</code> '
        f"{detail.cut(_beyond(report.summary, above))}</p>"
        + (f'<pre tabindex="0">{lines}</pre>' if lines else "")
    )


def _excerpt(each: Evidence, detail: Detail) -> str:
    place = f"{each.file}:{each.line}" if each.file and each.line is not None else each.file or ""
    return f"<span><i>{detail.cut(place)}</i> {detail.cut(' '.join(each.text.split()))}</span>"
