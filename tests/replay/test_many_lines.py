# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A recording that is played many lines at a time ends as one that is played line by line: the
same state to the last bit, the same looks, the same words."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mwatch.engine.engine import Engine
from mwatch.model.observation import Observed
from mwatch.model.step import PlacedLines
from mwatch.parse.fast_path.run import in_pieces
from mwatch.parse.reader import Reader, in_order
from mwatch.replay.event_times import EventTimestamper, Placed
from mwatch.replay.player import Player
from mwatch.report.recorder import ReportRecorder
from mwatch.report.series import Bucket, ValueRange
from support.builders.events import grammar, megatron_line
from support.builders.job import entries
from support.runs.recorded import START, RunLog, falling

NEAR = START.timestamp()
ELAPSED = "elapsed time per iteration (ms)"
SKIPPED = "number of skipped iterations"


class CountingEngine(Engine):
    told = 0

    def observe(self, observed: Observed) -> None:
        self.told += 1
        super().observe(observed)


def placed(text: str, chunk: int, *, together: bool) -> list[Placed]:
    reader, moments = (
        Reader(grammar(faults=True), "trainer.log"),
        EventTimestamper("pod-0", near=NEAR),
    )
    data = text.encode()
    found: list[Placed] = []
    for start in range(0, len(data), chunk):
        piece = data[start : start + chunk]
        if together:
            found += moments.observe_pieces(in_pieces(reader.batches(piece)))
        else:
            found += moments.observe(in_order(reader.feed(piece)))
    found += moments.observe(in_order(reader.close()))
    return [*found, *moments.rest()]


def played(text: str, chunk: int = 1 << 17, *, together: bool) -> Player:
    engine = CountingEngine("run", entries())
    player = Player(engine, ReportRecorder(engine, "replay"))
    player.play(placed(text, chunk, together=together))
    player.finish()
    return player


def end_of(player: Player) -> str:
    engine, concluded = player.engine, player.recorder.conclusions
    known = (player.looks, player.at, concluded._looks, concluded.actions, player.last)
    watched = (vars(player._screen), vars(player._gaps))
    kept = (engine.job, list(engine.incidents), engine.record, player.recorder.timeline.entries)
    return repr((known, watched, kept, *curves_of(player)))


def curves_of(player: Player) -> tuple[object, ...]:
    """What a page draws; the last digits of a mean depend on the order of the sum."""
    report = player.recorder.report()
    rounded = [
        [
            each._replace(mean=float(f"{each.mean:.9g}")) if isinstance(each, ValueRange) else each
            for each in (getattr(bucket, name) for name in Bucket.__slots__)
        ]
        for bucket in report.series
    ]
    return rounded, report.phases, report.validations


