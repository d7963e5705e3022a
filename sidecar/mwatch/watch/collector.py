# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads everything that can be observed of a wrapper and its trainer.

The order within one read matters: the start of an attempt comes before what it printed, and its end
after its last line. Timestamps written by other processes are converted to this process's clock, so
that setting the machine's clock does not look like an hour of silence.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mwatch.engine.engine import Engine
from mwatch.model.cause import Cause
from mwatch.model.event import Event
from mwatch.model.fault import CatalogueEntry
from mwatch.model.observation import AttemptStart, Beat, Observed, Source
from mwatch.model.phase import JobPhase
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.model.snapshot.pod import FabricPort, Gpu, Nccl, WrapperState
from mwatch.model.snapshot.snapshot import RankFacts, SourceState
from mwatch.parse.grammar import Grammar
from mwatch.parse.ras import read_answer
from mwatch.parse.reader import Reader, in_order
from mwatch.runtime.clock import Clock
from mwatch.sources.background import BackgroundCall, MonitoredSource, Read
from mwatch.sources.checkpoint_dir import CheckpointDir
from mwatch.sources.gpu.gpus import GpuSource, NvmlSource
from mwatch.sources.json_file import STALE_SECONDS
from mwatch.sources.log_tail import LogTail
from mwatch.sources.nccl_client import address_of
from mwatch.sources.nccl_ras import NcclRas
from mwatch.sources.probe import ProbeSource, RankReading
from mwatch.sources.rdma import Rdma
from mwatch.sources.tensorboard import TensorboardEvents
from mwatch.sources.wrapper_files import (
    NodeProcesses,
    ResourceUse,
    UnwatchedCommand,
    WrapperFile,
)
from mwatch.watch.printed_lines import PrintedLines
from mwatch_trainer import contract
from mwatch_trainer.control.client import ask

_SETTLE_SECONDS = 2.0
_READ_SECONDS = 0.25
"""Time limit of one read: a flood of output must not delay the other sources."""
_REST_SECONDS = 20.0
"""Time limit to read the rest of the log at the end, which says why the command ended."""


