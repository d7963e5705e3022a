# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The wrapper's loop while the trainer runs: forwards signals, stops the trainer, reaps children.

The loop never blocks on I/O: threads read the disk, sockets and the checkpoint folder and put
requests into a queue.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import Callable

from mwatch_trainer.processes.children import Reaper
from mwatch_trainer.processes.proc import Process, Tree, all_processes, catches, is_alive, send
from mwatch_trainer.processes.signals import (
    ENDING,
    FENCE,
    RESTART,
    SIGNAL,
    ControlRequest,
    RequestQueue,
    Signals,
    is_from_terminal,
    name_of,
)
from mwatch_trainer.wrapper.leftovers import Pace

SHELLS = ("bash", "sh", "dash", "ash", "busybox", "zsh", "ksh")
AFTERWARDS_SECONDS = 5.0  # for a script's work after training, such as copying the log
_MAX_DEPTH = 16


class EndingSignal:
    """Forwards a termination signal; if the child is a shell, to the program it waits for.

    | the shell | receiver of the signal |
    | --- | --- |
    | waits for a program | the program: the shell would die at once, the trainer without saving |
    | has a trap for it | the shell, as without mwatch |
    | runs nothing | the shell |
    | waits for `trainer \\| tee` | the trainer: `tee` ends by itself afterwards |

    A shell that continues after that (a loop that starts training again) gets the signal too. So
    does a helper that the script runs beside the trainer: the two cannot be distinguished.
    """

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self._pid, self._proc = pid, proc
        self._number: int | None = None
        self._receivers: list[Process] = []
        self._gone_at: float | None = None

    def send(self, number: int) -> None:
        found = receivers(self._pid, all_processes(self._proc), number, self._proc)
        if not found or found[0].pid == self._pid:
            with contextlib.suppress(OSError):
                os.kill(self._pid, number)
            return
        for each in found:
            send(each, number, self._proc)
        self._number, self._receivers, self._gone_at = number, found, None

    def tick(self, now: float) -> None:
        """Signal a shell that is still there some seconds after the trainer (monotonic time)."""
        if self._number is None or any(
            is_alive(each.pid, each.started, self._proc) for each in self._receivers
        ):
            return
        self._gone_at = now if self._gone_at is None else self._gone_at
        if now - self._gone_at < AFTERWARDS_SECONDS:
            return
        number, self._number = self._number, None
        for each in receivers(self._pid, all_processes(self._proc), number, self._proc):
            send(each, number, self._proc)
        with contextlib.suppress(OSError):
            os.kill(self._pid, number)


def receivers(
    pid: int, known: dict[int, Process], number: int, proc: str = "/proc", depth: int = _MAX_DEPTH
) -> list[Process]:
    """Return the receivers of a signal to `pid`: itself, unless it is a waiting shell."""
    process = known.get(pid)
    if process is None or process.state in "ZX":
        return []
    # A shell whose status cannot be read gets the signal itself.
    if depth == 0 or process.name not in SHELLS or catches(pid, number, proc, unknown=True):
        return [process]
    children = [each for each in known.values() if each.ppid == pid and each.state not in "ZX"]
    outputs = {_pipe(each.pid, fd, proc) for each in children for fd in (1, 2)} - {None}
    sources = [each for each in children if _pipe(each.pid, 0, proc) not in outputs]
    found = [one for each in sources for one in receivers(each.pid, known, number, proc, depth - 1)]
    return found or [process]


def _pipe(pid: int, fd: int, proc: str) -> str | None:
    try:
        target = os.readlink(f"{proc}/{pid}/fd/{fd}")
    except OSError:
        return None
    return target if target.startswith("pipe:") else None


_AFTER_RANKS_SECONDS = 10.0  # torchrun needs some time to exit by itself
_KILL_AGAIN_SECONDS = 0.5


