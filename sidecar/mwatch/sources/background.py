# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads sources without ever blocking the loop, and reports when a source is lost or found.

A network file system that has lost its server blocks every thread that touches it, and neither a
signal nor a time limit frees that thread. So each source that may hang is read in a daemon thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from mwatch.model.observation import Observed, Source, SourceStatusChange
from mwatch.model.reading import Absent, Failed, Ok, Reading

T = TypeVar("T")
Observations = tuple[Observed, ...]
Read = Callable[[], Reading[Sequence[Observed]]]


class BackgroundCall(Generic[T]):
    def __init__(
        self,
        name: str,
        call: Callable[[], Reading[T]],
        *,
        limit_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._call = call
        self._limit = limit_seconds
        self._clock = clock
        self._done = threading.Event()
        self._done.set()
        self._since = 0.0
        self._answer: Reading[T] | None = None

    @property
    def is_busy(self) -> bool:
        return not self._done.is_set()

    def start(self) -> bool:
        """Return False if the last call is still running."""
        if self.is_busy:
            return False
        self._done.clear()
        self._since = self._clock()
        threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return True

    def wait(self, seconds: float) -> bool:
        """Wait for the running call; return whether it has ended."""
        return self._done.wait(seconds)

    def take(self) -> Reading[T] | None:
        """Return the answer, once; None if there is none yet and the call is within its limit."""
        if self.is_busy:
            waited = self._clock() - self._since
            return Failed(f"no answer for {waited:.0f} s") if waited > self._limit else None
        answer, self._answer = self._answer, None
        return answer

    def _run(self) -> None:
        try:
            self._answer = self._call()
        except FileNotFoundError as error:
            self._answer = Absent(f"{error.filename}: no such file or folder")
        except (OSError, ValueError) as error:
            self._answer = Failed(str(error) or type(error).__name__)
        finally:
            self._done.set()


class BackgroundSource:
    """A source that `poll` reads in a thread, every `period` seconds; each result is returned once.

    After a failed poll, the failure is returned until the next poll ends.
    """

    def __init__(
        self,
        name: str,
        poll: Callable[[], Reading[Observations]],
        *,
        period: Callable[[], float],
        limit_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._period = period
        self._clock = clock
        self._next_at = clock()
        self._call = BackgroundCall(name, poll, limit_seconds=limit_seconds, clock=clock)
        self._last: Reading[Observations] = Absent("not read yet")

    @property
    def is_up(self) -> bool:
        return isinstance(self._last, Ok)

    def read(self) -> Reading[Observations]:
        """Return what the last poll found, without waiting; start the next one when it is due."""
        reading = self._take()
        if not self._call.is_busy and self._clock() >= self._next_at:
            self._start()
        return reading

    def read_now(self, seconds: float) -> Reading[Observations]:
        """Wait up to `seconds` for a new poll; one under way may have missed the last change."""
        until = self._clock() + seconds
        if self._call.wait(seconds):
            self._start()
            self._call.wait(max(0.0, until - self._clock()))
        return self._take()

    def poll_soon(self) -> None:
        """Make the next poll due now; may be called from any thread."""
        self._next_at = self._clock()

    def _take(self) -> Reading[Observations]:
        answer = self._call.take()
        if answer is not None:
            self._last = answer
        return Ok(()) if answer is None and self.is_up else self._last

    def _start(self) -> None:
        self._next_at = self._clock() + self._period()
        self._call.start()


class MonitoredSource:
    """A source whose loss and recovery are observations too, once per change."""

    def __init__(self, name: str, stream: str, read: Read, kind: Source | None = None) -> None:
        """`kind` is None for a source that no detector depends on (the wrapper's state)."""
        self.name = name
        self._stream = stream
        self._read = read
        self._kind = kind
        self.reading: Reading[Sequence[Observed]] = Absent("not read yet")
        self.read_at: float | None = None
        self._reported: bool | None = None

    @property
    def is_up(self) -> bool:
        return isinstance(self.reading, Ok)

    @property
    def reason(self) -> str:
        match self.reading:
            case Ok():
                return "read"
            case Absent(reason):
                return reason
            case Failed(error):
                return error

    def poll(self, now: float) -> list[Observed]:
        """Return new observations; `now` is wall time."""
        self.reading = self._read()
        observed: list[Observed] = []
        was_never_there = self._reported is None and isinstance(self.reading, Absent)
        if self._kind is not None and self._reported is not self.is_up and not was_never_there:
            self._reported = self.is_up
            change = SourceStatusChange(self._kind, self.is_up, self.reason)
            observed.append(Observed(now, self._stream, change))
        if isinstance(self.reading, Ok):
            self.read_at = now
            observed.extend(self.reading.value)
        return observed
