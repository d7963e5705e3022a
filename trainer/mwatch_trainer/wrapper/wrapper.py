# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One run of `mwatch-run`: one attempt, or several if restarts in place are requested.

Only the child is required: the run continues without a volume, pump, socket or sampler.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from functools import partial
from typing import Any, Callable, Mapping, Sequence

from mwatch_trainer import contract
from mwatch_trainer.attempt import prepare as attempt
from mwatch_trainer.attempt.fencing import FenceWatch
from mwatch_trainer.attempt.plan import AttemptOptions, AttemptPlan
from mwatch_trainer.command.run_facts import SAVE_VARIABLE
from mwatch_trainer.control.server import ControlServer
from mwatch_trainer.evidence.dumps import Dumps
from mwatch_trainer.evidence.incidents import EvidenceOffload
from mwatch_trainer.exits import explain
from mwatch_trainer.exits.log_reader import ExitLogReader
from mwatch_trainer.output.forwarder import Output
from mwatch_trainer.output.log_copy import LogWriter
from mwatch_trainer.processes import children, proc
from mwatch_trainer.processes.children import Reaper, start_helper
from mwatch_trainer.processes.proc import Tree, end_abandoned
from mwatch_trainer.processes.signals import ENDING, STOP, RequestQueue, Signals, name_of
from mwatch_trainer.reporting import EARLY_EXIT, SIGNAL_BASE, report
from mwatch_trainer.scrub.known_good import scrubbed
from mwatch_trainer.scrub.scrubber import Scrubber
from mwatch_trainer.wrapper import early_end, leftovers
from mwatch_trainer.wrapper.options import Options
from mwatch_trainer.wrapper.supervisor import Supervisor


