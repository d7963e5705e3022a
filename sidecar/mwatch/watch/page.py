# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`GET /`: a live page, for any number of browsers at the cost of about one.

Nothing is rendered until a browser opens the page, and then at most once a second for all browsers
together. The loop builds a state only while a page is open; the server's threads render it. The
page is read-only and needs no token. Browsers poll: an open page holds no connection and no thread.
`LivePage` is the page of one run; the controller has pages of its own.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qs

from mwatch.errors import MwatchError
from mwatch.export.http.server import Page, Pages, Request
from mwatch.model.snapshot.pod import WrapperState
from mwatch.model.snapshot.snapshot import Snapshot

if TYPE_CHECKING:
    from mwatch.report.html.live import LiveParts
    from mwatch.report.run_report import RunReport

MAX_PAGES = 200
MIN_SECONDS = 1.0
MAX_SECONDS = 8.0
_MAX_SHARED_SECONDS = 15.0
"""Longest interval of pages that share a CPU budget; shorter than `_WANTED_SECONDS`."""
_WAIT_SECONDS = 5.0
"""How long a request waits for the first report: the loop may be busy."""
_MAX_WAITING = 4
"""Requests that may wait at once: the server has few connections, and scrapes need one."""
_WANTED_SECONDS = 20.0
"""A page that has not polled for this long counts as closed."""
_OPENED_SECONDS = 10.0
_POLLS_PER_SECOND = 20.0
"""Limit for all pages together: the more pages are open, the less often each polls."""
_LAST_SECONDS = 2.0
_MARK_SECONDS = 3.0
"""Shortest interval between states that are built early for a new mark, whatever they cost."""
_PAGE_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)
_CURSOR = re.compile(r"([0-9a-f]{8})\.([0-9]{1,15})", re.ASCII)
_LOCAL = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?", re.ASCII | re.IGNORECASE)
_PROTECTED = re.compile(r"protected (?:\S*?[a-z_-])0*([0-9]{1,18}) in ")


State = TypeVar("State")


