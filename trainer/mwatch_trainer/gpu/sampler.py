# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A helper process that samples /proc and the GPUs once a second inside the training container.

A sidecar often sees neither the trainer's processes nor the GPUs. The helper runs at low priority,
ends with the wrapper, and samples less often if sampling is expensive.

`node/gpus.json` distinguishes `absent` (no NVML, no GPU) from `failed`. NVML is opened once and
kept open; if it cannot be opened, or fails as a whole, it is retried with increasing pauses. Any
call may hang: that blocks only the GPU thread, and another thread reports it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import threading
import time
from collections import deque
from typing import Any, Callable, Mapping, Sequence, TypeVar

from mwatch_trainer import contract
from mwatch_trainer.gpu.nvml import (
    LINK_COUNT,
    MAX_LINKS,
    NVLINK5_ERRORS,
    NVLINK_ERRORS,
    RECOVERY_ACTION,
    THROTTLE_TIMES,
    UNKNOWN_ERROR,
    Lost,
    Nvml,
    NvmlAbsent,
    NvmlBroken,
    TensorMeter,
    Unclear,
    open_nvml,
)
from mwatch_trainer.processes import proc as processes
from mwatch_trainer.processes.children import die_with_parent
from mwatch_trainer.processes.proc import Process, Ranks

RARELY_SECONDS = 30.0  # PCIe replays cost 0.13 ms, the counters of 18 links as much or more
_UNCLEAR_LIMIT = 2
"""After this many samples with only unknown errors the GPU is lost; one may be a glitch."""

T = TypeVar("T")


class Device:
    """One GPU: values read in every sample, and expensive ones read less often."""

    def __init__(self, nvml: Nvml, handle: Any, tensor_seconds: float) -> None:
        self._nvml, self._handle = nvml, handle
        self._tensor_seconds = tensor_seconds
        self._constant: dict[str, Any] = {}
        self._rare: dict[str, Any] = {}
        self._rare_at = -math.inf
        self._meter: TensorMeter | None = None
        self._is_metered = False
        self._tensor: float | None = None
        self._tensor_at = -math.inf
        self._unclear = 0
        self._unclear_looks = 0

    def close(self) -> None:
        if self._meter is not None:
            self._meter.close()
            self._meter = None

    def known(self) -> dict[str, Any]:
        return dict(self._constant)

    def read(self, now: float) -> dict[str, Any]:
        """Read the GPU; unsupported values are None. Raises Lost and NvmlBroken."""
        if not self._constant:
            nvml = self._nvml
            self._constant = {"uuid": self._query(nvml.uuid), "name": self._query(nvml.name)}
        facts = self._core()
        facts.update(self._counters())
        if now - self._tensor_at >= self._tensor_seconds:
            self._tensor, self._tensor_at = self._tensor_now(), now
        if now - self._rare_at >= RARELY_SECONDS:
            replays = self._query(self._nvml.pcie_replays)
            self._rare = {"pcie_replays": replays, "nvlink_errors": self._link_errors()}
            self._rare_at = now
        return {**self._constant, **facts, "tensor_active": self._tensor, **self._rare}

    def _core(self) -> dict[str, Any]:
        """Read what every GPU supports; if all calls repeatedly fail with unknown errors, the GPU
        is lost."""
        self._unclear = 0
        nvml = self._nvml
        used, total = self._query(nvml.memory) or (None, None)
        facts = {
            "utilization": self._query(nvml.utilization),
            "memory_used_bytes": used,
            "memory_total_bytes": total,
            "power_watts": self._query(nvml.power_watts),
            "temperature_celsius": self._query(nvml.temperature_celsius),
        }
        is_silent = self._unclear and all(value is None for value in facts.values())
        self._unclear_looks = self._unclear_looks + 1 if is_silent else 0
        if self._unclear_looks >= _UNCLEAR_LIMIT:
            raise Lost(UNKNOWN_ERROR, "Unknown Error in every call")
        return facts

    def _counters(self) -> dict[str, Any]:
        nvml = self._nvml
        rows = self._query(nvml.remapped_rows)
        by_field = [(field, 0) for field, _ in THROTTLE_TIMES] + [(RECOVERY_ACTION, 0)]
        *times, action = self._fields(by_field)
        held = zip((name for _, name in THROTTLE_TIMES), times)
        return {
            "sm_clock_hz": self._query(nvml.sm_clock_hz),
            "power_limit_watts": self._query(nvml.power_limit_watts),
            "throttle": self._query(nvml.throttle),
            "throttled_seconds": {name: ns / 1e9 for name, ns in held if ns is not None},
            "ecc_uncorrected": self._query(lambda device: nvml.ecc_errors(device, False)),
            "ecc_corrected": self._query(lambda device: nvml.ecc_errors(device, True)),
            "remapped_rows": rows and {"corrected": rows[0], "uncorrected": rows[1]},
            "remap_pending": None if rows is None else rows[2],
            "remap_failed": None if rows is None else rows[3],
            "recovery_action": None if action is None else int(action),
            "pids": self._query(nvml.pids),
        }

    def _link_errors(self) -> dict[str, int]:
        links = int(self._fields([(LINK_COUNT, 0)])[0] or 0)
        for table in (NVLINK_ERRORS, NVLINK5_ERRORS):
            found: dict[str, int] = {}
            wanted = [(field, link) for field, _ in table for link in range(min(links, MAX_LINKS))]
            names = dict(table)
            for (field, _), value in zip(wanted, self._fields(wanted)):
                if value is not None:
                    found[names[field]] = found.get(names[field], 0) + int(value)
            if found:
                return found
        return {}

    def _fields(self, wanted: Sequence[tuple[int, int]]) -> list[float | None]:
        if not wanted:
            return []
        found = self._query(lambda device: self._nvml.fields(device, wanted))
        return [None] * len(wanted) if found is None else found

    def _tensor_now(self) -> float | None:
        if not self._is_metered:
            self._is_metered = True
            self._meter = self._query(self._nvml.tensor_meter)
        meter = self._meter
        return None if meter is None else self._query(lambda _: meter.read())

    def _query(self, call: Callable[[Any], T]) -> T | None:
        try:
            return call(self._handle)
        except Unclear:
            self._unclear += 1
            return None


