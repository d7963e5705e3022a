# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The input, result and shared state of preparing an attempt."""

from __future__ import annotations

import time
import uuid
from typing import Any, Callable, Mapping, NamedTuple

from mwatch_trainer import contract
from mwatch_trainer.attempt import fencing
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
    directory: str | None = None  # `$MWATCH_DIR`; None: no volume
    wait_seconds: float = 600.0
    """For the other wrappers, and again for a chosen checkpoint to become visible here: a caching
    file system may show each of three files two minutes late."""
    controller_seconds: float = 60.0  # for the controller; then the job starts without it
    with_probe: bool = True


class AttemptPlan(NamedTuple):
    number: int
    argv: tuple[str, ...]  # in observe mode byte-equal to what was given
    env: dict[str, str]
    changes: tuple[str, ...] = ()  # what was changed; in observe mode, what would have been
    resume_from: int | None = None
    resume_reason: str = ""
    save: str | None = None
    not_before: float | None = None  # wall time at which to start
    refused: str | None = None  # why this wrapper must not start and exits with `exit_code`
    exit_code: int | None = None
    node_rank: int = 0
    nnodes: int = 1
    is_permanent: bool = False
    """With `refused`: another start cannot succeed (`final` in attempt.json)."""


class StartRefused(Exception):
    """This wrapper must not start and exits with `code`."""

    def __init__(self, why: str, code: int) -> None:
        super().__init__(why)
        self.code = code


def started_before(last: Mapping[str, Any]) -> int:
    """Return the last attempt started on this volume, by its `attempt.json`; 0: none."""
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
        self.highest = 0  # the highest number claimed when this preparation began
        self.nonce = uuid.uuid4().hex  # identifies this wrapper to the other nodes

    def read_timeline(self, save: str) -> None:
        try:
            self.timeline, self.highest = fencing.current(save)
        except timelines.BrokenTimeline as error:
            path = timelines.path_of(save)
            why = f"{path} {error}; which checkpoints are bad is unknown"
            raise StartRefused(why, GIVE_UP) from None
        except OSError as error:
            raise StartRefused(f"{save} cannot be read: {error}", NOT_AGREED) from None

    def wait(self, is_done: Callable[[], bool], bound: float | None = None) -> bool:
        seconds = self.options.wait_seconds if bound is None else bound
        return fencing.wait(is_done, seconds, self.clock.monotonic, self.clock.sleep)

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
