# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The screen of `mwatch top`: a list of jobs to sort, filter and open, built on Textual.

Each source is read by its own thread, so an unresponsive cluster never blocks the keyboard: the
last list stays, with its age, and the header shows the error. All text is shown as rich Text with
control characters escaped; nothing is interpreted as Textual markup.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Input, OptionList, Static, TabbedContent, TabPane
from textual.widgets.option_list import Option

from mwatch.cli.render.job_sections import SECTIONS
from mwatch.cli.render.jobs import ORDERS, arranged, is_problem, render_jobs
from mwatch.cli.shared.formats import duration
from mwatch.cli.shared.terminal import Line, styled, within, wrapped
from mwatch.errors import MwatchError

if TYPE_CHECKING:
    from mwatch.cli.render.job_sources import JobDetail, JobSource
    from mwatch.diagnose.fleet_status import FleetLine

_LATE_SECONDS = 10.0
"""A source that has not answered a request for this time is reported in the header."""
_MIN_DETAIL_SECONDS = 5.0
"""Minimum refresh interval of an opened job, because each refresh queries all of its pods."""
_PROBLEMS = 3
_LOG_TAB = f"tab-{list(SECTIONS).index('Log') + 1}"
_MARGIN = 4
"""Columns not available for text: a blank on each side and the scroll bar."""


class Poller:
    """Calls a function periodically in a daemon thread, which never delays an exit."""

    def __init__(self, ask: Callable[[], Any], seconds: float) -> None:
        self._ask = ask
        self._seconds = seconds
        self._wake = threading.Event()
        self._is_over = False
        self.answer: Any = None
        self.answered_at: float | None = None
        self.asked_at = time.monotonic()
        self.problem = ""

    def start(self, answered: Callable[[], object]) -> None:
        thread = threading.Thread(
            target=self._run, args=(answered,), name="mwatch-top", daemon=True
        )
        thread.start()

    def again(self) -> None:
        """Make the next call now."""
        self._wake.set()

    def stop(self) -> None:
        self._is_over = True
        self._wake.set()

    @property
    def age(self) -> float | None:
        return None if self.answered_at is None else time.monotonic() - self.answered_at

    def waited(self) -> float:
        """Seconds since the last call began; 0 if it has returned."""
        is_answered = self.answered_at is not None and self.answered_at >= self.asked_at
        return 0.0 if is_answered or self.problem else time.monotonic() - self.asked_at

    def _run(self, answered: Callable[[], object]) -> None:
        while not self._is_over:
            self.asked_at = time.monotonic()
            try:
                self.answer, self.problem = self._ask(), ""
                self.answered_at = time.monotonic()
            except MwatchError as error:
                self.problem = str(error)
            except Exception as error:  # a malformed response must not end the screen
                self.problem = f"{type(error).__name__}: {error}"[:300]
            if self._is_over:
                return
            try:
                answered()
            except RuntimeError:  # the screen is closed
                return
            self._wake.wait(self._seconds)
            self._wake.clear()


class Answered(Message):
    """A poller has a new answer or error."""


def text_of(lines: Sequence[Line]) -> Text:
    return Text("\n").join(styled(line) for line in lines)