_KEPT = 8
_EVENTS_AGAIN_SECONDS = (1.0, 30.0)
"""Shortest and longest pause between waits: if a wait fails because one GPU falls off the bus, it
is soon repeated for the other GPUs.
"""
_STOP_SECONDS = 5.0


class GpuEvents:
    """The last events of each GPU with their times, and the thread that waits for them.

    Several are kept, because the Xid that is the cause precedes its consequences only briefly.
    """

    def __init__(self) -> None:
        self._xids: dict[int, deque[tuple[int, float]]] = {}
        self._others: dict[int, deque[tuple[str, float]]] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, nvml: Nvml, devices: list[Any]) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, args=(nvml, devices, self._over), name="mwatch-xid", daemon=True
        )
        self._thread.start()

    def stop(self) -> bool:
        """Stop the thread; return False if it hangs."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)
        return self._thread is None or not self._thread.is_alive()

    def of(self, index: int) -> dict[str, Any]:
        xids, others = self._xids.get(index, ()), self._others.get(index, ())
        xid, xid_at = xids[-1] if xids else (None, None)
        return {
            "xid": xid,
            "xid_at": xid_at,
            "xids": [list(each) for each in tuple(xids)],
            "events": [list(each) for each in tuple(others)],
        }

    def _watch(self, nvml: Nvml, devices: list[Any], over: threading.Event) -> None:
        shortest, longest = _EVENTS_AGAIN_SECONDS
        pause = shortest
        while not over.is_set():
            began = time.monotonic()
            # The sampler gets the same errors and reports them.
            with contextlib.suppress(NvmlBroken, Lost, Unclear):
                nvml.watch_events(devices, self._record, over.is_set)
            if time.monotonic() - began > longest:
                pause = shortest
            over.wait(pause)
            pause = min(2 * pause, longest)

    def _record(self, index: int, name: str, number: int) -> None:
        if name == "xid":
            self._xids.setdefault(index, deque(maxlen=_KEPT)).append((number, time.time()))
        else:
            self._others.setdefault(index, deque(maxlen=_KEPT)).append((name, time.time()))


OK, ABSENT, FAILED = "ok", "absent", "failed"
TENSOR_SECONDS = 2.0  # A read costs 1.3 ms per GPU: half a percent of a core for eight
_AGAIN_SECONDS = 10.0
_ABSENT_SECONDS = 60.0
_LONGEST_SECONDS = 300.0


class GpuSampler:
    def __init__(
        self,
        open_nvml: Callable[[], Nvml] = open_nvml,
        *,
        tensor_seconds: float = TENSOR_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Does not open NVML before the first sample, because opening may hang too."""
        self._open_nvml = open_nvml
        self._tensor_seconds = tensor_seconds
        self._clock = clock
        self._nvml: Nvml | None = None
        self._driver: str | None = None
        self._devices: list[Device | Lost | None] = []
        self._events = GpuEvents()
        self._state, self._reason = ABSENT, "not sampled yet"
        self._again_at = float("-inf")
        self._pause = _AGAIN_SECONDS
        self._called_at: float | None = None

    def waiting_seconds(self) -> float:
        """Return how long the current sample has taken so far; 0 between samples."""
        called_at = self._called_at
        return 0.0 if called_at is None else self._clock() - called_at

    def sample(self) -> dict[str, Any]:
        self._called_at = self._clock()
        try:
            return self._sample()
        finally:
            self._called_at = None

    def close(self) -> None:
        self._shut()
        self._again_at = float("-inf")

    def _sample(self) -> dict[str, Any]:
        if self._nvml is None and self._clock() >= self._again_at:
            self._open()
        if self._nvml is None:
            return document(self._state, self._reason, self._driver, [], self._clock)
        try:
            gpus = [
                self._gpu(index, each)
                for index, each in enumerate(self._devices)
                if each is not None
            ]
        except NvmlBroken as error:
            self._fail(FAILED, str(error))
            return document(FAILED, self._reason, self._driver, [], self._clock)
        errors = [f"GPU {each['index']}: {each['error']}" for each in gpus if each["error"]]
        state = FAILED if errors else OK
        return document(state, "; ".join(errors), self._driver, gpus, self._clock)

    def _gpu(self, index: int, device: Device | Lost) -> dict[str, Any]:
        facts = {"index": index, "error": None, "error_code": None, **self._events.of(index)}
        if isinstance(device, Lost):
            return {**facts, "error": str(device), "error_code": device.code}
        try:
            return {**facts, **device.read(self._clock())}
        except Lost as error:
            lost = {"error": str(error), "error_code": error.code}
            return {**facts, **device.known(), **lost}

    def _open(self) -> None:
        try:
            nvml = self._open_nvml()
        except NvmlAbsent as error:
            self._fail(ABSENT, str(error))
            return
        except NvmlBroken as error:
            self._fail(FAILED, str(error))
            return
        self._nvml = nvml
        try:
            self._driver = nvml.driver()
            handles = nvml.devices()
        except (NvmlBroken, Lost, Unclear) as error:
            self._fail(FAILED, str(error))
            return
        self._devices = [
            each
            if each is None or isinstance(each, Lost)
            else Device(nvml, each, self._tensor_seconds)
            for each in handles
        ]
        if all(each is None for each in self._devices):
            self._fail(ABSENT, "there is no GPU")
            return
        self._pause = _AGAIN_SECONDS
        self._events.start(nvml, handles)

    def _fail(self, state: str, reason: str) -> None:
        self._shut()
        self._state, self._reason = state, reason
        pause = _ABSENT_SECONDS if state == ABSENT else self._pause
        self._pause = min(2 * self._pause, _LONGEST_SECONDS)
        self._again_at = self._clock() + pause

    def _shut(self) -> None:
        """Close NVML, unless a thread still waits inside it: closing would then crash."""
        nvml, self._nvml = self._nvml, None
        if nvml is None or not self._events.stop():
            return
        for device in self._devices:
            if isinstance(device, Device):
                device.close()
        self._devices = []
        nvml.close()