class OpenPages:
    """Counts the open pages by the id that the server gave each of them."""

    def __init__(self, most: int = MAX_PAGES, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._until: dict[str, tuple[float, str]] = {}
        self._lock = threading.Lock()

    def admit(self, id: str | None = None, about: str = "") -> str | None:
        """Return the id of an open page, a new one if it has none; None if too many are open.
        `about`: what the page shows."""
        now = self._clock()
        with self._lock:
            for each in [each for each, (until, _) in self._until.items() if until <= now]:
                del self._until[each]
            if id not in self._until and len(self._until) >= self._most:
                return None
            stays = _OPENED_SECONDS if id is None else _WANTED_SECONDS
            known = id or os.urandom(8).hex()
            self._until[known] = now + stays, about
            return known

    def __len__(self) -> int:
        return len(self._until)

    @property
    def different(self) -> int:
        """How many different pages are open."""
        with self._lock:
            return len({about for _, about in self._until.values()})


class PartsPage(Generic[State]):
    """A page of named parts. The loop provides states, the server handles requests.

    A subclass renders a state into parts."""

    def __init__(
        self,
        *,
        name: str = "",
        of: str = "this run",
        address: str = "page.json",
        cpu_share: float = 0.05,
        is_local: bool = False,
        read: Callable[[], State] | None = None,
        open: OpenPages | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name`: distinguishes the pages that share `open`. `address`: of its changes, relative to
        the page. `cpu_share`: largest share of a core for rendering all these pages.
        `is_local`: refuse requests that name another host, as a web site's script would.
        `read`: builds the state in the threads of the server, if there is no loop."""
        self._name = name
        self._of = of
        self._address = address
        self._share = cpu_share
        self._is_local = is_local
        self._read = read
        self._clock = clock
        self.open = OpenPages(clock=clock) if open is None else open
        self._asked_at = float("-inf")
        self._made_at = float("-inf")
        self._made_in = 0.0
        self._mark: object = None
        self._state: State | None = None
        self._fresh = threading.Condition()
        self._may_wait = threading.Semaphore(_MAX_WAITING)
        self._rendering = threading.Lock()
        self._rendered: State | None = None
        self._parts: Mapping[str, str] = {}
        self._encoded: dict[str, bytes] = {}
        self._changed: dict[str, int] = {}
        self._number = 0
        self._life = os.urandom(4).hex()
        self._seconds = MIN_SECONDS
        self._last_seen: set[str] = set()

    scripts: tuple[str, ...] = ("page.js", "live.js")
    max_wait_seconds = _MAX_SHARED_SECONDS
    """Longest interval between two requests of a browser. Where the loop passes marks, browsers
    poll more often than a state is built: an answer without a change costs little."""

    def render(self, state: State) -> Mapping[str, str]:
        raise NotImplementedError

    def is_over(self, state: State) -> bool:
        """Return whether the state is final."""
        return False

    @property
    def spared_seconds(self) -> float:
        """CPU time of the last rendering that falls under a separate limit."""
        return 0.0

    def show_if_wanted(self, make: Callable[[], State], mark: object = None) -> None:
        """Build a state, if the page is open and the last state is old enough. A change of `mark`
        makes a state due earlier."""
        age = self._clock() - self._made_at
        is_due = age >= self._seconds or (mark != self._mark and age >= _MARK_SECONDS)
        if self.is_wanted and is_due:
            began = time.thread_time()
            state = make()
            self._made_in = time.thread_time() - began
            self._mark = mark
            self.show(state)

    @property
    def is_wanted(self) -> bool:
        return self._clock() - self._asked_at < _WANTED_SECONDS

    def show(self, state: State) -> None:
        with self._fresh:
            self._state = state
            self._made_at = self._clock()
            self._fresh.notify_all()

    def show_last(self, state: State, seconds: float = _LAST_SECONDS) -> None:
        """Show the final state, and give open pages a moment to fetch it."""
        self._last_seen.clear()
        self.show(state)
        if not self.is_wanted:
            return
        until = time.monotonic() + seconds
        with self._fresh:
            while len(self._last_seen) < len(self.open) and time.monotonic() < until:
                self._fresh.wait(until - time.monotonic())

    def pages(self) -> Pages:
        return {"/": self.page, "/page.json": self.changes}

    def page(self, request: Request) -> Page:
        if self._is_local and (refused := foreign(request)) is not None:
            return refused
        id = self.open.admit(about=self._name)
        if id is None:
            return unavailable(
                f"{MAX_PAGES} pages of {self._of} are open, and no more are served; close one, or "
                "read /metrics"
            )
        if (problem := self._update(is_waiting=True)) is not None:
            return unavailable(f"{problem}; reload the page")
        from mwatch.report.html import live

        with self._rendering:
            parts, after, state = self._parts, self._after, self._rendered
        is_over = state is not None and self.is_over(state)
        place = live.Place(id, after, self._address)
        text = live.document(parts, place, is_over=is_over, scripts=self.scripts)
        return html_page(text, live.policy(*self.scripts))

    def changes(self, request: Request) -> Page:
        """Return the parts that have changed since the client's `after`."""
        if self._is_local and (refused := foreign(request)) is not None:
            return refused
        query = parse_qs(request.query)
        id = query.get("page", [""])[0]
        if not _PAGE_ID.fullmatch(id) or self.open.admit(id, self._name) is None:
            text = f"{MAX_PAGES} pages of {self._of} are open: this one is no longer updated"
            return unavailable(text)
        if (problem := self._update(is_waiting=False)) is not None:
            return unavailable(problem)
        cursor = _CURSOR.fullmatch(query.get("after", [""])[0])
        known = int(cursor[2]) if cursor and cursor[1] == self._life else -1
        with self._rendering:
            parts = b",".join(
                b'"%b":%b' % (name.encode(), text)
                for name, text in self._encoded.items()
                if self._changed[name] > known
            )
            state, after = self._rendered, self._after
        is_over = state is not None and self.is_over(state)
        if is_over:
            with self._fresh:
                self._last_seen.add(id)
                self._fresh.notify_all()
        wait = min(self._seconds, self.max_wait_seconds)
        wait = max(wait, len(self.open) / _POLLS_PER_SECOND)
        head = json.dumps({"after": after, "wait": round(wait, 1), "over": is_over}).encode()
        return Page(head[:-1] + b', "parts": {%b}}' % parts, "application/json", headers=_NOT_KEPT)

    @property
    def _after(self) -> str:
        return f"{self._life}.{self._number}"

    def _update(self, *, is_waiting: bool) -> str | None:
        """Render the newest state, unless another thread is doing so; return why there is none."""
        asked = self._clock()
        is_idle = asked - self._asked_at >= _WANTED_SECONDS
        self._asked_at = asked
        if self._read is not None:
            try:
                self.show_if_wanted(self._read)
            except MwatchError as error:
                return str(error)
        elif is_waiting and (is_idle or self._state is None):
            self._wait(asked)
        state = self._state
        if state is None:
            return f"mwatch has no report of {self._of} yet"
        is_first = not self._parts
        if state is not self._rendered and self._rendering.acquire(blocking=is_first):
            try:
                if state is not self._rendered:
                    self._render(state)
            finally:
                self._rendering.release()
        return None

    def _wait(self, asked: float) -> None:
        """Wait for the loop, which builds a state in its next turn."""
        if self._may_wait.acquire(blocking=False):
            try:
                with self._fresh:
                    self._fresh.wait_for(lambda: self._made_at >= asked, _WAIT_SECONDS)
            finally:
                self._may_wait.release()

    def _render(self, state: State) -> None:
        began = time.thread_time()
        parts = self.render(state)
        self._number += 1
        for name, text in parts.items():
            if self._parts.get(name) != text:
                self._changed[name] = self._number
                self._encoded[name] = json.dumps(text).encode()
        self._parts, self._rendered = parts, state
        took = time.thread_time() - began - self.spared_seconds + self._made_in
        different = max(1, self.open.different)
        most = MAX_SECONDS if different == 1 else _MAX_SHARED_SECONDS
        self._seconds = min(most, max(MIN_SECONDS, took / self._share * different))


class HasReport(Protocol):
    @property
    def report(self) -> RunReport: ...


Reported = TypeVar("Reported", bound=HasReport)


class ReportPage(PartsPage[Reported]):
    """The page of one report; serves the report itself too."""

    _renderer: LiveParts | None = None

    def pages(self) -> Pages:
        return {**super().pages(), "/story.json": self.story}

    def is_over(self, state: Reported) -> bool:
        return state.report.is_over

    @property
    def spared_seconds(self) -> float:
        return 0.0 if self._renderer is None else self._renderer.chart_seconds

    def story(self, request: Request) -> Page:
        """Return the report, from which `mwatch report` renders the page of a live job."""
        if self._is_local and (refused := foreign(request)) is not None:
            return refused
        problem, state = self._update(is_waiting=True), self._state
        if state is None:
            return unavailable(problem or f"mwatch has no report of {self._of} yet")
        from mwatch.report import story_json

        return Page(story_json.to_json(state.report), "application/json", headers=_NOT_KEPT)


class RunState(NamedTuple):
    report: RunReport
    snapshot: Snapshot | None


class LivePage(ReportPage[RunState]):
    """The page of one run."""

    def __init__(
        self,
        snapshots: Callable[[], Sequence[Snapshot]],
        *,
        commands: Callable[[], Sequence[tuple[str, str]]] = tuple,
        wrapper: Callable[[], WrapperState | None] = lambda: None,
        title: str = "",
        cpu_share: float = 0.05,
        is_local: bool = False,
        read: Callable[[], RunReport] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`cpu_share`: largest share of a core for the charts, and the same for all the rest."""
        super().__init__(
            cpu_share=cpu_share, is_local=is_local, clock=clock,
            read=None if read is None else lambda: self._taken(read()),
        )  # fmt: skip
        self._snapshots = snapshots
        self._commands = commands
        self._wrapper = wrapper
        self._title = title

    def update(self, make: Callable[[], RunReport]) -> None:
        """Build a report, if the page is open and the last report is old enough."""
        self.show_if_wanted(lambda: self._taken(make()))

    def finish(self, report: RunReport, seconds: float = _LAST_SECONDS) -> None:
        """Show the final report, and give open pages a moment to fetch it."""
        self.show_last(self._taken(report), seconds)

    def _taken(self, report: RunReport) -> RunState:
        newest = self._snapshots()
        return RunState(report, newest[0] if newest else None)

    def render(self, state: RunState) -> Mapping[str, str]:
        from mwatch.report.html.live import LiveParts, LiveView  # large, and rarely needed

        wrapper = self._wrapper()
        view = LiveView(
            state.snapshot,
            tuple(self._commands()),
            frozenset() if wrapper is None else protected_checkpoints(wrapper.changes),
            self._title,
        )
        if self._renderer is None:
            self._renderer = LiveParts(self._share)
        return self._renderer.render(state.report, view)


def protected_checkpoints(changes: Sequence[str]) -> frozenset[int]:
    """Read the iterations from wrapper lines such as `protected iter_0000400 in .mwatch/keep`."""
    found = (_PROTECTED.match(each) for each in changes)
    return frozenset(int(each[1]) for each in found if each)


_NOT_KEPT = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


def html_page(text: str, policy: str) -> Page:
    headers = {"Content-Security-Policy": policy, **_NOT_KEPT}
    return Page(text.encode("utf-8", "replace"), "text/html; charset=utf-8", headers=headers)


def foreign(request: Request) -> Page | None:
    """Refuse a request that names a web site as host: its scripts may send it (DNS rebinding)."""
    host = next((text for name, text in request.headers.items() if name.lower() == "host"), "")
    if _LOCAL.fullmatch(host):
        return None
    text = "this page is only served as localhost or 127.0.0.1\n"
    return Page(text.encode(), status=HTTPStatus.FORBIDDEN)


def unavailable(text: str) -> Page:
    return Page(
        f"{text}\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": "10"}
    )
