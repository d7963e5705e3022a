# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the steps of one preparation in act share."""

from __future__ import annotations

import uuid
from typing import Any, Callable, Mapping

from mwatch_trainer import claim as claims
from mwatch_trainer import timeline as timelines
from mwatch_trainer.exit_table import GIVE_UP, NOT_AGREED
from mwatch_trainer.join import wait
from mwatch_trainer.plan import Clock, Options, Plan
from mwatch_trainer.run_facts import Run


class Refused(Exception):
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
        run: Run,
        environ: Mapping[str, str],
        options: Options,
        last: Mapping[str, Any],
        clock: Clock,
    ) -> None:
        self.run = run
        self.environ = environ
        self.options = options
        self.clock = clock
        self.last = started_before(last)
        self.number = self.last + 1
        self.changes: list[str] = list(run.notes)
        self.timeline = timelines.Timeline()
        self.top = 0
        """The highest number that anybody took, when this preparation began."""
        self.word = uuid.uuid4().hex
        """By which the others know this very wrapper."""

    def read_timeline(self, save: str) -> None:
        try:
            self.timeline, self.top = claims.current(save)
        except timelines.Broken as error:
            path = timelines.path_of(save)
            why = f"{path} {error}; which checkpoints are bad cannot be known"
            raise Refused(why, GIVE_UP) from None
        except OSError as error:
            raise Refused(f"{save} cannot be looked into: {error}", NOT_AGREED) from None

    def wait(self, is_done: Callable[[], bool], bound: float | None = None) -> bool:
        seconds = self.options.wait_seconds if bound is None else bound
        return wait(is_done, seconds, self.clock.monotonic, self.clock.sleep)

    def answer(self, **more: Any) -> Plan:
        place = self.run.place
        given = Plan(
            self.number,
            self.run.command,
            {},
            tuple(self.changes),
            save=self.run.save,
            node_rank=place.node_rank or 0,
            nnodes=place.nnodes,
        )
        return given._replace(**more)
