# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One volume, watched: everything that can be seen of a wrapper and its trainer, as observations.

The order within one look matters: that an attempt began is told before what it printed, and that
its command ended only after its last line. Times that others wrote are brought to our own clock:
whoever sets the clock of the machine must not make an hour of silence.

The trainer's log as it grows: what was said, at the moment at which it was read.

A live reader knows better than a printed time when a line came. A block (a traceback) that
nobody continues for two seconds is taken as ended. Of a flood each look reads a part; who prints
more than is read for so long that the log is rotated away twice loses what lay between. Who comes
in the middle begins with the attempt that runs: its wrapper has noted where that begins, and what
earlier ones printed would be taken for attempts that follow it.

How much of the trainer's output never reached its log, as the wrapper counts it.

The wrapper is asked now and then over its socket; where it does not answer, the last count stands.
Its counts begin anew with each attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mwatch.model.event import Event
from mwatch.model.fault import CatalogueEntry
from mwatch.model.observation import AttemptStart, Beat, Observed, Source
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.model.snapshot.hardware import Gpu
from mwatch.model.snapshot.snapshot import RankFacts, SourceState
from mwatch.model.snapshot.wrapper import WrapperState
from mwatch.parse.grammar import Grammar
from mwatch.parse.reader import Reader, in_order
from mwatch.runtime.clock import Clock
from mwatch.sources.background import BackgroundCall, MonitoredSource, Read
from mwatch.sources.checkpoint_dir import CheckpointDir
from mwatch.sources.gpu.gpus import GpuSource, NvmlSource
from mwatch.sources.json_file import STALE_SECONDS
from mwatch.sources.log_tail import LogTail
from mwatch.sources.node_processes import NodeProcesses, ResourceUse
from mwatch.sources.probe import ProbeSource, RankReading
from mwatch.sources.wrapper_state import WrapperFile
from mwatch.watch.optional_sources import NOTHING_MORE, OptionalSources
from mwatch_trainer import contract
from mwatch_trainer.control.client import ask

_SETTLE_SECONDS = 2.0
_LOOK_SECONDS = 0.25
"""Of one look: a flood of output must not keep us from looking at anything else."""
_REST_SECONDS = 20.0
"""For all that is left at the end: the last words say why it ended."""


class LogFollower:
    def __init__(self, path: Path, grammar: Grammar, stream: str, clock: Clock) -> None:
        self._tail = LogTail(path)
        self._reader = Reader(grammar, path.name)
        self._stream = stream
        self._clock = clock
        self._grew_at: float | None = None
        self._is_settled = True
        self.bytes = 0
        self.lines = 0
        self._has_begun = False

    @property
    def file(self) -> int:
        """Which file is read: another number, another file."""
        return self._tail.file

    def read(self) -> Reading[tuple[Observed, ...]]:
        now = self._clock.now()
        events, error = self._read(now, _LOOK_SECONDS)
        is_quiet = self._grew_at is not None and now - self._grew_at > _SETTLE_SECONDS
        if is_quiet and not self._is_settled:
            events += self._settle()
        if error is not None and not events:
            return Failed(f"{self._tail.path.name}: {error.strerror or error}")
        if self._grew_at is None:
            return Absent("nothing has been printed yet")
        return Ok(self._at(now, events))

    def rest(self) -> tuple[Observed, ...]:
        """The command has ended: what is open is as long as it will be."""
        now = self._clock.now()
        events, _ = self._read(now, _REST_SECONDS)
        return self._at(now, events + self._settle())

    def close(self) -> None:
        self._tail.close()

    def _at(self, now: float, events: list[Event]) -> tuple[Observed, ...]:
        return tuple(Observed(now, self._stream, event) for event in events)

    def _read(self, now: float, seconds: float) -> tuple[list[Event], OSError | None]:
        """Until there is no more, or for so long; with what came before an error."""
        events: list[Event] = []
        until = time.monotonic() + seconds
        if not self._has_begun:
            self._begin()
        try:
            while True:
                poll = self._tail.poll()
                if self._tail.file and not self._has_begun:
                    self._has_begun, self._reader.lines = True, self._tail.skipped_lines
                if poll.restarted:
                    events += in_order(self._reader.restart())
                if not poll.data:
                    return events, None
                self._grew_at = now
                self._is_settled = False
                self.bytes += len(poll.data)
                self.lines += poll.data.count(b"\n")
                events += in_order(self._reader.feed(poll.data))
                if time.monotonic() > until:
                    return events, None
        except OSError as error:
            return events, error

    def _begin(self) -> None:
        """Each time until there is a log: the attempt may begin after us."""
        said = contract.read_json(str(self._tail.path.with_name(contract.ATTEMPT))) or {}
        place = said.get("log")
        place = place if isinstance(place, dict) else {}
        inode, offset = place.get("inode"), place.get("bytes")
        if type(inode) is int and type(offset) is int and offset > 0:
            self._tail.begin_at(inode, offset)

    def _settle(self) -> list[Event]:
        self._is_settled = True
        return in_order(self._reader.settle())