class Stopping:
    """Stops the trainer: a signal, a grace period, then SIGKILL for all. Times are monotonic.

    SIGTERM goes to the ranks first, so that they can save: with `--exit-signal-handler` Megatron
    saves at its next step and exits, while torchrun would kill the ranks after 30 seconds. A rank
    without such a handler dies at once; torchrun then gets SIGTERM too, or it would start new
    ranks.
    """

    def __init__(self, pid: int, tree: Tree) -> None:
        self._pid, self._tree = pid, tree
        self.first: ControlRequest | None = None
        self.kinds: set[str] = set()
        self.kill_at: float | None = None
        self._ranks: list[Process] = []
        self._ranks_gone_at: float | None = None
        self.has_killed = False

    def request(self, request: ControlRequest, now: float) -> None:
        """Start stopping. The first request is the reason; later ones can only shorten the wait."""
        self.note(request, now)
        if request.kind == FENCE:  # after SIGTERM it might save over the newer attempt
            self.kill_at = now
        elif request.with_save and not self._ranks:
            self._ranks = self._tree.ranks()
            if not any([send(each, signal.SIGTERM) for each in self._ranks]):
                self._terminate_child()
        elif not request.with_save:
            self._terminate_child()

    def note(self, request: ControlRequest, now: float) -> None:
        """Record a request whose signal has been sent already."""
        self.first = self.first or request
        self.kinds.add(request.kind)
        if request.grace_seconds is not None:
            until = now + request.grace_seconds
            self.kill_at = until if self.kill_at is None else min(self.kill_at, until)

    def due_in(self, now: float) -> float:
        """Return the seconds until `tick` has something to do."""
        if self.kill_at is not None and now >= self.kill_at:
            return _KILL_AGAIN_SECONDS
        waits = [1.0]
        if self.kill_at is not None:
            waits.append(self.kill_at - now)
        if self._ranks:
            waits.append(0.2)
        return max(min(waits), 0.0)

    def tick(self, now: float) -> None:
        if self.kill_at is not None and now >= self.kill_at:
            self.has_killed = True
            self._tree.kill()
            self.kill_at = now + _KILL_AGAIN_SECONDS
        elif self._ranks:
            self._follow_ranks(now)

    def _follow_ranks(self, now: float) -> None:
        ours = {(each.pid, each.started) for each in self._ranks}
        alive = {(each.pid, each.started) for each in self._tree.ranks()}
        if ours & alive:
            return
        self._ranks_gone_at = self._ranks_gone_at or now
        if alive or now - self._ranks_gone_at >= _AFTER_RANKS_SECONDS:
            self._ranks = []
            self._terminate_child()

    def _terminate_child(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self._pid, signal.SIGTERM)


_FROM_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)
LEFTOVER_SECONDS = 5.0
_FLUSH_SECONDS = 2.0
_LOOK_SECONDS = 0.1
_WORKING_SHARE = 0.2  # of a core: training uses more, an idle server less


