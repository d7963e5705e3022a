# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The loop of the wrapper while a child runs: signals on to it, asks, the kill, the reaping.

It does nothing else and waits for nothing else: disk, sockets and the checkpoint folder are looked
at by threads, which hand over what they want as an `Ask`.

An ending signal for a command that is a shell goes to what the shell is waiting for.

| the shell | who gets the signal |
| --- | --- |
| waits for a program | the program: the shell would die of it at once, and the trainer unsaved |
| has a trap for it | the shell, as without us |
| runs nothing | the shell |
| waits for `trainer \\| tee` | the trainer: `tee` ends by itself when the trainer has |

Where the shell goes on for a while after that (a loop that starts training again), it gets the
signal too. What cannot be told apart: a helper that the script runs beside the trainer gets it.

How the trainer is brought to its end: asked, given time, and then killed as a whole.

With a save wanted the ranks themselves get SIGTERM: Megatron with `--exit-signal-handler` saves at
its next step and leaves, and torchrun, asked instead, would kill them after 30 seconds. A rank
without such a handler dies of it at once; then torchrun is asked too, or it would start new ones.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import Callable

from mwatch_trainer.control_requests import FENCE, RESTART, SIGNAL, Asks, ControlRequest
from mwatch_trainer.processes import proc as processes
from mwatch_trainer.processes.proc import Process, Tree, send
from mwatch_trainer.processes.reaper import Reaper
from mwatch_trainer.processes.signals import ENDING, Signals, is_from_terminal, name_of

SHELLS = ("bash", "sh", "dash", "ash", "busybox", "zsh", "ksh")
AFTERWARDS_SECONDS = 5.0
"""For what a script does after training: its last words, a copy of the log."""
_MAX_DEPTH = 16