def document(
    state: str,
    reason: str,
    driver: str | None,
    gpus: list[Any],
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    return {
        "at": time.time(),
        "monotonic": clock(),
        "state": state,
        "reason": reason or None,
        "driver": driver,
        "gpus": gpus,
    }


EVERY_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_SHARE = 0.02
_SILENT_SECONDS = 10.0
"""After this long NVML is reported as hanging. Sampling eight GPUs takes 20 ms; the slowest call
ever measured took 20 ms more."""
_OWN = tuple(
    b"mwatch_trainer." + each for each in (b"output.pump", b"gpu.sampler", b"evidence.incidents")
)


class ProcessFacts:
    def __init__(self, wrapper: int, proc: str = "/proc") -> None:
        self._wrapper, self._proc = wrapper, proc
        self._ranks = Ranks(proc)

    def sample(self) -> dict[str, Any]:
        known = processes.all_processes(self._proc)
        own = [each.pid for each in known.values() if self._is_own(each)]
        below = processes.descendants(self._wrapper, known, without=own)
        below = below[: processes.MAX_PROCESSES]
        ranks = self._ranks.of(below)
        return {
            "at": time.time(),
            "monotonic": time.monotonic(),
            "processes": [
                {**each._asdict(), "rank": ranks[each.pid][0], "is_rank": ranks[each.pid][1]}
                for each in below
            ],
        }

    def _is_own(self, process: Process) -> bool:
        if process.ppid != self._wrapper:
            return False
        command = contract.read_bytes(f"{self._proc}/{process.pid}/cmdline", 4096) or b""
        arguments = command.split(b"\0")
        return any(each in arguments for each in _OWN)


def put(path: str, facts: Mapping[str, Any], *, by: str = "") -> None:
    """Write atomically but unsynced, as the file is replaced a second later. Raises OSError.

    `by` distinguishes the unfinished files of two threads that write the same path.
    """
    text = json.dumps({"version": contract.VERSION, **facts})
    if len(text) > contract.MAX_JSON_BYTES:
        raise OSError(f"{len(text)} bytes are too many")
    contract.replace_file(path, f"{text}\n".encode(), temporary=f"{path}{by}.tmp")


def keep_sampling(sample: Callable[[], Mapping[str, Any]], path: str) -> None:
    """Sample forever; on a full disk the file becomes stale, which its reader detects."""
    while True:
        began, cpu = time.monotonic(), time.thread_time()
        with contextlib.suppress(OSError):
            put(path, sample())
        cost = time.thread_time() - cpu
        pause = min(max(EVERY_SECONDS, cost / _SHARE), _LONGEST_PAUSE_SECONDS)
        time.sleep(max(pause - (time.monotonic() - began), 0.1))


def report_hang(waiting_seconds: Callable[[], float], path: str) -> bool:
    """Return whether NVML hangs; if so, write that in place of the GPU thread."""
    waited = waiting_seconds()
    if waited <= _SILENT_SECONDS:
        return False
    reason = f"NVML has not answered for {waited:.0f} s"
    with contextlib.suppress(OSError):
        put(path, document(FAILED, reason, None, []), by=".silent")
    return True


def keep_reporting_hangs(waiting_seconds: Callable[[], float], path: str) -> None:
    while True:
        time.sleep(EVERY_SECONDS)
        report_hang(waiting_seconds, path)


def main(arguments: Sequence[str]) -> None:
    """Run the sampler: DIRECTORY WRAPPER-PID."""
    directory, wrapper = arguments[0], int(arguments[1])
    die_with_parent(signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(10)
    folder = os.path.join(directory, contract.NODE_FOLDER)
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
    gpus = GpuSampler()
    of_processes = os.path.join(folder, contract.NODE_PROCESSES)
    of_gpus = os.path.join(folder, contract.NODE_GPUS)
    _start(keep_sampling, ProcessFacts(wrapper).sample, of_processes)
    _start(keep_sampling, gpus.sample, of_gpus)
    _start(keep_reporting_hangs, gpus.waiting_seconds, of_gpus)
    while os.getppid() == wrapper:  # `die_with_parent` may have failed
        time.sleep(EVERY_SECONDS)


def _start(work: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()
