# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`GET /`: the page of a run, live, for any number of browsers at the cost of about one.

Nothing is rendered until somebody opens the page, and then at most once a second for all browsers
together. The loop makes a report only when one is wanted; threads of the server render it. The page
is read-only and needs no token. Browsers poll: an open page holds no connection and no thread.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING
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
_WAIT_SECONDS = 5.0
"""For the first report: the loop may be busy."""
_MAX_WAITING = 4
"""The server has few connections, and scrapes need one."""
_WANTED_SECONDS = 20.0
"""A page that has not asked for so long is closed."""
_OPENED_SECONDS = 10.0
_POLLS_PER_SECOND = 20.0
"""Of all pages together: many pages each poll less often."""
_LAST_SECONDS = 2.0
_PAGE_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)
_CURSOR = re.compile(r"([0-9a-f]{8})\.([0-9]{1,15})", re.ASCII)
_LOCAL = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?", re.ASCII | re.IGNORECASE)
_PROTECTED = re.compile(r"protected (?:\S*?[a-z_-])0*([0-9]{1,18}) in ")


class OpenPages:
    """Counts the open pages by the id that each got from the server."""

    def __init__(self, most: int = MAX_PAGES, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._until: dict[str, float] = {}
        self._lock = threading.Lock()

    def admit(self, id: str | None = None) -> str | None:
        """Return the id of an open page, new if it has none; None: too many are open."""
        now = self._clock()
        with self._lock:
            for each in [each for each, until in self._until.items() if until <= now]:
                del self._until[each]
            if id not in self._until and len(self._until) >= self._most:
                return None
            stays = _OPENED_SECONDS if id is None else _WANTED_SECONDS
            known = id or os.urandom(8).hex()
            self._until[known] = now + stays
            return known

    def __len__(self) -> int:
        return len(self._until)


class LivePage:
    """One run's page. `update` and `finish` are called by the loop, the rest by the server."""

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
        """`cpu_share`: of a core, at most, for the charts, and as much for all the rest.
        `is_local`: refuse requests that name another host, as a web site's script would.
        `read`: makes the report in the threads of the server, if there is no loop."""
        self._snapshots = snapshots
        self._commands = commands
        self._wrapper = wrapper
        self._title = title
        self._share = cpu_share
        self._is_local = is_local
        self._read = read
        self._clock = clock
        self.open = OpenPages(clock=clock)
        self._asked_at = float("-inf")
        self._made_at = float("-inf")
        self._made_in = 0.0
        self._report: RunReport | None = None
        self._snapshot: Snapshot | None = None
        self._fresh = threading.Condition()
        self._may_wait = threading.Semaphore(_MAX_WAITING)
        self._rendering = threading.Lock()
        self._rendered: RunReport | None = None
        self._renderer: LiveParts | None = None
        self._parts: dict[str, str] = {}
        self._encoded: dict[str, bytes] = {}
        self._changed: dict[str, int] = {}
        self._number = 0
        self._life = os.urandom(4).hex()
        self._seconds = MIN_SECONDS
        self._last_seen: set[str] = set()

    def update(self, make: Callable[[], RunReport]) -> None:
        """Make a report, if somebody has the page open and the last one is old enough."""
        now = self._clock()
        if now - self._asked_at < _WANTED_SECONDS and now - self._made_at >= self._seconds:
            began = time.thread_time()
            report = make()
            self._made_in = time.thread_time() - began
            self._show(report)

    def finish(self, report: RunReport, seconds: float = _LAST_SECONDS) -> None:
        """Show the end, and give open pages a moment to get it."""
        self._last_seen.clear()
        self._show(report)
        if self._clock() - self._asked_at >= _WANTED_SECONDS:
            return
        until = time.monotonic() + seconds
        with self._fresh:
            while len(self._last_seen) < len(self.open) and time.monotonic() < until:
                self._fresh.wait(until - time.monotonic())

    def _show(self, report: RunReport) -> None:
        with self._fresh:
            newest = self._snapshots()
            self._report, self._snapshot = report, newest[0] if newest else None
            self._made_at = self._clock()
            self._fresh.notify_all()

    def pages(self) -> Pages:
        return {"/": self.page, "/page.json": self.changes, "/story.json": self.story}

    def page(self, request: Request) -> Page:
        if self._is_local and (refused := foreign(request)) is not None:
            return refused
        id = self.open.admit()
        if id is None:
            return unavailable(
                f"{MAX_PAGES} pages of this run are open, and no more are served; close one, or "
                "read /metrics"
            )
        if (problem := self._update(is_waiting=True)) is not None:
            return unavailable(f"{problem}; reload the page")
        from mwatch.report.html import live

        with self._rendering:
            parts, after, report = self._parts, self._after, self._rendered
        is_over = report is not None and report.is_over
        text = live.document(parts, page_id=id, after=after, is_over=is_over)
        return html_page(text, live.policy(*live.SCRIPTS))

    def changes(self, request: Request) -> Page:
        """The parts that have changed since the client's `after`."""
        if self._is_local and (refused := foreign(request)) is not None:
            return refused
        query = parse_qs(request.query)
        id = query.get("page", [""])[0]
        if not _PAGE_ID.fullmatch(id) or self.open.admit(id) is None:
            text = f"{MAX_PAGES} pages of this run are open: this one is no longer updated"
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
            report, after = self._rendered, self._after
        is_over = report is not None and report.is_over
        if is_over:
            with self._fresh:
                self._last_seen.add(id)
                self._fresh.notify_all()
        wait = max(self._seconds, len(self.open) / _POLLS_PER_SECOND)
        head = json.dumps({"after": after, "wait": round(wait, 1), "over": is_over}).encode()
        return Page(head[:-1] + b', "parts": {%b}}' % parts, "application/json", headers=_NOT_KEPT)

    @property
    def _after(self) -> str:
        return f"{self._life}.{self._number}"

    def _update(self, *, is_waiting: bool) -> str | None:
        """Render the newest report, unless another thread does; return why there is none yet."""
        asked = self._clock()
        is_idle = asked - self._asked_at >= _WANTED_SECONDS
        self._asked_at = asked
        if self._read is not None:
            try:
                self.update(self._read)
            except MwatchError as error:
                return str(error)
        elif is_waiting and (is_idle or self._report is None):
            self._wait(asked)
        report = self._report
        if report is None:
            return "mwatch has no report of this run yet"
        is_first = not self._parts
        if report is not self._rendered and self._rendering.acquire(blocking=is_first):
            try:
                if report is not self._rendered:
                    self._render(report)
            finally:
                self._rendering.release()
        return None

    def _wait(self, asked: float) -> None:
        """Wait for the loop, which makes a report in its next turn."""
        if self._may_wait.acquire(blocking=False):
            try:
                with self._fresh:
                    self._fresh.wait_for(lambda: self._made_at >= asked, _WAIT_SECONDS)
            finally:
                self._may_wait.release()

    def _render(self, report: RunReport) -> None:
        from mwatch.report.html.live import LiveParts, LiveView  # large, and rarely needed

        began = time.thread_time()
        wrapper = self._wrapper()
        view = LiveView(
            self._snapshot,
            tuple(self._commands()),
            frozenset() if wrapper is None else protected_checkpoints(wrapper.changes),
            self._title,
        )
        if self._renderer is None:
            self._renderer = LiveParts(self._share)
        parts = self._renderer.render(report, view)
        self._number += 1
        for name, text in parts.items():
            if self._parts.get(name) != text:
                self._changed[name] = self._number
                self._encoded[name] = json.dumps(text).encode()
        self._parts, self._rendered = parts, report
        took = time.thread_time() - began - self._renderer.chart_seconds + self._made_in
        self._seconds = min(MAX_SECONDS, max(MIN_SECONDS, took / self._share))

    def story(self, request: Request) -> Page:
        """The report itself: `mwatch report` of a live job makes its page of it."""
        if self._is_local and (refused := foreign(request)) is not None:
            return refused
        problem = self._update(is_waiting=True)
        report = self._report
        if report is None:
            return unavailable(problem or "mwatch has no report of this run yet")
        from mwatch.report import story_json

        return Page(story_json.to_json(report), "application/json", headers=_NOT_KEPT)


def protected_checkpoints(changes: Sequence[str]) -> frozenset[int]:
    """The iterations in lines of the wrapper such as `protected iter_0000400 in .mwatch/keep`."""
    found = (_PROTECTED.match(each) for each in changes)
    return frozenset(int(each[1]) for each in found if each)


_NOT_KEPT = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


def html_page(text: str, policy: str) -> Page:
    headers = {"Content-Security-Policy": policy, **_NOT_KEPT}
    return Page(text.encode("utf-8", "replace"), "text/html; charset=utf-8", headers=headers)


def foreign(request: Request) -> Page | None:
    """Refuse a request under the name of a web site, whose scripts may send it (DNS rebinding)."""
    host = next((text for name, text in request.headers.items() if name.lower() == "host"), "")
    if _LOCAL.fullmatch(host):
        return None
    text = "this page is only served as localhost or 127.0.0.1\n"
    return Page(text.encode(), status=HTTPStatus.FORBIDDEN)


def unavailable(text: str) -> Page:
    return Page(
        f"{text}\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": "10"}
    )