class EndingSignal:
    """Of one child. Time is monotonic and comes in."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self._pid, self._proc = pid, proc
        self._number: int | None = None
        self._reported: list[Process] = []
        self._gone_at: float | None = None

    def send(self, number: int) -> None:
        """Raises nothing: a child that is gone needs no signal."""
        known = processes.everything(self._proc)
        reported = behind(self._pid, known, number, self._proc)
        if not reported or reported[0].pid == self._pid:
            with contextlib.suppress(OSError):
                os.kill(self._pid, number)
            return
        for each in reported:
            send(each, number, self._proc)
        self._number, self._reported, self._gone_at = number, reported, None

    def tick(self, now: float) -> None:
        """After the trainer: a shell that does not leave is told to."""
        if self._number is None or any(self._is_there(each) for each in self._reported):
            return
        self._gone_at = now if self._gone_at is None else self._gone_at
        if now - self._gone_at < AFTERWARDS_SECONDS:
            return
        number, self._number = self._number, None
        known = processes.everything(self._proc)
        for each in behind(self._pid, known, number, self._proc):
            send(each, number, self._proc)
        with contextlib.suppress(OSError):
            os.kill(self._pid, number)

    def _is_there(self, process: Process) -> bool:
        now = processes.read(process.pid, self._proc)
        return now is not None and now.started == process.started and now.state not in "ZX"


def behind(pid: int, known: dict[int, Process], number: int, proc: str = "/proc") -> list[Process]:
    """Those that a signal for this process is for; itself, if it is no shell that waits."""
    return _behind(pid, known, number, proc, _MAX_DEPTH)


def _behind(
    pid: int, known: dict[int, Process], number: int, proc: str, depth: int
) -> list[Process]:
    process = known.get(pid)
    if process is None or process.state in "ZX":
        return []
    if depth == 0 or process.name not in SHELLS or _catches(pid, number, proc):
        return [process]
    children = [each for each in known.values() if each.ppid == pid and each.state not in "ZX"]
    outputs = {_pipe(each.pid, fd, proc) for each in children for fd in (1, 2)} - {None}
    sources = [each for each in children if _pipe(each.pid, 0, proc) not in outputs]
    found = [one for each in sources for one in _behind(each.pid, known, number, proc, depth - 1)]
    return found or [process]


def _catches(pid: int, number: int, proc: str) -> bool:
    """Whether it has a handler of its own: a shell has one for a trap."""
    try:
        with open(f"{proc}/{pid}/status", encoding="ascii", errors="replace") as file:
            masks = [line.split()[1] for line in file if line.startswith("SigCgt:")]
        return bool(masks) and bool(int(masks[0], 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError):
        return True  # not ours to see: it is asked itself


def _pipe(pid: int, fd: int, proc: str) -> str | None:
    try:
        target = os.readlink(f"{proc}/{pid}/fd/{fd}")
    except OSError:
        return None
    return target if target.startswith("pipe:") else None


_AFTER_RANKS_SECONDS = 10.0  # torchrun takes some to leave by itself
_KILL_AGAIN_SECONDS = 0.5


class Stopping:
    """Of one child. Time is monotonic and comes in."""

    def __init__(self, pid: int, tree: Tree) -> None:
        self._pid, self._tree = pid, tree
        self.first: ControlRequest | None = None
        self.kinds: set[str] = set()
        self.kill_at: float | None = None
        self._ranks: list[Process] = []
        self._ranks_gone_at: float | None = None
        self.has_killed = False

    def ask(self, ask: ControlRequest, now: float) -> None:
        """The first one is the reason; a later one can only make it quicker."""
        self.note(ask, now)
        if ask.kind == FENCE:  # SIGTERM might make it save, over the checkpoints of the newer one
            self.kill_at = now
        elif ask.with_save and not self._ranks:
            self._ranks = self._tree.ranks()
            self._signal_ranks_or_child()
        elif not ask.with_save:
            self._signal_child(signal.SIGTERM)

    def note(self, ask: ControlRequest, now: float) -> None:
        """Of one that has been signalled already."""
        self.first = self.first or ask
        self.kinds.add(ask.kind)
        if ask.grace_seconds is not None:
            until = now + ask.grace_seconds
            self.kill_at = until if self.kill_at is None else min(self.kill_at, until)

    def due_in(self, now: float) -> float:
        """Seconds until `tick` has something to do."""
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
            self._signal_child(signal.SIGTERM)

    def _signal_ranks_or_child(self) -> None:
        if not any([send(each, signal.SIGTERM) for each in self._ranks]):
            self._signal_child(signal.SIGTERM)

    def _signal_child(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.kill(self._pid, number)


_FROM_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)
LEFTOVER_SECONDS = 5.0
_LAST_WORDS_SECONDS = 2.0


class Supervision:
    """Of one child. `grace`: seconds from an ending signal to the kill; None: no kill by us."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        signals: Signals,
        asks: Asks,
        reaper: Reaper,
        tree: Tree,
        grace: float | None,
        each_round: Callable[[], None],
        attempt: int | None = None,
    ) -> None:
        self._child, self._signals, self._asks = child, signals, asks
        self._reaper, self._tree, self._grace = reaper, tree, grace
        self._each_round, self._attempt = each_round, attempt
        self.stopping = Stopping(child.pid, tree)
        self._ending = EndingSignal(child.pid)
        self._asked: ControlRequest | None = None
        self._hurry_at: float | None = None
        reaper.watch(child)

    @property
    def was_asked(self) -> str | None:
        """Before the child had ended."""
        return self._asked.text if self._asked is not None else None

    @property
    def wants_restart(self) -> bool:
        """Whoever asks for an end meanwhile gets it."""
        return self.stopping.kinds == {RESTART}

    def run(self) -> None:
        """Until the child has ended."""
        while self._child.returncode is None:
            for number in self._signals.wait(self.stopping.due_in(time.monotonic())):
                self._on_signal(number)
            for ask in self._asks.take(self._attempt):
                self.stopping.ask(ask, time.monotonic())
            self._reaper.reap()
            if self._child.returncode is None:
                self.stopping.tick(time.monotonic())
                self._ending.tick(time.monotonic())
            self._asked = self.stopping.first
            self._each_round()

    def clear(self) -> int:
        """Ends what the child left behind, within a bound; how many processes that were."""
        left = len(self._tree.processes())
        if not left:
            return 0
        first = self.stopping.first
        is_late = self.stopping.has_killed or (first is not None and first.kind == FENCE)
        for rank in self._tree.ranks():
            # Without their launcher they are no gang; asked, they might begin a save and be cut.
            send(rank, signal.SIGKILL)
        if not is_late:
            self._tree.signal(signal.SIGTERM)
        kill_at = time.monotonic() + (0.0 if is_late else LEFTOVER_SECONDS)
        until = kill_at + LEFTOVER_SECONDS
        while self._tree.processes() and time.monotonic() < until:
            if time.monotonic() >= kill_at:
                self._tree.kill()
            self._notice(0.05)
            self._reaper.reap()
        return left

    def is_hurried(self) -> bool:
        """Whether the child's last words, which its sink does not take, are to be given up.

        Without mwatch it would wait there as long as it takes; so do we, until an end is asked.
        """
        self._notice(0.0)
        now = time.monotonic()
        if self._hurry_at is None and self.stopping.first is not None:
            self._hurry_at = now + _LAST_WORDS_SECONDS
        return self._hurry_at is not None and now >= self._hurry_at

    def _notice(self, seconds: float) -> None:
        """After the child's end: nobody is left to pass a signal on to, but a restart is off."""
        for number in self._signals.wait(seconds):
            if number in ENDING:
                self.stopping.note(ControlRequest(SIGNAL, name_of(number), None), time.monotonic())
        for ask in self._asks.take(self._attempt):
            self.stopping.note(ask, time.monotonic())

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        if number == signal.SIGTSTP:
            self._pause()
            return
        self._forward(number)
        if number in ENDING:
            ask = ControlRequest(SIGNAL, name_of(number), self._grace)
            self.stopping.note(ask, time.monotonic())

    def _forward(self, number: int) -> None:
        with contextlib.suppress(OSError):
            if number in _FROM_KEYBOARD and is_from_terminal():
                os.killpg(self._child.pid, number)
            elif number in ENDING:
                self._ending.send(number)
            else:
                os.kill(self._child.pid, number)

    def _pause(self) -> None:
        """Ctrl-Z: the child is in another session, where the terminal's stop does not reach it."""
        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)  # it goes on here when the shell says so
        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, signal.SIGCONT)
