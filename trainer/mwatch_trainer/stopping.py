# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How the trainer is brought to its end: asked, given time, and then killed as a whole.

With a save wanted the ranks themselves get SIGTERM: Megatron with `--exit-signal-handler` saves at
its next step and leaves, and torchrun, asked instead, would kill them after 30 seconds. A rank
without such a handler dies of it at once; then torchrun is asked too, or it would start new ones.
"""

from __future__ import annotations

import contextlib
import os
import signal

from mwatch_trainer.asks import FENCE, Ask
from mwatch_trainer.processes import Process
from mwatch_trainer.tree import Tree, send

_AFTER_RANKS_SECONDS = 10.0  # torchrun takes some to leave by itself
_KILL_AGAIN_SECONDS = 0.5


class Stopping:
    """Of one child. Time is monotonic and comes in."""

    def __init__(self, pid: int, tree: Tree) -> None:
        self._pid, self._tree = pid, tree
        self.first: Ask | None = None
        self.kinds: set[str] = set()
        self.kill_at: float | None = None
        self._ranks: list[Process] = []
        self._ranks_gone_at: float | None = None
        self.has_killed = False

    def ask(self, ask: Ask, now: float) -> None:
        """The first one is the reason; a later one can only make it quicker."""
        self.note(ask, now)
        if ask.kind == FENCE:  # SIGTERM might make it save, over the checkpoints of the newer one
            self.kill_at = now
        elif ask.with_save and not self._ranks:
            self._ranks = self._tree.ranks()
            self._signal_ranks_or_child()
        elif not ask.with_save:
            self._signal_child(signal.SIGTERM)

    def note(self, ask: Ask, now: float) -> None:
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
