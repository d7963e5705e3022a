# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The loop of the wrapper while a child runs: signals on to it, asks, the kill, the reaping.

It does nothing else and waits for nothing else: disk, sockets and the checkpoint folder are looked
at by threads, which hand over what they want as an `Ask`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import Callable

from mwatch_trainer.asks import FENCE, RESTART, SIGNAL, Ask, Asks
from mwatch_trainer.reaper import Reaper
from mwatch_trainer.shells import EndingSignal
from mwatch_trainer.signals import ENDING, Signals, is_from_terminal, name_of
from mwatch_trainer.stopping import Stopping
from mwatch_trainer.tree import Tree, send

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
        self._asked: Ask | None = None
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
                self.stopping.note(Ask(SIGNAL, name_of(number), None), time.monotonic())
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
            ask = Ask(SIGNAL, name_of(number), self._grace)
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
