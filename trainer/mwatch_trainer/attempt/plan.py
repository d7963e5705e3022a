# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The words of a preparation: what it is told, and what it answers.

What the steps of one preparation in act share.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, Callable, Mapping, NamedTuple

from mwatch_trainer import contract
from mwatch_trainer.attempt import fencing as claims
from mwatch_trainer.attempt.handshake import wait
from mwatch_trainer.checkpoint import timeline as timelines
from mwatch_trainer.command.run_facts import RunFacts
from mwatch_trainer.reporting import GIVE_UP, NOT_AGREED


class WaitClock(NamedTuple):
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


REAL_TIME = WaitClock()


class AttemptOptions(NamedTuple):
    mode: str = contract.OBSERVE
    directory: str | None = None
    """`$MWATCH_DIR`; None where there is no volume."""
    wait_seconds: float = 600.0
    """The longest wait for the job's other wrappers, and again for a chosen checkpoint to be seen
    here: a caching file system may show each of three files two minutes late."""
    controller_seconds: float = 60.0
    """The longest wait for the controller. Then the job goes on without it."""
    with_probe: bool = True


class AttemptPlan(NamedTuple):
    number: int
    argv: tuple[str, ...]
    """To be run; in observe byte-equal to what was given."""
    env: dict[str, str]
    """The whole environment of the child."""
    changes: tuple[str, ...] = ()
    """What was changed; in observe, what would have been."""
    resume_from: int | None = None
    resume_reason: str = ""
    save: str | None = None
    not_before: float | None = None
    """Wall time; the start waits for it."""
    refused: str | None = None
    """Why this wrapper must not start; then `exit_code` is what it exits with."""
    exit_code: int | None = None
    node_rank: int = 0
    nnodes: int = 1
    is_permanent: bool = False
    """With `refused`: no other start will do better (`final` in attempt.json)."""


class StartRefused(Exception):
    """This wrapper must not start; with the code that it exits with."""

    def __init__(self, why: str, code: int) -> None:
        super().__init__(why)
        self.code = code


def started_before(last: Mapping[str, Any]) -> int:
    """The attempt that this volume saw running last, by its `attempt.json`; 0 for none."""
    number = last.get("attempt")
    if not isinstance(number, int) or isinstance(number, bool):
        return 0
    return max(0, number if last.get("started_at") is not None else number - 1)


class Preparation:
    def __init__(
        self,
        run: RunFacts,
        environ: Mapping[str, str],
        options: AttemptOptions,
        last: Mapping[str, Any],
        clock: WaitClock,
    ) -> None:
        self.run = run
        self.environ = environ
        self.options = options
        self.clock = clock
        self.last = started_before(last)
        self.number = self.last + 1
        self.changes: list[str] = list(run.notes)
        self.timeline = timelines.TimelineFile()
        self.top = 0
        """The highest number that anybody took, when this preparation began."""
        self.word = uuid.uuid4().hex
        """By which the others know this very wrapper."""

    def read_timeline(self, save: str) -> None:
        try:
            self.timeline, self.top = claims.current(save)
        except timelines.BrokenTimeline as error:
            path = timelines.path_of(save)
            why = f"{path} {error}; which checkpoints are bad cannot be known"
            raise StartRefused(why, GIVE_UP) from None
        except OSError as error:
            raise StartRefused(f"{save} cannot be looked into: {error}", NOT_AGREED) from None

    def wait(self, is_done: Callable[[], bool], bound: float | None = None) -> bool:
        seconds = self.options.wait_seconds if bound is None else bound
        return wait(is_done, seconds, self.clock.monotonic, self.clock.sleep)

    def answer(self, **more: Any) -> AttemptPlan:
        place = self.run.place
        given = AttemptPlan(
            self.number,
            self.run.command,
            {},
            tuple(self.changes),
            save=self.run.save,
            node_rank=place.node_rank or 0,
            nnodes=place.nnodes,
        )
        return given._replace(**more)