PERIOD_SECONDS = 30.0
_LIMIT_SECONDS = 5.0
_LOST = ("uncopied_bytes", "unwritten_bytes")


class WrapperCounts:
    def __init__(self, volume: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._volume = volume
        self._clock = clock
        self._next_at = clock() + PERIOD_SECONDS / 3
        self._call: BackgroundCall[Mapping[str, Any]] = BackgroundCall(
            "mwatch-counts", self._ask, limit_seconds=2 * _LIMIT_SECONDS, clock=clock
        )
        self.dropped: dict[str, int] = {}
        """Bytes, by source; empty: nobody has told yet."""

    def ask_where_due(self) -> None:
        """Never waits."""
        answer = self._call.take()
        if isinstance(answer, Ok):
            output = answer.value.get("output")
            counts = [output.get(name) for name in _LOST] if isinstance(output, dict) else []
            known = [each for each in counts if isinstance(each, int)]
            if known:
                self.dropped = {"log": sum(known)}
        if self._clock() >= self._next_at and self._call.start():
            self._next_at = self._clock() + PERIOD_SECONDS

    def _ask(self) -> Reading[Mapping[str, Any]]:
        return Ok(ask(self._volume, {"op": "status"}, _LIMIT_SECONDS))


_LOOK_NOW_SECONDS = 10.0


class VolumeCollector:
    def __init__(
        self,
        volume: Path,
        stream: str,
        grammar: Grammar,
        catalogue: Mapping[str, CatalogueEntry],
        clock: Clock,
        save: Path | None = None,
        *,
        node: str | None = None,
        more: OptionalSources = NOTHING_MORE,
    ) -> None:
        self.clock = clock
        self._volume = str(volume)
        self.stream = stream
        self._catalogue = catalogue
        self._log = LogFollower(volume / contract.LOG, grammar, stream, clock)
        self._sources = {"log": MonitoredSource("log", stream, self._log.read, Source.LOG)}
        self._wrapper = WrapperFile(self._volume, stream)
        self._wrapper_source = MonitoredSource("wrapper", stream, self._wrapper.read)
        self._last_look = clock.now()
        self._has_looked = False
        self.save: Path | None = None
        """Where the job saves, once that is known."""
        self.errors: list[Exception] = []
        """Sources that failed in a way nobody thought of, for whoever tells it."""
        self.folder: CheckpointDir | None = None
        self.more = more
        self._node = node
        self._nvml = NvmlSource()
        self._counts = WrapperCounts(self._volume)
        self._see_attempt()
        for name, read, sight in more.sources():
            self._add(name, read, sight)
        if save is not None:
            self._see_save(save)

    @property
    def wrapper(self) -> WrapperState | None:
        return self._wrapper.state

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self._gpus.gpus

    @property
    def log(self) -> LogFollower:
        return self._log

    @property
    def looked_at(self) -> float:
        """When `read` was last called."""
        return self._last_look

    @property
    def probes(self) -> tuple[RankReading, ...]:
        """The newest record of each rank."""
        return self._probe.ranks

    @property
    def sighted(self) -> Sequence[MonitoredSource]:
        return [self._wrapper_source, *self._sources.values()]

    @property
    def sources(self) -> dict[str, SourceState]:
        """With `nvml`: up while the GPUs are read by our own NVML, and not by the wrapper's."""
        known = {each.name: SourceState(each.is_up, each.read_at) for each in self.sighted}
        is_own = self._gpus.route == "nvml"
        known["nvml"] = SourceState(is_own, known["gpus"].read_at if is_own else None)
        return known

    @property
    def ranks(self) -> dict[int, RankFacts]:
        """What is known of each rank of this machine besides its progress."""
        use, seconds = self._processes.use, self._probe.seconds
        ranks = {each.beat.rank for each in self._probe.ranks} | set(use)
        return {
            rank: RankFacts(*use.get(rank, ResourceUse()))._replace(seconds=seconds.of(rank))
            for rank in ranks
        }

    @property
    def dropped(self) -> dict[str, int]:
        """Bytes of the log that the wrapper could not copy or write, once it was asked."""
        return self._counts.dropped

    def read(self) -> list[Observed]:
        """What is new, in the order in which it is to be told."""
        now = self.clock.now()
        told = [self._since_last_look(each, now) for each in self._look(self._wrapper_source, now)]
        starts = [each for each in told if isinstance(each.what, AttemptStart)]
        ends = [each for each in told if not isinstance(each.what, AttemptStart)]
        self._last_look = now
        self._has_looked = True
        if starts:
            self._see_attempt()
        state = self._wrapper.state
        if self.folder is None and state is not None and state.save is not None:
            self._see_save(Path(state.save))
        if ends:
            self.look_soon()
        seen = [each for source in self._sources.values() for each in self._look(source, now)]
        self._counts.ask_where_due()
        if ends:
            seen += self._log.rest()
        return [*starts, *(_of_now(each, now) for each in seen), *ends]

    def rest(self) -> list[Observed]:
        """The command has ended: its last words, and what it left in its save folder."""
        return [*self._log.rest(), *self.read(), *self.stored_now()]

    def look_soon(self) -> None:
        """From any thread: into the save folder, which is else looked into now and then."""
        if self.folder is not None:
            self.folder.poll_soon()

    def stored_now(self) -> tuple[Observed, ...]:
        """A fresh look into the save folder, before a checkpoint is chosen; waits for it."""
        if self.folder is None:
            return ()
        found = self.folder.read_now(_LOOK_NOW_SECONDS)
        return found.value if isinstance(found, Ok) else ()

    def close(self) -> None:
        self._log.close()
        self._nvml.close()

    def _look(self, source: MonitoredSource, now: float) -> list[Observed]:
        """What one source hides must not hide the others."""
        try:
            return source.poll(now)
        except Exception as error:
            self.errors.append(error)
            return []

    def _since_last_look(self, observed: Observed, now: float) -> Observed:
        """It was not there at the last look. What began before the first one began then: the
        time until we came is nobody's silence, and what was saved in it is of that attempt."""
        at, what = min(max(observed.at, self._last_look), now), observed.what
        if not self._has_looked and isinstance(what, AttemptStart) and observed.at < at:
            what = what._replace(late_seconds=at - observed.at)
        return observed._replace(at=at, what=what)

    def _see_attempt(self) -> None:
        """Nothing that was seen of processes survives an attempt."""
        processes = self._processes = NodeProcesses(self._volume, self.stream)
        self._gpus = GpuSource(
            self._volume, self.stream, self._catalogue,
            ranks=lambda: processes.ranks, node=self._node, nvml=self._nvml,
        )  # fmt: skip
        self._probe = ProbeSource(self._volume, self.stream, wall=self.clock.now)
        self._add("probe", self._beats, Source.PROBE)
        self._add("processes", processes.read, Source.PROCESS)
        self._add("gpus", self._gpus.read, Source.GPU)

    def _beats(self) -> Reading[tuple[Observed, ...]]:
        """Of this wrapper's attempt. The log tells when torchrun starts its workers anew, which
        opens an attempt that the wrapper does not count: so the number is left out."""
        state = self._wrapper.state
        if state is None:
            return Absent("no wrapper has started yet")
        match self._probe.read(state.attempt):
            case Ok(seen):
                return Ok(tuple(map(_uncounted, seen)))
            case other:
                return other

    def _see_save(self, save: Path) -> None:
        self.save = save
        self.folder = CheckpointDir(str(save), self.stream, wall=self.clock.now)
        self._add("checkpoints", self.folder.read, Source.CHECKPOINTS)

    def _add(self, name: str, read: Read, sight: Source | None) -> None:
        self._sources[name] = MonitoredSource(name, self.stream, read, sight)


def _of_now(observed: Observed, now: float) -> Observed:
    """A source gives nothing that is older than that, whatever its wall clock says. How old a
    record of a probe is, is known by a better clock."""
    oldest = observed.at if isinstance(observed.what, Beat) else now - STALE_SECONDS
    at = min(max(observed.at, oldest), now)
    return observed if at == observed.at else observed._replace(at=at)


def _uncounted(observed: Observed) -> Observed:
    beat = observed.what
    return (
        observed._replace(what=beat._replace(attempt=None)) if isinstance(beat, Beat) else observed
    )