class LogFollower:
    """Reads the trainer's log as it grows; an event is dated to when its line was read.

    A block (a traceback) that has not grown for two seconds is complete. If the log is rotated
    twice before it is read, the lines between are lost. A watcher that starts late begins with the
    current attempt, whose wrapper has recorded where its output starts in the log.
    """

    def __init__(self, path: Path, grammar: Grammar, stream: str, clock: Clock) -> None:
        self._tail = LogTail(path)
        self._reader = Reader(grammar, path.name)
        self.printed = PrintedLines(path.name)
        self._stream = stream
        self._clock = clock
        self._grew_at: float | None = None
        self._is_settled = True
        self.bytes = 0
        self.lines = 0
        self._has_begun = False

    @property
    def file(self) -> int:
        """Inode of the file being read."""
        return self._tail.file

    def read(self) -> Reading[tuple[Observed, ...]]:
        now = self._clock.now()
        events, error = self._read(now, _READ_SECONDS)
        is_quiet = self._grew_at is not None and now - self._grew_at > _SETTLE_SECONDS
        if is_quiet and not self._is_settled:
            events += self._settle()
        if error is not None and not events:
            return Failed(f"{self._tail.path.name}: {error.strerror or error}")
        if self._grew_at is None:
            return Absent("nothing has been printed yet")
        return Ok(self._at(now, events))

    def rest(self) -> tuple[Observed, ...]:
        """Read to the end after the command has ended, and complete any open block."""
        now = self._clock.now()
        events, _ = self._read(now, _REST_SECONDS)
        events += self._settle()
        self._reader.command_ended()
        return self._at(now, events)

    def close(self) -> None:
        self._tail.close()

    def _at(self, now: float, events: list[Event]) -> tuple[Observed, ...]:
        return tuple(Observed(now, self._stream, event) for event in events)

    def _read(self, now: float, seconds: float) -> tuple[list[Event], OSError | None]:
        """Read to the end of the log, for at most `seconds`; also return the error, if any."""
        events: list[Event] = []
        until = time.monotonic() + seconds
        if not self._has_begun:
            self._begin()
        try:
            while True:
                poll = self._tail.poll()
                if self._tail.file and not self._has_begun:
                    self._has_begun, self._reader.lines = True, self._tail.skipped_lines
                    self.printed.restart(self._tail.skipped_lines)
                if poll.restarted:
                    events += in_order(self._reader.restart())
                    self.printed.restart()
                if not poll.data:
                    return events, None
                self._grew_at = now
                self._is_settled = False
                self.bytes += len(poll.data)
                self.lines += poll.data.count(b"\n")
                found = in_order(self._reader.feed(poll.data))
                self.printed.note(poll.data, found)
                events += found
                if time.monotonic() > until:
                    return events, None
        except OSError as error:
            return events, error

    def _begin(self) -> None:
        """Skip to the start of the current attempt; called again until the log exists."""
        state = contract.read_json(str(self._tail.path.with_name(contract.ATTEMPT))) or {}
        place = state.get("log")
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
    """Bytes of the trainer's output that never reached its log, as counted by the wrapper.

    The wrapper is queried over its socket; if it does not answer, the last count is kept.
    """

    def __init__(self, volume: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._volume = volume
        self._clock = clock
        self._next_at = clock() + PERIOD_SECONDS / 3
        self._call: BackgroundCall[Mapping[str, Any]] = BackgroundCall(
            "mwatch-counts", self._ask, limit_seconds=2 * _LIMIT_SECONDS, clock=clock
        )
        self.dropped: dict[str, int] = {}

    def ask_when_due(self) -> None:
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


_NOT_SETTLED = frozenset({JobPhase.STARTING, JobPhase.LOADING, JobPhase.FIRST_STEP})


class SourceSpec(NamedTuple):
    name: str
    read: Read
    kind: Source | None


class PodSources:
    """Optional sources besides the volume: NCCL's RAS service, RDMA cards, TensorBoard files.

    A source that does not exist is Absent, which is not a fault.
    """

    def __init__(
        self,
        stream: str,
        engine: Engine,
        *,
        node: str | None = None,
        tensorboard: Path | None = None,
        sys_root: str = "/sys",
        ras_address: tuple[str, int] | None = None,
    ) -> None:
        """`ras_address`: by default from NCCL_RAS_ADDR; the containers of a pod share a network."""
        self._engine = engine
        self.ras = NcclRas(
            address_of(os.environ) if ras_address is None else ras_address, stream, read_answer,
            world_size=lambda: engine.job.layout.world_size,
            is_settled=self._is_settled, is_silent=self._is_silent, is_asker=self._is_asker,
        )  # fmt: skip
        self._rdma = Rdma(sys_root, stream, engine.job.catalogue, node=node)
        self._events = None
        if tensorboard is not None:
            self._events = TensorboardEvents(
                str(tensorboard), stream, has_log=lambda: engine.job.sees(Source.LOG)
            )

    def sources(self) -> Iterator[SourceSpec]:
        yield SourceSpec("nccl", self.ras.read, Source.NCCL)
        yield SourceSpec("fabric", self._rdma.read, Source.FABRIC)
        if self._events is not None:
            yield SourceSpec("tensorboard", self._events.read, None)

    @property
    def nccl(self) -> Nccl | None:
        return self.ras.nccl

    @property
    def ports(self) -> tuple[FabricPort, ...]:
        return self._rdma.ports

    @property
    def tensorboard_iteration(self) -> int | None:
        return None if self._events is None else self._events.iteration

    def _is_settled(self) -> bool:
        """Return whether the job is past its first steps, in which it creates communicators."""
        attempt = self._engine.job.attempt
        has_moved = attempt.iteration is not None and attempt.phase not in _NOT_SETTLED
        return has_moved and attempt.ended_at is None

    def _is_asker(self) -> bool:
        """Only the pod of rank 0 polls, because one answer covers the whole job."""
        return 0 in self._engine.job.attempt.ranks

    def _is_silent(self) -> bool:
        """Return whether progress is overdue; called from the polling thread."""
        known = list(self._engine.incidents)
        attempt = self._engine.job.attempt.number
        return any(
            symptom.closed_at is None and symptom.finding.cause is Cause.HANG
            for each in known
            if each.attempt == attempt
            for symptom in each.symptoms
        )


_POLL_NOW_SECONDS = 10.0


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
        more: PodSources | None = None,
    ) -> None:
        self.clock = clock
        self._volume = str(volume)
        self.stream = stream
        self._catalogue = catalogue
        self.log = LogFollower(volume / contract.LOG, grammar, stream, clock)
        self._sources = {"log": MonitoredSource("log", stream, self.log.read, Source.LOG)}
        self._wrapper = WrapperFile(self._volume, stream)
        self._wrapper_source = MonitoredSource("wrapper", stream, self._wrapper.read)
        self._read_at = clock.now()
        self._has_read = False
        self.save: Path | None = None
        self.errors: list[Exception] = []
        """Internal errors of sources, for the caller to report."""
        self.folder: CheckpointDir | None = None
        self.more = more
        self._node = node
        self._nvml = NvmlSource()
        self._counts = WrapperCounts(self._volume)
        self._start_attempt()
        for each in () if more is None else more.sources():
            self._add(*each)
        if save is not None:
            self._watch_save(save)

    @property
    def wrapper(self) -> WrapperState | None:
        return self._wrapper.state

    @property
    def unwatched(self) -> UnwatchedCommand | None:
        return self._wrapper.unwatched

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self._gpus.gpus

    @property
    def read_at(self) -> float:
        return self._read_at

    @property
    def probes(self) -> tuple[RankReading, ...]:
        return self._probe.ranks

    @property
    def monitored(self) -> Sequence[MonitoredSource]:
        return [self._wrapper_source, *self._sources.values()]

    @property
    def sources(self) -> dict[str, SourceState]:
        """State of each source; `nvml` is up while this process reads the GPUs through NVML."""
        known = {each.name: SourceState(each.is_up, each.read_at) for each in self.monitored}
        is_own = self._gpus.route == "nvml"
        known["nvml"] = SourceState(is_own, known["gpus"].read_at if is_own else None)
        return known

    @property
    def ranks(self) -> dict[int, RankFacts]:
        use, seconds = self._processes.use, self._probe.seconds
        ranks = {each.beat.rank for each in self._probe.ranks} | set(use)
        return {
            rank: RankFacts(*use.get(rank, ResourceUse()))._replace(seconds=seconds.of(rank))
            for rank in ranks
        }

    @property
    def dropped(self) -> dict[str, int]:
        """Bytes of output that the wrapper could not copy or write to the log."""
        return self._counts.dropped

    def read(self) -> list[Observed]:
        """Return new observations, in the order in which the engine must observe them."""
        now = self.clock.now()
        polled = self._poll(self._wrapper_source, now)
        states = [self._since_last_read(each, now) for each in polled]
        starts = [each for each in states if isinstance(each.what, AttemptStart)]
        ends = [each for each in states if not isinstance(each.what, AttemptStart)]
        self._read_at = now
        self._has_read = True
        if starts:
            self._start_attempt()
        state = self._wrapper.state
        if self.folder is None and state is not None and state.save is not None:
            self._watch_save(Path(state.save))
        if ends:
            self.poll_save_soon()
        seen = [each for source in self._sources.values() for each in self._poll(source, now)]
        self._counts.ask_when_due()
        if ends:
            seen += self.log.rest()
        return [*starts, *(_of_now(each, now) for each in seen), *ends]

    def rest(self) -> list[Observed]:
        """After the command has ended, read the rest of its output and its save folder."""
        return [*self.log.rest(), *self.read(), *self.stored_now()]

    def poll_save_soon(self) -> None:
        """Make the next poll of the save folder due now; may be called from any thread."""
        if self.folder is not None:
            self.folder.poll_soon()

    def stored_now(self) -> tuple[Observed, ...]:
        """Poll the save folder and wait for the result, before a checkpoint is chosen."""
        if self.folder is None:
            return ()
        found = self.folder.read_now(_POLL_NOW_SECONDS)
        return found.value if isinstance(found, Ok) else ()

    def close(self) -> None:
        self.log.close()
        self._nvml.close()

    def _poll(self, source: MonitoredSource, now: float) -> list[Observed]:
        """An internal error of one source must not affect the others."""
        try:
            return source.poll(now)
        except Exception as error:
            self.errors.append(error)
            return []

    def _since_last_read(self, observed: Observed, now: float) -> Observed:
        """Move the time to after the last read. An attempt that was already running at the first
        read is dated to that read, so that the time before does not count as silence;
        `late_seconds` keeps the checkpoints that it saved before then attributed to it."""
        at, what = min(max(observed.at, self._read_at), now), observed.what
        if not self._has_read and isinstance(what, AttemptStart) and observed.at < at:
            what = what._replace(late_seconds=at - observed.at)
        return observed._replace(at=at, what=what)

    def _start_attempt(self) -> None:
        """Recreate the process, GPU and probe sources: their state is valid for one attempt."""
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
        """Read the probes of the wrapper's attempt. The attempt number is removed: if torchrun
        restarts its workers, the log opens an attempt that the wrapper does not count."""
        state = self._wrapper.state
        if state is None:
            return Absent("no wrapper has started yet")
        match self._probe.read(state.attempt):
            case Ok(observed):
                return Ok(tuple(map(_without_attempt, observed)))
            case other:
                return other

    def _watch_save(self, save: Path) -> None:
        self.save = save
        self.folder = CheckpointDir(str(save), self.stream, wall=self.clock.now)
        self._add("checkpoints", self.folder.read, Source.CHECKPOINTS)

    def _add(self, name: str, read: Read, kind: Source | None) -> None:
        self._sources[name] = MonitoredSource(name, self.stream, read, kind)


def _of_now(observed: Observed, now: float) -> Observed:
    """Bound the age of an observation, in case the wall clock of its source is wrong. The age of a
    probe record comes from the monotonic clock, so it is only kept out of the future."""
    oldest = observed.at if isinstance(observed.what, Beat) else now - STALE_SECONDS
    at = min(max(observed.at, oldest), now)
    return observed if at == observed.at else observed._replace(at=at)


def _without_attempt(observed: Observed) -> Observed:
    beat = observed.what
    assert isinstance(beat, Beat)
    return observed._replace(what=beat._replace(attempt=None))