class AnyRun:
    """A run that is mostly dull, with anything now and then."""

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        self.digits = chance.choice(["", "", ".%f"])
        self.is_stamped = chance.random() < 0.85
        self.log = RunLog(interval=chance.choice([1, 1, 1, 5]), total=chance.choice([400, 9000]))
        self.seconds = chance.choice([0.05, 0.4, 1.0, 7.0])
        self.drift = chance.choice([1.0, 1.0, 1.03, 0.98, 1.4])
        self.spare_loss = chance.choice(["", "", " z_loss: {:.6E} |"])
        self.batch, self.scale, self.done = 32, 65536.0, 0

    def text(self) -> str:
        self.log.start(load=self.chance.choice([None, None, 300]))
        turns: list[Callable[[], object]] = [
            self.slow, self.stall, self.save, self.evaluate, self.skip, self.nan, self.resize,
            self.restart, self.set_back, self.chatter, self.spike, self.fall_silent,
        ]  # fmt: skip
        for _ in range(self.chance.randint(1, 5)):
            self.steps(self.chance.choice([3, 40, 150]))
            self.chance.choice(turns)()
        self.steps(60)
        return str(self.log)

    def steps(self, count: int, factor: float = 1.0, **change: str | None) -> None:
        for _ in range(count):
            self.step(factor, **change)

    def step(self, factor: float = 1.0, loss: str | None = None, **change: str | None) -> None:
        log, chance = self.log, self.chance
        self.done += log.interval
        took = self.seconds * factor * chance.lognormvariate(0.0, 0.03)
        log.wait(took * log.interval)
        mean = falling(self.done) * (1 + 0.02 * chance.random())
        losses = f" lm loss: {mean:.6E} |{self.spare_loss.format(mean / 7)}"
        values: dict[str, str | None] = {
            ELAPSED: f"{took * 1000 * self.drift:.1f}",
            "grad norm": f"{0.3 + 0.3 * chance.random() ** 3:.3f}",
            "loss scale": f"{self.scale:.1f}",
            "global batch size": f"{self.batch:5d}",
        }
        stamp = (START + timedelta(seconds=log.at)).strftime(f"%Y-%m-%d %H:%M:%S{self.digits}")
        named = {key.replace("_", " "): value for key, value in change.items()}
        log.say(megatron_line(self.done, log.total, stamp=stamp if self.is_stamped else None,
                              losses=losses if loss is None else loss,
                              change=values | named))  # fmt: skip

    def slow(self) -> None:
        self.steps(self.chance.randint(1, 60), self.chance.choice([1.2, 1.6, 4.0]))

    def stall(self) -> None:
        self.step(1 + self.chance.choice([3.0, 20.0]) / self.seconds)

    def fall_silent(self) -> None:
        self.log.wait(self.chance.choice([2.0, 40.0, 4000.0]))

    def save(self) -> None:
        self.log.save(self.done, self.chance.choice([0.1, 5.0, 90.0]))

    def evaluate(self) -> None:
        self.log.wait(3.0).say(
            f" validation loss at iteration {self.done} | lm loss value: 2.1E+00 | "
            "lm loss PPL: 8.2E+00 | "
        )

    def skip(self) -> None:
        self.scale /= 2
        self.steps(self.chance.choice([1, 9]), number_of_skipped_iterations="  1")

    def nan(self) -> None:
        for _ in range(self.chance.choice([1, 30])):
            self.step(loss="", grad_norm="nan")

    def spike(self) -> None:
        for _ in range(self.chance.choice([1, 20])):
            self.step(loss=" lm loss: 9.900000E+00 |", grad_norm="77.000")

    def resize(self) -> None:
        self.batch += 32

    def restart(self) -> None:
        self.log.killed().wait(30.0).start(load=max(1, self.done - 20))
        self.done = max(1, self.done - 20)

    def set_back(self) -> None:
        self.log.wait(self.chance.choice([-3600.0, -5.0, 3600.0]))

    def chatter(self) -> None:
        for _ in range(40):
            self.log.say("WARNING: something on another rank")
            self.step()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from([1 << 17, 20_000, 3000]))
def test_many_lines_at_once_are_the_same_as_each_of_them(seed: int, chunk: int) -> None:
    text = AnyRun(seed).text()
    assert end_of(played(text, chunk, together=True)) == end_of(played(text, chunk, together=False))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from([1 << 17, 3000]))
def test_each_line_has_the_same_moment(seed: int, chunk: int) -> None:
    text = AnyRun(seed).text()
    together: list[Placed] = []
    for each in placed(text, chunk, together=True):
        if isinstance(each, PlacedLines):
            together += map(Observed, each.ats, [each.stream] * len(each.ats), each.lines.events)
        else:
            together.append(each)
    assert repr(together) == repr(placed(text, chunk, together=False))


def dearer_than_time() -> RunLog:
    """Lines tell of more time than passes, until as much is owed as ever may be."""
    return RunLog(total=9000).start().steps(1, 400, 7.0, change={ELAPSED: "7400.0"})


def of_unknown_interval() -> RunLog:
    return RunLog(interval=5, total=9000).steps(1, 1500)


def skipping() -> RunLog:
    """Every other step, for so long that it is looked at ever more seldom."""
    log = RunLog(total=9000).start()
    for first in range(1, 2000, 2):
        log.steps(first, first, 1.5).steps(first + 1, first + 1, 1.5, change={SKIPPED: "  1"})
    return log


def of_falling_scale() -> RunLog:
    log = RunLog(total=9000).start().steps(1, 200, change={"loss scale": "65536.0"})
    return log.steps(201, 300, change={"loss scale": "32768.0"})


def of_infinite_loss() -> RunLog:
    log = RunLog(total=9000).start().steps(1, 200)
    return log.steps(201, 230, loss=" lm loss: INF |").steps(231, 300)


@pytest.mark.parametrize(
    "run", [dearer_than_time, of_unknown_interval, skipping, of_falling_scale, of_infinite_loss]
)
def test_an_odd_run_ends_the_same(run: Callable[[], RunLog]) -> None:
    text = str(run())
    assert end_of(played(text, together=True)) == end_of(played(text, together=False))


@pytest.mark.parametrize("drift", [0.0, 30.0])
def test_of_a_dull_run_hardly_a_line_is_taken_alone(drift: float) -> None:
    log = RunLog(total=9000).start()
    log.steps(1, 4000, 0.5, change={ELAPSED: f"{500.0 + drift:.1f}"})
    player = played(str(log), together=True)
    engine = player.engine
    assert isinstance(engine, CountingEngine)
    assert engine.told < 600
    assert engine.job.attempt.iteration == 4000
