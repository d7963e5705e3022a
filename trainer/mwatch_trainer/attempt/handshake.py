# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How the wrappers of one job agree on an attempt over the checkpoint volume, without clocks.

Node 0 calls with a fresh word (`.mwatch/join/call.json`); each other node answers that call with
a fresh word of its own (`node-N.json`); node 0's claim in `timeline.json` names the call and the
words it heard. An answer to an older call is not heard, and a claim that does not name a node's
own word is not for it: neither side can take yesterday's files for today's. A call that a claim
has used is not answered, so a wrapper that comes late writes nothing. Where a controller answers,
it is told the words and tells them to node 0: should it die before all are answered, the claim
still names them.
"""

from __future__ import annotations

import os
import uuid
from typing import Any, Callable, Mapping

from mwatch_trainer import contract
from mwatch_trainer.checkpoint import timeline

FOLDER = "join"
CALL = "call.json"


def folder_of(save: str) -> str:
    return os.path.join(save, timeline.FOLDER, FOLDER)


class Caller:
    """Node 0."""

    def __init__(self, save: str, nnodes: int) -> None:
        self._folder = folder_of(save)
        self._others = range(1, nnodes)
        self.word = uuid.uuid4().hex

    def call(self) -> None:
        """Raises OSError."""
        os.makedirs(self._folder, exist_ok=True)
        contract.write_json(os.path.join(self._folder, CALL), {"call": self.word})

    def received(self) -> dict[str, str]:
        """The words of the nodes that answered this call, by their number."""
        words = {}
        for node in self._others:
            answer = contract.read_json(_answer_path(self._folder, node)) or {}
            word = answer.get("word")
            if answer.get("call") == self.word and isinstance(word, str):
                words[str(node)] = word
        return words

    def missing(self) -> list[int]:
        received = self.received()
        return [node for node in self._others if str(node) not in received]


class Answerer:
    """Any other node."""

    def __init__(self, save: str, node: int, word: str) -> None:
        self._save = save
        self._folder = folder_of(save)
        self._node = node
        self._answered: str | None = None
        self.word = word

    def named(self) -> Mapping[str, Any] | None:
        """The claim, once there is one that names this node's word. Writes nothing."""
        claim = self._claim() or {}
        return claim if self._names_us(claim) else None

    def look(self) -> Mapping[str, Any] | None:
        """As `named`; until then it answers a new call."""
        claim = self._claim()
        if claim is None:
            return None  # what it says may be that this call was used
        if self._names_us(claim):
            return claim
        call = (contract.read_json(os.path.join(self._folder, CALL)) or {}).get("call")
        if isinstance(call, str) and call not in (self._answered, claim.get("call")):
            answer = {"call": call, "word": self.word}
            contract.write_json(_answer_path(self._folder, self._node), answer)
            self._answered = call
        return None

    def _claim(self) -> dict[str, Any] | None:
        """None where it cannot be read; empty where there is none."""
        path = timeline.path_of(self._save)
        document = contract.read_json(path)
        if document is None and os.path.lexists(path):
            return None
        claim = (document or {}).get("claim")
        return claim if isinstance(claim, dict) else {}

    def _names_us(self, claim: Mapping[str, Any]) -> bool:
        received = claim.get("heard")
        return isinstance(received, dict) and received.get(str(self._node)) == self.word


def _answer_path(folder: str, node: int) -> str:
    return os.path.join(folder, f"node-{node}.json")


def wait(
    is_done: Callable[[], bool],
    bound: float,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
) -> bool:
    """False when the bound has passed. What raises OSError is tried again."""
    until = monotonic() + bound
    pause = 0.05
    while True:
        try:
            if is_done():
                return True
        except OSError:
            pass  # a network file system that is away for a moment
        if monotonic() >= until:
            return False
        sleep(min(pause, max(0.0, until - monotonic()) + 0.01))
        pause = min(2.0, pause * 1.5)