class Supervisor:
    """Runs one child to its end.

    `grace`: seconds from a termination signal to SIGKILL; None: never.
    """

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        signals: Signals,
        requests: RequestQueue,
        reaper: Reaper,
        tree: Tree,
        grace: float | None,
        each_round: Callable[[], None],
        attempt: int | None = None,
    ) -> None:
        self._child, self._signals, self._requests = child, signals, requests
        self._reaper, self._tree, self._grace = reaper, tree, grace
        self._each_round, self._attempt = each_round, attempt
        self.stopping = Stopping(child.pid, tree)
        self._ending = EndingSignal(child.pid)
        self._request: ControlRequest | None = None
        self._flush_until: float | None = None
        reaper.watch(child)

    @property
    def stop_request(self) -> str | None:
        """The first request that came before the child had ended."""
        return self._request.text if self._request is not None else None

    @property
    def wants_restart(self) -> bool:
        """Whether only restarts were requested; a stop overrides them."""
        return self.stopping.kinds == {RESTART}

    def run(self) -> None:
        while self._child.returncode is None:
            for number in self._signals.wait(self.stopping.due_in(time.monotonic())):
                self._on_signal(number)
            for request in self._requests.take(self._attempt):
                self.stopping.request(request, time.monotonic())
            self._reaper.reap()
            if self._child.returncode is None:
                self.stopping.tick(time.monotonic())
                self._ending.tick(time.monotonic())
            self._request = self.stopping.first
            self._each_round()

    def end_leftovers(self) -> None:
        """End the processes that the child left behind, within a time limit."""
        if not self._tree.processes():
            return
        first = self.stopping.first
        is_late = self.stopping.has_killed or (first is not None and first.kind == FENCE)
        for rank in self._tree.ranks():
            # Without their launcher the ranks no longer act as a group: SIGTERM might start a save
            # that is cut off.
            send(rank, signal.SIGKILL)
        if not is_late:
            self._tree.signal(signal.SIGTERM)
        kill_at = time.monotonic() + (0.0 if is_late else LEFTOVER_SECONDS)
        until = kill_at + LEFTOVER_SECONDS
        while self._tree.processes() and time.monotonic() < until:
            if time.monotonic() >= kill_at:
                self._tree.kill()
            self._drain(0.05)
            self._reaper.reap()

    def wait_for_leftovers(self, seconds: float) -> bool:
        """Wait for the leftovers to exit by themselves; return whether some still run.

        Stops waiting after `seconds`, or as soon as a stop is requested.
        """
        until = time.monotonic() + seconds
        while self._tree.processes():
            if self.stopping.first is not None or time.monotonic() >= until:
                return True
            self._drain(min(_LOOK_SECONDS, seconds))
            self._reaper.reap()
        return False

    def leftovers_train(self, pace: Pace, seconds: float) -> bool:
        """Whether a leftover prints another iteration within this time, or at least uses CPU."""
        before, began = pace.look(), time.monotonic()
        used = self._cpu_seconds()
        while self.wait_for_leftovers(_LOOK_SECONDS) and self.stopping.first is None:
            if pace.look() != before:
                return True
            if time.monotonic() - began >= seconds:
                return self._worked_since(used) >= _WORKING_SHARE * seconds
        return False

    def _cpu_seconds(self) -> dict[tuple[int, int], float]:
        return {(each.pid, each.started): each.cpu_seconds for each in self._tree.processes()}

    def _worked_since(self, before: dict[tuple[int, int], float]) -> float:
        return sum(now - before.get(key, now) for key, now in self._cpu_seconds().items())

    def gives_up_output(self) -> bool:
        """Whether to drop the remaining output because its reader does not take it.

        Without mwatch the trainer would block indefinitely; the wrapper does too, until a stop is
        requested.
        """
        self._drain(0.0)
        now = time.monotonic()
        if self._flush_until is None and self.stopping.first is not None:
            self._flush_until = now + _FLUSH_SECONDS
        return self._flush_until is not None and now >= self._flush_until

    def _drain(self, seconds: float) -> None:
        """Record signals and requests that arrive after the child's exit: they cancel a restart."""
        for number in self._signals.wait(seconds):
            if number in ENDING:
                self.stopping.note(ControlRequest(SIGNAL, name_of(number), None), time.monotonic())
        for request in self._requests.take(self._attempt):
            self.stopping.note(request, time.monotonic())

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        if number == signal.SIGTSTP:
            self._pause()
            return
        self._forward(number)
        if number in ENDING:
            request = ControlRequest(SIGNAL, name_of(number), self._grace)
            self.stopping.note(request, time.monotonic())

    def _forward(self, number: int) -> None:
        with contextlib.suppress(OSError):
            if number in _FROM_KEYBOARD and is_from_terminal():
                os.killpg(self._child.pid, number)
            elif number in ENDING:
                self._ending.send(number)
            else:
                os.kill(self._child.pid, number)

    def _pause(self) -> None:
        """Stop on Ctrl-Z; the terminal's signal does not reach the child's session."""
        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)  # continues here after SIGCONT

        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, signal.SIGCONT)