class AttemptFile:
    """Writes `attempt.json` in a thread, because disks can hang."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._documents: queue.Queue[Mapping[str, Any]] = queue.Queue()
        threading.Thread(target=self._run, name="mwatch-attempt", daemon=True).start()

    def put(self, document: Mapping[str, Any]) -> None:
        self._documents.put(document)

    def drain(self, seconds: float) -> None:
        documents = self._documents
        with documents.all_tasks_done:
            documents.all_tasks_done.wait_for(lambda: not documents.unfinished_tasks, seconds)

    def _run(self) -> None:
        while True:
            with contextlib.suppress(OSError, ValueError):
                contract.write_json(self._path, self._documents.get())
            self._documents.task_done()


def log_position(directory: str | None) -> dict[str, int] | None:
    """Return where the log of an attempt starting now begins; None: at the start of a file."""
    if directory is None:
        return None
    try:
        found = os.stat(os.path.join(directory, contract.LOG))
    except OSError:
        return None
    return {"inode": found.st_ino, "bytes": found.st_size}


def attempt_document(
    plan: AttemptPlan, mode: str, argv: Sequence[str], patterns: Sequence[str], pid: int | None
) -> dict[str, Any]:
    """Describe the attempt for `attempt.json`, scrubbed, without its times and exit."""
    scrubber = Scrubber(patterns)
    wrapper = proc.read(os.getpid())
    return {
        "attempt": plan.number,
        "mode": mode,
        "pid": pid,
        "pgid": pid,  # it leads its own session
        "wrapper_pid": os.getpid(),
        "wrapper_started": wrapper.started if wrapper is not None else None,
        "host": socket.gethostname(),
        "node_rank": plan.node_rank,
        "nnodes": plan.nnodes,
        "argv": scrubbed(argv, scrubber),
        "ran": scrubbed(plan.argv, scrubber),
        "changes": [scrubber.text(each) for each in plan.changes],
        "resume_from": plan.resume_from,
        "resume_reason": scrubber.text(plan.resume_reason),
        "save": None if plan.save is None else scrubber.text(plan.save),
    }


_WRITE_SECONDS = 2.0
_CLOSE_SECONDS = 2.0
_SAMPLER_SECONDS = 10.0


class Volume:
    """The wrapper's files on the shared volume; does nothing if no folder is usable.

    Only threads access the folder, never the caller: if the file system hung, the caller could not
    forward signals or notice that the command exited. A slow folder is used once it responds.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self.directory = options.directory
        self._is_open = threading.Event()
        self.log: LogWriter | None = None
        self._attempt: AttemptFile | None = None
        self._control: ControlServer | None = None
        self._sampler: subprocess.Popen[bytes] | None = None
        self._sampler_at = -math.inf
        self._offload: EvidenceOffload | None = None

    def open(
        self,
        tree: Tree,
        requests: RequestQueue,
        reaper: Reaper,
        status: Callable[[], Mapping[str, Any]],
    ) -> None:
        directory = self.directory
        if directory is None:
            self._report_none()
            self._is_open.set()
            return
        self._attempt = AttemptFile(os.path.join(directory, contract.ATTEMPT))
        self.log = LogWriter(os.path.join(directory, contract.LOG), self._options.log_bytes)
        mode, patterns = self._options.mode, self._options.scrub_patterns
        self._offload = EvidenceOffload(directory, mode, reaper, lambda: status().get("save"))
        dumps = Dumps(directory, tree, patterns=patterns)
        control = partial(ControlServer, directory, mode, requests, dumps, self._offload, status)
        threading.Thread(
            target=self._open, args=(directory, control), name="mwatch-volume", daemon=True
        ).start()

    def wait_until_open(self) -> None:
        """Wait for the folder without a time limit."""
        self._is_open.wait()

    def start_sampler(self, reaper: Reaper) -> None:
        """Start the node fact sampler if it is enabled and not running; it is what detects a
        stopped rank. One that keeps dying is restarted at most every `_SAMPLER_SECONDS`."""
        if self.directory is None or not self._options.with_node_facts:
            return
        runs = self._sampler is not None and self._sampler.returncode in (None, 0)
        now = time.monotonic()
        if runs or now - self._sampler_at < _SAMPLER_SECONDS:
            return
        self._sampler_at = now
        with contextlib.suppress(OSError):
            arguments = [self.directory, str(os.getpid())]
            self._sampler = start_helper("gpu.sampler", arguments, needs="pynvml")
            reaper.watch(self._sampler)

    @property
    def helper_pids(self) -> list[int]:
        sampler = self._sampler.pid if self._sampler is not None else None
        offload = self._offload.pid if self._offload is not None else None
        return [each for each in (sampler, offload) if each is not None]

    def write_attempt(self, document: Mapping[str, Any]) -> None:
        attempt = self._attempt
        if attempt is not None:
            attempt.put(document)

    def close(self) -> None:
        control = self._control
        if control is not None:
            closing = threading.Thread(target=control.close, name="mwatch-close", daemon=True)
            closing.start()
            closing.join(_CLOSE_SECONDS)
        if self._sampler is not None and self._sampler.returncode is None:
            with contextlib.suppress(OSError):
                self._sampler.kill()
        if self.log is not None:
            self.log.close(_WRITE_SECONDS)
        if self._attempt is not None:
            self._attempt.drain(_WRITE_SECONDS)

    def _open(self, directory: str, control: Callable[[], ControlServer]) -> None:
        try:
            os.makedirs(directory, exist_ok=True)
            with contextlib.suppress(OSError):  # left by an earlier container of this pod
                os.unlink(os.path.join(directory, contract.UNWATCHED))
            self._control = control()
        except OSError as error:
            report(f"{directory} cannot be used: {error.strerror}")
            self.directory, self.log, self._attempt = None, None, None
            self._report_none()
        finally:
            self._is_open.set()

    def _report_none(self) -> None:
        report("no folder to write to (set --dir or MWATCH_DIR): the output is not recorded")


_PREPARE_SECONDS = 20.0  # in observe mode, where the start does not depend on the result
_PUMP_SECONDS = 1.0
_LEFTOVER_SECONDS = 1.0  # time for the command's own helpers to exit after it
_READ_SECONDS = 10.0
_LOOK_SECONDS = 0.1
_STEPS = 4.0
_STEP_SECONDS = 5.0
"""A leftover that may be the training itself is watched for at least `_STEP_SECONDS`, or for the
time of `_STEPS` iteration lines."""


