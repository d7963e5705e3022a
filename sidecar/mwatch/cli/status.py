# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch status` and `mwatch top`: the watched jobs, one line each, once or live.

If the cluster becomes unreachable, `top` shows that and tries again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from mwatch.cli.cluster import exit_if_unreachable
from mwatch.cli.formats import duration
from mwatch.cli.options import AsJson, Context, Kubeconfig, Namespace, flag, option
from mwatch.cli.terminal import PIPED_WIDTH, Line, show, styled, width, write
from mwatch.errors import MwatchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mwatch.diagnose.fleet_status import Fleet, FleetLine


AllNamespaces = Annotated[
    bool, flag("--all-namespaces", "Show the jobs of every namespace you may read.", "-A")
]
JsonLines = Annotated[bool, flag("--json", "Print one JSON object per refresh, each on one line.")]
Every = Annotated[float, option("SECONDS", "Refresh at this interval.", min=1.0, max=3600.0)]
Count = Annotated[
    int | None, option("N", "Exit after this many refreshes; by default never.", min=1)
]


def status(
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Show every watched job in one line.

    A watched job has the label mwatch.dev/watch. The controller is asked if one runs; otherwise
    some sidecars of each job, and Kubernetes. 'mwatch diagnose JOB' shows one job in full.

    Exit codes: 0 all are healthy, 1 a job has a problem, 3 a job or the cluster is unreachable.

    Example: mwatch status -n training
    """
    from mwatch.diagnose.fleet_status import look
    from mwatch.kube.access import open_access

    with exit_if_unreachable(), closing(open_access(kubeconfig, context)) as access:
        fleet = look(access, None if all_namespaces else namespace or access.namespace, time.time())
    if as_json:
        write(json.dumps(fleet.to_json(), indent=2))
    else:
        show(render(fleet, with_namespace=all_namespaces, columns=width()))
    raise typer.Exit(fleet.exit_code)


def top(
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    every: Every = 5.0,
    count: Count = None,
    as_json: JsonLines = False,
) -> None:
    """Show the watched jobs live, one line each.

    Press q or Ctrl-C to exit.

    Exit codes: 0 ended, 3 the cluster is unreachable.

    Example: mwatch top -n training --every 2
    """
    from mwatch.diagnose.fleet_status import look
    from mwatch.kube.access import open_access

    with exit_if_unreachable():
        access = open_access(kubeconfig, context)
    space = None if all_namespaces else namespace or access.namespace
    try:
        with exit_if_unreachable():
            first = look(access, space, time.time())
        is_screen = sys.stdout.isatty() and not as_json
        view = _Screen(all_namespaces) if is_screen else _Printed(all_namespaces, as_json)
        _refresh(lambda: look(access, space, time.time()), first, view, every, count)
    except KeyboardInterrupt:
        pass
    finally:
        access.close()


def _refresh(
    look: Callable[[], Fleet],
    fleet: Fleet,
    view: _Screen | _Printed,
    every: float,
    count: int | None,
) -> None:
    with view:
        problem, looks = "", 1
        while True:
            view.draw(fleet, problem)
            if looks == count or view.wait(every):
                return
            looks += 1
            try:
                fleet, problem = look(), ""
            except MwatchError as error:
                problem = str(error)


class _Printed:
    """Output to a pipe: each table below the one before."""

    def __init__(self, with_namespace: bool, as_json: bool) -> None:
        self._with_namespace = with_namespace
        self._as_json = as_json

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...

    def draw(self, fleet: Fleet, problem: str) -> None:
        if self._as_json:
            write(json.dumps({**fleet.to_json(), "problem": problem or None}))
        else:
            show([*_lines(fleet, problem, self._with_namespace), []])

    def wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        return False


class _Screen:
    """A terminal, restored at the end."""

    def __init__(self, with_namespace: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self._with_namespace = with_namespace
        console = Console(highlight=False, emoji=False, markup=False)
        self._live = Live(console=console, screen=True, auto_refresh=False)
        self._before: object = None

    def __enter__(self) -> None:
        import termios
        import tty

        if sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        self._live.start()

    def __exit__(self, *_: object) -> None:
        import termios

        self._live.stop()
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)  # type: ignore[arg-type]

    def draw(self, fleet: Fleet, problem: str) -> None:
        from rich.text import Text

        texts = [styled(line) for line in _lines(fleet, problem, self._with_namespace)]
        for each in texts:
            each.no_wrap, each.overflow = True, "ellipsis"
        self._live.update(Text("\n").join(texts), refresh=True)

    def wait(self, seconds: float) -> bool:
        """Wait for the next refresh; return True if q was typed."""
        import select

        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._before is None:
                time.sleep(left)
                return False
            ready, _, _ = select.select([sys.stdin], [], [], left)
            if ready:  # read everything: select does not see what Python's own buffer holds
                typed = os.read(sys.stdin.fileno(), 64)
                if not typed or b"q" in typed.lower():
                    return True
        return False


def _lines(fleet: Fleet, problem: str, with_namespace: bool) -> list[Line]:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(fleet.at))
    wrong = sum(each.cause not in ("healthy", "finished") for each in fleet.lines)
    head = f"mwatch top  {stamp}  {len(fleet.lines)} jobs, {wrong} with problems  (q: quit)"
    stale: list[Line] = [[(f"not refreshed since: {problem}", "bold yellow")]] if problem else []
    table = render(fleet, with_namespace=with_namespace, columns=width())
    return [[(head, "bold cyan")], *stale, *table]


_HEAD = ("NAMESPACE", "JOB", "KIND", "MODE", "PHASE", "PODS", "ITERATION", "VERDICT", "SINCE")
_GOOD = ("healthy", "finished")
_DOUBT = ("unknown", "blind", "suspended", "slow", "checkpoint_overdue")
_MAX_NAME = 40
_VERDICT = _HEAD.index("VERDICT")
_LESSER = tuple(map(_HEAD.index, ("KIND", "MODE", "PHASE", "PODS", "ITERATION")))
"""Columns that a narrow terminal drops, in this order, to keep the verdict visible."""


def render(fleet: Fleet, *, with_namespace: bool, columns: int = PIPED_WIDTH) -> list[Line]:
    problems: list[Line] = [[(f"not read: {each}", "yellow")] for each in fleet.problems]
    if not fleet.lines:
        return [[("no watched job; mwatch inject adds the label mwatch.dev/watch", "")], *problems]
    rows = [_HEAD, *(_row(each, fleet.at) for each in fleet.lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = _shown(widths, columns, with_namespace=with_namespace)
    lines: list[Line] = [[(_joined(_HEAD, widths, [*shown, _VERDICT, _VERDICT + 1]), "bold")]]
    for row, each in zip(rows[1:], fleet.lines, strict=True):
        cause = row[_VERDICT].ljust(widths[_VERDICT])
        text = f"  {row[-1].ljust(widths[-1])}  {each.summary}".rstrip()
        before = _joined(row, widths, shown)
        lines.append([(f"{before}  ", ""), (cause, _style(each.cause)), (text, "dim")])
    return [*lines, *problems]


def _shown(widths: list[int], columns: int, *, with_namespace: bool) -> list[int]:
    """The columns before the verdict."""
    shown = list(range(0 if with_namespace else 1, _VERDICT))
    for each in _LESSER:
        if sum(widths[one] + 2 for one in (*shown, _VERDICT)) <= columns:
            break
        shown.remove(each)
    return shown


def _joined(row: tuple[str, ...], widths: list[int], shown: list[int]) -> str:
    return "  ".join(row[each].ljust(widths[each]) for each in shown)


def _row(line: FleetLine, now: float) -> tuple[str, ...]:
    running = "?" if line.pods_running is None else str(line.pods_running)
    wanted = "?" if line.pods_wanted is None else str(line.pods_wanted)
    total = "" if line.total_iterations is None else f"/{line.total_iterations}"
    return (
        line.namespace[:_MAX_NAME],
        line.name[:_MAX_NAME],
        line.kind,
        line.mode,
        line.phase or "-",
        f"{running}/{wanted}",
        "-" if line.iteration is None else f"{line.iteration}{total}",
        line.cause.replace("_", " "),
        "-" if line.since is None else duration(max(0.0, now - line.since)),
    )


def _style(cause: str) -> str:
    if cause in _GOOD:
        return "green"
    return "yellow" if cause in _DOUBT else "bold red"