class JobScreen(Screen[None]):
    """One job, opened: a tab for each section."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "dismiss", "Back"),
        *(
            Binding(str(number), f"tab({number})", title, show=False)
            for number, title in enumerate(SECTIONS, 1)
        ),
        Binding("r", "refresh", "Refresh"),
    ]

    def __init__(self, title: str, ask: Callable[[], JobDetail], seconds: float) -> None:
        super().__init__()
        self._title = title
        self._poller = Poller(ask, max(seconds, _MIN_DETAIL_SECONDS))

    def compose(self) -> ComposeResult:
        yield Static(id="job-head")
        with TabbedContent():
            for number, title in enumerate(SECTIONS, 1):
                with TabPane(f"{number} {title}", id=f"tab-{number}"), VerticalScroll():
                    yield Static(id=f"section-{number}")
        yield Footer()

    def on_mount(self) -> None:
        self._poller.start(lambda: self.post_message(Answered()))
        self.set_interval(1.0, self._show_head)
        self._show_head()

    def on_unmount(self) -> None:
        self._poller.stop()

    def on_answered(self, event: Answered) -> None:
        event.stop()
        self._show()

    def on_resize(self, event: events.Resize) -> None:
        self._show()

    def _show(self) -> None:
        self._show_head()
        detail: JobDetail | None = self._poller.answer
        if detail is None:
            return
        with within(max(20, self.size.width - _MARGIN)):
            for number, lines in enumerate(SECTIONS.values(), 1):
                section = self.query_one(f"#section-{number}", Static)
                section.update(text_of(list(lines(detail))))

    def _show_head(self) -> None:
        columns = max(20, self.size.width - 2)
        head = state_of(f"mwatch top  {self._title}", self._poller, columns)
        self.query_one("#job-head", Static).update(text_of(head))

    def action_tab(self, number: int) -> None:
        self.query_one(TabbedContent).active = f"tab-{number}"

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        body = event.pane.query_one(VerticalScroll)
        body.focus()
        if event.pane.id == _LOG_TAB:  # the newest lines are at the end
            body.call_after_refresh(body.scroll_end, animate=False)

    def action_refresh(self) -> None:
        self._poller.again()


def state_of(title: str, poller: Poller, columns: int) -> list[Line]:
    """The age of the answer, and why there is no newer one."""
    age = "" if poller.age is None else f"as of {duration(poller.age)} ago"
    late = poller.waited()
    problem = poller.problem
    if not problem and late > _LATE_SECONDS:
        problem = f"no answer for {duration(late)}"
    state = (age, "bold red") if problem else (age or "reading", "dim")
    parts = wrapped(problem, columns, _PROBLEMS) if problem else ()
    return [[(f"{title}: ", "cyan"), state], *([(part, "bold red")] for part in parts)]


class ListScreen(Screen[None]):
    """All jobs, one line each."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "Sort"),
        Binding("S", "reverse", "Reverse"),
        Binding("slash", "filter", "Filter"),
        Binding("escape", "clear", "Clear filter", show=False),
        Binding("r", "refresh", "Refresh"),
    ]

    def __init__(self, sources: Sequence[JobSource], seconds: float, with_namespace: bool) -> None:
        super().__init__()
        self._sources = [(each, Poller(each.read, seconds)) for each in sources]
        self._seconds = seconds
        self._with_namespace = with_namespace
        self._order = next(iter(ORDERS))
        self._is_reversed = False
        self._wanted = ""
        self._jobs: dict[str, tuple[JobSource, FleetLine]] = {}
        """Jobs by an id that stays the same while the list changes."""

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Static(id="columns")
        yield OptionList(id="jobs", markup=False)
        yield Input(placeholder="show only jobs with these words", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#jobs").focus()
        for _, poller in self._sources:
            poller.start(lambda: self.post_message(Answered()))
        self.set_interval(1.0, self._show_head)
        self._show()

    def on_unmount(self) -> None:
        for _, poller in self._sources:
            poller.stop()

    def on_answered(self, event: Answered) -> None:
        event.stop()
        self._show()

    def on_resize(self, event: events.Resize) -> None:
        self._show()

    def _show(self) -> None:
        self._jobs = {
            f"{each.kind}/{each.namespace}/{each.name}": (source, each)
            for source, poller in self._sources
            for each in (poller.answer.lines if poller.answer is not None else ())
        }
        every = [each for _, each in self._jobs.values()]
        shown = arranged(every, self._order, is_reversed=self._is_reversed, wanted=self._wanted)
        columns = max(20, self.size.width - _MARGIN)
        with within(columns):
            lines = render_jobs(shown, time.time(), with_namespace=self._with_namespace)
        head, *rows = (_one_line(each, columns) for each in lines)
        self.query_one("#columns", Static).update(head)
        jobs = self.query_one("#jobs", OptionList)
        keys = [f"{each.kind}/{each.namespace}/{each.name}" for each in shown]
        before = jobs.highlighted_option
        jobs.clear_options()
        jobs.add_options([Option(row, key) for row, key in zip(rows, keys, strict=True)])
        if keys:
            known = before is not None and before.id in keys
            jobs.highlighted = keys.index(str(before.id)) if known and before is not None else 0
        self._show_head()

    def _show_head(self) -> None:
        lines = [each for _, each in self._jobs.values()]
        wrong = sum(map(is_problem, lines))
        order = f"{self._order}{', reversed' if self._is_reversed else ''}"
        number = f"{len(lines)} job{'s' * (len(lines) != 1)}"
        facts = f"{number}, {wrong} with problems  sorted by {order}"
        wanted = f"  only with: {self._wanted}" if self._wanted else ""
        head: list[Line] = [[("mwatch top  ", "bold cyan"), (facts, "bold"), (wanted, "yellow")]]
        unread: list[str] = []
        columns = max(20, self.size.width - 2)
        for source, poller in self._sources:
            head += state_of(source.title, poller, columns)
            unread += poller.answer.problems if poller.answer is not None else ()
        head += [[(f"not read: {each}", "yellow")] for each in unread[:_PROBLEMS]]
        for source, poller in self._sources:
            if poller.answer is not None and not poller.answer.lines:
                head.append([(source.empty, "")])
        text = Text("\n").join(_one_line(each, columns) for each in head)
        self.query_one("#head", Static).update(text)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        source, line = self._jobs[str(event.option_id)]
        name = f"{line.namespace}/{line.name}" if line.namespace else line.name
        screen = JobScreen(f"{line.kind} {name}", lambda: source.open(line), self._seconds)
        self.app.push_screen(screen)

    def action_sort(self) -> None:
        orders = list(ORDERS)
        self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        self._show()

    def action_reverse(self) -> None:
        self._is_reversed = not self._is_reversed
        self._show()

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.add_class("is-open")
        field.focus()

    def action_clear(self) -> None:
        field = self.query_one("#filter", Input)
        field.value = ""
        field.remove_class("is-open")
        self.query_one("#jobs").focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._wanted = event.value
        self._show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if not event.value:
            self.action_clear()
        self.query_one("#jobs").focus()

    def action_refresh(self) -> None:
        for _, poller in self._sources:
            poller.again()


def _one_line(line: Line, columns: int) -> Text:
    text = styled(line)
    text.truncate(columns, overflow="ellipsis")
    return text


class TopApp(App[None]):
    CSS = """
    #head, #columns, #job-head { height: auto; padding: 0 1; }
    #jobs, #jobs:focus { height: 1fr; border: none; padding: 0 1; background: $background; }
    #jobs:focus { background-tint: $foreground 0%; }
    #jobs > .option-list--option { padding: 0; }
    #filter { display: none; height: 1; border: none; padding: 0 1; }
    #filter.is-open { display: block; }
    TabbedContent, TabPane { height: 1fr; padding: 0; }
    VerticalScroll { padding: 0 1; }
    """
    ENABLE_COMMAND_PALETTE = False
    TITLE = "mwatch top"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(
        self, sources: Sequence[JobSource], *, seconds: float = 5.0, with_namespace: bool = False
    ) -> None:
        super().__init__()
        self._first = ListScreen(sources, seconds, with_namespace)

    def on_mount(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self.push_screen(self._first)