class EndedBeforeStart(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(f"stopped before the start: {name_of(number)}")
        self.number = number


class Wrapper:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.child: subprocess.Popen[bytes] | None = None
        self.signals = Signals()
        self._is_acting = options.mode == contract.ACT
        self._requests = RequestQueue(self.signals.wake)
        self._reaper = children.Reaper()
        self._tree = Tree(self._helper_pids)
        self._volume = Volume(options)
        self._output: Output | None = None
        self._supervisor: Supervisor | None = None
        self._document: dict[str, Any] = {}
        self._log_position: dict[str, int] | None = None
        self._trains_on = False
        self._dies_with_us = leftovers.end_with_wrapper(os.environ)
        children.adopt_orphans()

    def run(self) -> int:
        self._volume.open(self._tree, self._requests, self._reaper, self.status)
        try:
            while True:
                code, is_restarting = self._attempt()
                if not is_restarting:
                    return code
        finally:
            self._volume.close()
            self._reaper.reap()

    def status(self) -> dict[str, Any]:
        supervisor, output = self._supervisor, self._output
        return {
            **self._document,
            "is_running": self.child is not None and self.child.returncode is None,
            "stopping": supervisor.stop_request if supervisor is not None else None,
            "output": output.counts() if output is not None else None,
            "orphans_reaped": self._reaper.orphans,
        }

    def _attempt(self) -> tuple[int, bool]:
        """Run one attempt; return its exit code and whether to start another one instead."""
        try:
            plan = self._prepared()
            while plan.not_before is not None and (left := plan.not_before - time.time()) > 0:
                self._wait_before_start(min(left, 1.0))
        except EndedBeforeStart as ended:
            return self._not_started(self._as_given(), str(ended), 128 + ended.number, False), False
        if plan.refused is not None:
            report(plan.refused)
            code = plan.exit_code if plan.exit_code is not None else 1
            return self._not_started(plan, plan.refused, code, plan.is_permanent), False
        reader = ExitLogReader()
        output = Output(self._volume.log, reader.feed, self.options.scrub_patterns, self._reaper)
        self._output = output
        oom_kills = explain.oom_kills()
        try:
            self.child = children.start_command(plan.argv, plan.env, output.stdout, output.stderr)
        except children.CannotStart as error:
            output.close(0.0)
            report(str(error))
            return self._not_started(plan, str(error), error.code, True), False
        output.child_has_started()
        self._note(plan, self.child.pid)
        supervisor = self._supervise(self.child, plan, output, reader)
        returncode = int(self.child.returncode)
        return self._ended(returncode, plan, reader, supervisor, oom_kills)

    def _supervise(
        self,
        process: subprocess.Popen[bytes],
        plan: AttemptPlan,
        output: Output,
        reader: ExitLogReader,
    ) -> Supervisor:
        """Wait for the child and its output to end; end leftovers that must not keep running."""
        grace = self.options.grace_seconds
        pace = leftovers.Pace(lambda: reader.iteration)

        def look_after_helpers() -> None:
            output.look_after_pump()
            self._volume.start_sampler(self._reaper)
            pace.look()

        supervisor = Supervisor(
            process, self.signals, self._requests, self._reaper, self._tree, grace,
            look_after_helpers, plan.number,
        )  # fmt: skip
        self._supervisor = supervisor
        fence: FenceWatch | None = None
        if self._is_acting:
            fence = FenceWatch(plan.save, plan.number, self._requests)
        supervisor.run()
        if fence is not None:
            fence.stop()
        own = leftovers.OwnOutput(output)
        self._trains_on = False
        if supervisor.stop_request or (
            self._is_acting and self._ends_leftovers(process, plan, reader, supervisor, pace, own)
        ):
            supervisor.end_leftovers()

        def is_over() -> bool:
            return supervisor.gives_up_output() or (own.is_passed_on() and self._has_left())

        output.finish(is_over)
        output.close(0.0 if self._has_left() else _PUMP_SECONDS)
        return supervisor

    def _has_left(self) -> bool:
        return bool(self._tree.processes())

    def _ends_leftovers(
        self,
        process: subprocess.Popen[bytes],
        plan: AttemptPlan,
        reader: ExitLogReader,
        supervisor: Supervisor,
        pace: leftovers.Pace,
        own: leftovers.OwnOutput,
    ) -> bool:
        """Whether to end the leftovers of a command that exited by itself: only before a restart,
        and not if training continues in them."""
        returncode = int(process.returncode)
        if returncode < 0:
            return True
        if not supervisor.wait_for_leftovers(_LEFTOVER_SECONDS):
            return False
        until = time.monotonic() + _READ_SECONDS
        while not own.is_read() and time.monotonic() < until:
            supervisor.wait_for_leftovers(_LOOK_SECONDS)
        returned = explain.explain(returncode, reader, None, plan).returned
        if returned == EARLY_EXIT and not returncode and not self._dies_with_us:
            seconds = max(_STEP_SECONDS, _STEPS * pace.seconds)
            self._trains_on = supervisor.leftovers_train(pace, seconds)
        if supervisor.stopping.first is not None:
            self._trains_on = False
            return True
        return returned >= SIGNAL_BASE and not self._trains_on

    def _ended(
        self,
        returncode: int,
        plan: AttemptPlan,
        reader: ExitLogReader,
        supervisor: Supervisor,
        kills_before: int | None,
    ) -> tuple[int, bool]:
        kills = explain.oom_kills()
        oom_killed = kills is not None and kills_before is not None and kills > kills_before
        exit_ = explain.explain(returncode, reader, supervisor.stop_request, plan, oom_killed)
        if self._trains_on:
            reason = f"{contract.TRAINS_ON}: {exit_.reason}"
            exit_ = exit_._replace(reason=reason, returned=0, is_final=True)
        elif self._is_acting:
            exit_ = early_end.judged(exit_, reader, plan, self._volume.directory)
        returned = exit_.returned if self._is_acting else children.shell_code(returncode)
        is_restarting = supervisor.wants_restart and self._is_acting
        how: dict[str, Any] = {"code": exit_.code, "signal": exit_.signal, "reason": exit_.reason}
        if left := self._left():
            how["left"] = left
        is_last = explain.is_last(returned, exit_.is_final, os.environ)
        self._note_exit(how, returned, exit_.was_requested, is_last and not is_restarting)
        return returned, is_restarting

    def _left(self) -> list[dict[str, Any]]:
        """Return the command's processes that still run; report them unless `mwatch run` does."""
        found = self._tree.processes()
        if not found:
            return []
        shown = leftovers.shown(found, Scrubber(self.options.scrub_patterns))
        if self._is_acting and not self.options.is_watched:
            what = f"the command has ended, still running: {leftovers.listed(shown, len(found))}"
            after = "they end with this container" if self._dies_with_us else "not watched any more"
            report(f"{what}; {after}")
        return shown

    def _prepared(self) -> AttemptPlan:
        """Prepare in a thread: it may wait for other nodes, and a signal must end the wait."""
        plans: list[AttemptPlan] = []

        def prepare() -> None:
            self._volume.wait_until_open()
            options = AttemptOptions(
                mode=self.options.mode,
                directory=self._volume.directory,
                with_probe=self.options.with_probe,
            )
            if self._is_acting and options.directory is not None:
                ended = end_abandoned(options.directory)
                if ended:
                    report(f"killed {ended} processes of an attempt whose wrapper had been killed")
            # In this thread, because a disk may hang; the last attempt's output is written by now.
            self._log_position = log_position(options.directory)
            plans.append(attempt.prepare(self.options.command, self._environ(), options))
            self.signals.wake()

        thread = threading.Thread(target=prepare, name="mwatch-prepare", daemon=True)
        thread.start()
        began = time.monotonic()
        while thread.is_alive():
            self._wait_before_start(0.5)
            is_late = time.monotonic() - began > _PREPARE_SECONDS
            if is_late and not self._is_acting:
                late = f"{self._volume.directory} or the checkpoint folder does not answer"
                report(f"{late}: the command starts without waiting for it")
                break
        self._volume.start_sampler(self._reaper)
        return plans[0] if plans else self._as_given()

    def _as_given(self) -> AttemptPlan:
        return AttemptPlan(1, self.options.command, self._environ())

    def _environ(self) -> dict[str, str]:
        environ = dict(os.environ)
        if self.options.checkpoints:
            environ[SAVE_VARIABLE] = self.options.checkpoints
        return environ

    def _wait_before_start(self, seconds: float) -> None:
        for number in self.signals.wait(seconds):
            if number in ENDING:
                raise EndedBeforeStart(number)
        if any(request.kind == STOP for request in self._requests.take()):
            raise EndedBeforeStart(signal.SIGTERM)
        self._reaper.reap()

    def _helper_pids(self) -> list[int]:
        pump = self._output.pump_pid if self._output is not None else None
        return [*self._volume.helper_pids, *([] if pump is None else [pump])]

    def _note(self, plan: AttemptPlan, pid: int | None) -> None:
        options = self.options
        self._document = {
            **attempt_document(plan, options.mode, options.command, options.scrub_patterns, pid),
            "log": self._log_position,
            "started_at": time.time(),
            "started_monotonic": time.monotonic(),
            "exit": None,
            "final": False,
        }
        self._volume.write_attempt(self._document)

    def _not_started(self, plan: AttemptPlan, reason: str, code: int, is_final: bool) -> int:
        self._note(plan, None)
        is_last = explain.is_last(code, is_final, os.environ)
        self._note_exit({"code": None, "signal": None, "reason": reason}, code, False, is_last)
        return code

    def _note_exit(
        self, how: Mapping[str, Any], returned: int, was_requested: bool, is_final: bool
    ) -> None:
        ended = {**how, "returned": returned, "at": time.time(), "asked": was_requested}
        self._document = {**self._document, "exit": ended, "final": is_final}
        self._volume.write_attempt(self._document)
