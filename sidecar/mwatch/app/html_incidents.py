# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The incidents of a run as a table, and each with its reasons and its evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

from mwatch.app.html_text import DASH, Detail, cause_name, count, duration, esc, steps, wait, when
from mwatch.app.story import Story
from mwatch.app.story_parts import EvidenceFile, Excerpt, IncidentStory, Voice

_OPEN = 6
"""So many incidents are shown with their evidence unfolded."""
_HEAD = (
    "#", "What", "Since", "Detected after", "Culprit", "Action", "Resumed from", "Lost",
    "Recovered after",
)  # fmt: skip


def incidents(story: Story, detail: Detail) -> str:
    told = list(enumerate(story.incidents, 1))
    if not told:
        return '<section id="incidents"><h2>Incidents</h2><p class="calm">None.</p></section>'
    head = "".join(f'<th scope="col">{each}</th>' for each in _HEAD)
    rows = "".join(_row(story, number, each, detail) for number, each in told)
    cards = "".join(_card(story, number, each, detail) for number, each in told)
    return (
        '<section id="incidents"><h2>Incidents</h2>'
        f'<table class="cards"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        f'<div class="evidence">{cards}</div></section>'
    )


def _row(story: Story, number: int, each: IncidentStory, detail: Detail) -> str:
    cells = (
        f'<a class="badge {_tone(each)}" href="#evidence-{number}">{number}</a>',
        f"<b>{esc(cause_name(each.cause))}</b>" + _times(each),
        _since(story, each),
        detected_after(each),
        detail.cut(each.culprit or DASH),
        esc(deed(story, each)),
        _resumed(story, each),
        DASH if each.lost_steps is None else steps(each.lost_steps),
        _recovered(story, each),
    )
    filled = "".join(
        f'<td data-label="{name}"><div>{cell}</div></td>'
        for name, cell in zip(_HEAD, cells, strict=True)
    )
    return f'<tr id="incident-{number}" class="incident">{filled}</tr>'


def _tone(each: IncidentStory) -> str:
    return "warn" if each.severity == "warning" else "bad"


def _times(each: IncidentStory) -> str:
    return f' <span class="dim">&times; {each.times}</span>' if each.times > 1 else ""


def _since(story: Story, each: IncidentStory) -> str:
    place = "" if each.since_iteration is None else f"iteration {each.since_iteration:,}"
    at = each.since_at if each.since_at is not None else each.detected_at
    moment = f'<span class="dim">{esc(when(at, story.clock, with_date=False))}</span>'
    return f"{place} {moment}" if place else moment


def detected_after(each: IncidentStory) -> str:
    if each.since_at is None:
        return DASH
    return wait(each.detected_at - each.since_at)


def deed(story: Story, each: IncidentStory) -> str:
    """What was done, in one or two words; the reasons stand below."""
    if each.action == "none":
        return "watched"
    if story.mode != "act":
        return f"would {'stop the job' if each.action == 'stop' else each.action}"
    if each.acted_at is None:
        return f"{each.action} decided on"
    return {"restart": "restarted", "stop": "stopped"}.get(each.action, each.action)


def _resumed(story: Story, each: IncidentStory) -> str:
    chosen = each.resume_from
    if each.resumed_from is not None:
        text = count(each.resumed_from) if each.resumed_from > 0 else "the beginning"
        if chosen is not None and chosen != each.resumed_from and each.action == "restart":
            return f'{text} <span class="dim">(mwatch chose {chosen:,})</span>'
        return text
    if each.action != "restart":
        return DASH
    return "the beginning" if chosen is None else count(chosen)


def _recovered(story: Story, each: IncidentStory) -> str:
    if each.recovered_at is not None:
        return duration(each.recovered_at - (each.since_at or each.detected_at))
    if each.action == "none" and each.closed_at is not None:
        own = next((one for one in story.attempts if one.number == each.attempt), None)
        has_ended = own and own.ended_at is not None and each.closed_at >= own.ended_at
        return "ended with the attempt" if has_ended else "went away by itself"
    is_last = bool(story.attempts) and each.attempt == story.attempts[-1].number
    return "not yet" if each.action == "restart" and not is_last else DASH


def _card(story: Story, number: int, each: IncidentStory, detail: Detail) -> str:
    unfolded = " open" if len(story.incidents) <= _OPEN else ""
    facts = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in _facts(story, each, detail))
    voices = "".join(_voice(voice, detail) for voice in each.voices[: detail.entries])
    return (
        f'<details id="evidence-{number}" class="card {_tone(each)}"{unfolded}>'
        f'<summary><span class="badge {_tone(each)}">{number}</span> '
        f"<b>{esc(cause_name(each.cause))}</b> {detail.cut(each.summary)}</summary>"
        f"<dl>{facts}</dl>{voices}</details>"
    )


def _facts(story: Story, each: IncidentStory, detail: Detail) -> Iterator[tuple[str, str]]:
    clock = story.clock
    moments = [
        ("began", each.since_at),
        ("detected", each.detected_at),
        ("decided", each.decided_at),
        ("acted" if story.mode == "act" else "would have acted", each.acted_at),
        ("recovered", each.recovered_at),
    ]
    shown = (f"{name} {when(at, clock, with_date=False)}" for name, at in moments if at is not None)
    yield "Times", esc(" → ".join(shown))
    told = (
        ("Culprit", each.culprit),
        ("Why", each.reason),
        ("Why this checkpoint", each.resume_reason),
        ("Proposal", each.proposal),
    )
    yield from ((name, detail.cut(text)) for name, text in told if text)
    if each.witnesses:
        yield (
            "Witnesses",
            "<br>".join(
                f"{'✓' if one.agrees else '✗ against:'} <b>{detail.cut(one.name)}</b> "
                f"{detail.cut(one.text)}"
                for one in each.witnesses[: detail.entries]
            ),
        )
    if each.files:
        yield "Files", _files(each.files[: detail.entries], detail)
    page = f" (runbooks/{each.runbook}.md)" if each.runbook else ""
    if each.advice:
        yield "Next", detail.cut(each.advice + page)


def _files(files: Sequence[EvidenceFile], detail: Detail) -> str:
    """Links from where the page lies by default, the folder of the run; each folder told once."""
    folders: dict[str, list[str]] = {}
    for each in files:
        folder, _, name = each.path[:1000].rpartition("/")
        link = esc(quote(each.path[:1000], errors="replace"))
        about = f" ({detail.cut(each.about)})" if each.about else ""
        folders.setdefault(folder, []).append(f'<a href="{link}">{detail.cut(name)}</a>{about}')
    return "<br>".join(
        (f'<span class="dim">{detail.cut(folder)}/</span> ' if folder else "") + ", ".join(names)
        for folder, names in folders.items()
    )


def _voice(voice: Voice, detail: Detail) -> str:
    lines = "".join(_excerpt(each, detail) for each in voice.evidence[: detail.excerpts])
    return (
        f'<p class="voice"><code>{detail.cut(voice.detector)}</code> '
        f"{detail.cut(voice.summary)}</p>" + (f"<pre>{lines}</pre>" if lines else "")
    )


def _excerpt(each: Excerpt, detail: Detail) -> str:
    place = each.file or ""
    if each.file and each.line is not None:
        place = f"{each.file}:{each.line}"
    return f"<span><i>{detail.cut(place)}</i> {detail.cut(' '.join(each.text.split()))}</span>"
