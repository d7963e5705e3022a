# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Classify the cause of a failure by catalogue entry, exit code, Kubernetes reason or exception.

The cause decides what happens next: `user_error`, `data` and `oom` stop a job, most others restart
it. Exit codes and exception classes are the weakest evidence, used only without a better line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from mwatch.detect.shared.exception_causes import cause_of_exception
from mwatch.model.cause import Cause
from mwatch.model.fault import Blame, CatalogueEntry, Role
from mwatch.model.job import Attempt, ErrorSeen, FaultSeen
from mwatch.model.step import Step
from mwatch_trainer.exits import signal_table
from mwatch_trainer.exits.signal_table import signal_of

RERUN_EXIT = 16
FAILED_RESULT_EXIT = 17
WORKER_FAILED = "elastic-worker-failed"
"""Id of torchelastic's line about one failed worker; its full report may never be printed."""
_WORKER = re.compile(r"exitcode: (-?\d{1,5})")
_WRAPPED = {216: RERUN_EXIT, 217: FAILED_RESULT_EXIT}
"""Exit codes that `mwatch-run` returns in act mode, and the trainer's own codes."""
SIGABRT, SIGTERM = 6, 15
SHOT = frozenset({4, 7, 8, 9, 11})
"""Signals that a Python process does not send to itself: ILL, BUS, FPE, KILL, SEGV."""
_MEANINGS = {
    signal_table.SENT: Cause.KILLED,
    signal_table.INTERRUPTED: Cause.DELETED_BY_USER,
    signal_table.CRASHED: Cause.CRASH,
}
_CODES = {
    2: Cause.USER_ERROR,  # argparse
    126: Cause.USER_ERROR,
    127: Cause.USER_ERROR,
}
_REASONS = (
    (re.compile(r"oom[-_ ]?kill|out of memory", re.I), Cause.OOM),
    (re.compile(r"preempt|spot|reclaim", re.I), Cause.PREEMPTED),
    (re.compile(r"suspend", re.I), Cause.SUSPENDED),
    (re.compile(r"drain|shutdown|shut down|terminat(?:ed|ing) node|NodeAffinity", re.I),
     Cause.DRAINED),
    (re.compile(r"evict|node ?lost|NotReady|unreachable|lost", re.I), Cause.LOST_POD),
    (re.compile(r"delet|cancel|scale[d -]?down", re.I), Cause.DELETED_BY_USER),
    (re.compile(r"image", re.I), Cause.IMAGE),
    (re.compile(r"unschedul|OutOf|Admission", re.I), Cause.UNSCHEDULABLE),
    (re.compile(r"volume|mount", re.I), Cause.VOLUME),
    (re.compile(r"DeadlineExceeded", re.I), Cause.FINISHED_EARLY),
)  # fmt: skip
_CASCADES = frozenset(
    {
        "DistBackendError", "DistNetworkError", "DistStoreError", "DistError", "ChildFailedError",
        "ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError",
        "BrokenPipeError", "RendezvousConnectionError", "RendezvousClosedError",
        "HorovodInternalError", "SIGTERMException", "RayTaskError", "RayActorError",
        "ActorDiedError", "WorkerCrashedError", "NodeDiedError",
    }
)  # fmt: skip
_PASSED_ON = re.compile(
    r"\b(?:job|run|task|step|worker|node|training)s? (?:has |have )?failed\.?$"
    r"|is detected by the operating system|[Ss]ee (?:the )?(?:root cause|stack trace) .{0,10}above"
    r"|\b[Tt]raining has failed after \d|inspect the previous error messages"
    r"|NPU (?:function )?error\b.{0,80}error code is \d|\bACL stream synchronize failed"
    r"|^ray::\w|operation failed in the TorchScript interpreter"
    r"|\bremote (?:actor )?call (?:has )?failed\b|[Tt]raining failed due to worker errors"
)
_NAMES = frozenset(
    {
        "ImportError", "ModuleNotFoundError", "NameError", "SyntaxError", "IndentationError",
        "UnboundLocalError",
    }
)  # fmt: skip
# Every Megatron checkpoint contains its arguments: a file without them is damaged.
_MISMATCH = re.compile(
    r"do(?:es)? not match|mismatch|checkpoint ?value|parameter group|unexpected key"
    r"|missing key(?! in checkpoint state_dict: args\b)|(?:keyword|positional) argument"
    r"|incompatible|not supported",
    re.I,
)
_TERMINATED = re.compile(
    r"DataLoader worker \(pid\(?s?\)? ?[^)]*\) is killed by signal: Terminated"
)
_FILES = frozenset(
    {
        "OSError", "IOError", "FileExistsError", "FileNotFoundError", "IsADirectoryError",
        "NotADirectoryError", "PermissionError", "TimeoutError", "BlockingIOError",
    }
)  # fmt: skip
_PROGRAMMING = _NAMES | {
    "AssertionError", "AttributeError",
    "IndexError", "InstantiationException",
    "JSONDecodeError", "KeyError", "LookupError", "NotImplementedError", "OverflowError",
    "ParserError", "RecursionError", "ScannerError", "StopIteration", "TabError",
    "TypeError", "UnicodeDecodeError", "UnicodeEncodeError", "ValueError",
    "ZeroDivisionError",
}  # fmt: skip
_SETTINGS = re.compile(
    r"\w*(?:[Cc]onfig|Configuration|Argument|Validation|Mismatch|Unsupported)\w*(?:Error|Exception)"
)
"""Names of exceptions about invalid settings."""
_INNER = re.compile(r"\b([A-Za-z_]\w{0,60}(?:Error|Iteration))\b(?:: |\()")
_INTERPRETER = re.compile(
    r"missing \d+ required (?:positional|keyword)|unexpected keyword argument"
    r"|takes (?:from )?\d+ (?:to \d+ )?positional argument|takes no (?:keyword )?arguments"
    r"|object has no attribute|has no attribute '|object is not (?:callable|subscriptable|iterable)"
    r"|object does not support item (?:assignment|deletion)"
    r"|is not defined$|referenced before assignment|cannot import name|No module named"
    r"|[Cc]an(?:'t|not) pickle|is not JSON serializable|unsupported operand type"
    r"|undefined symbol|cannot open shared object file|version `\w+_[\d.]+' not found"
)
"""Messages of Python and the dynamic loader about wrong code or a wrong build of it; they also
occur inside the message of another exception."""
_OUTSIDE = re.compile(
    r"Timeout|Connect|Network|HTTP|SSL|Socket|Protocol|Remote|Unavailable|OSError|IOError|EOFError"
    r"|Interrupted|BlockingIO|BrokenP|Memory|SystemError|Died|Actor|Ray|Dist|Rendezvous|NCCL|Gloo"
    r"|Accelerator|C[Uu][Dd][Aa]|Client|S3|Blob|Rpc|RPC|Signal|Checkpoint|Unpickling|Exited|Store"
    r"|Empty|Process|Hub"
)
"""Parts of exception names whose reason may lie outside the program."""
_AWAY = re.compile(r"Timeout|Connect|HTTP|SSL|Socket|Remote|Unavailable|Client|S3|Blob")
"""Those of `_OUTSIDE` that point to a remote server."""
_FULL = re.compile(r"\b(?:CUDA|HIP|GPU|NPU|XPU|HPU|MUSA|MLU|TPU|DCU)\b.{0,20}\bout of memory", re.I)
_REQUIRED = re.compile(
    r"assertion failed|check failed|\bmust (?:be|have|match)\b|\bshould (?:be|have)\b|\brequires?\b"
    r"|not (?:supported|compiled|built|implemented|installed|compatible|allowed)|unsupported"
    r"|incompatible|\bexpected\b.{0,80}\b(?:but|got)\b|could not find|cannot find|version"
    r"|not divisible|is not (?:part of|a member of|among)\b"
    r"|invalid (?:argument|value|choice|option|device ordinal|config)",
    re.I,
)
"""Words of messages about a requirement that the program or its environment does not meet."""
_SETTING = re.compile(
    r"\b(?:you )?must (?:set|specify|provide|pass|give)\b|\bin the [\w .]{1,40} config\b"
    r"|\bmust be (?:set|specified|provided|given)\b|\bhas not been set\b"
    r"|\b(?:missing|unknown|invalid) (?:config(?:uration)?|setting|option|argument|flag)s?\b",
    re.I,
)
_DEMANDS = re.compile(
    r"^Expected |\bexpects? (?:a|an|at least|exactly|\d|\w+ to)\b|\bmust match\b"
    r"|\bmust (?:all )?(?:have|be of|be on) the same (?:d?type|shape|size|device)\b"
    r"|shapes cannot be multiplied"
    r"|inplace operation|does not require grad|a second time|\bgot mixed\b|still have inflight"
    r"|\bmarked? (?:as )?ready (?:only once|twice)"
)
"""Messages of torch about wrong use of its API, at any step."""
_COMMAND = re.compile(
    r"^Command '?\[?'?\"?(?:\S*/)?+(?!python|torchrun|accelerate|deepspeed|srun|mpi)\w"
)
_REFUSED = re.compile(r"^Invalid |\bmismatch|\bduplicate|\bnot (?:supported|covered|fully)\b", re.I)
_NEVER_WORKS = re.compile(r"\b(?:is|are) not (?:yet )?(?:supported|implemented)\b|\bunsupported\b")
_PASSING = re.compile(
    r"tim(?:ed?|ing) ?out|connect|refused|reset by|temporar|unreachable|network|retr(?:y|ies)"
    r"|unavailable|nccl|gloo|cuda (?:error|failure|driver|runtime|call|kernel)|cudaError|cudnn"
    r"|cublas|nvml|gpu|hip |rocm|\brank ?\d|tcpstore|socket|worker"
    r"|killed|signal|memory|input/output|errno|deadlock|barrier|heartbeat|checkpoint|corrupt"
    r"|rendezvous|server|download|http",
    re.I,
)
"""Words of messages about the machine, the network or another process."""


_BY_NAME = {
    "KeyboardInterrupt": Cause.DELETED_BY_USER,
    "SignalException": Cause.KILLED,
    "MemoryError": Cause.OOM,
    "OutOfMemoryError": Cause.OOM,
}
_PATHS = _FILES - {"OSError", "IOError", "TimeoutError", "BlockingIOError"}


FAMILIES: dict[str, Cause] = {
    "checkpoint": Cause.CHECKPOINT,
    "collective-timeout": Cause.HANG,
    "data": Cause.DATA,
    "fabric": Cause.FABRIC,
    "gpu-hardware": Cause.HARDWARE,
    "host-memory": Cause.OOM,
    "kubernetes": Cause.LOST_POD,
    "numerics": Cause.NAN,
    "nvlink": Cause.HARDWARE,
    "out-of-memory": Cause.OOM,
    "process-crash": Cause.CRASH,
    "rendezvous": Cause.LOST_POD,
    "software-stack": Cause.USER_ERROR,
    "storage": Cause.STORAGE,
    "user-code": Cause.USER_ERROR,
}
"""Cause by runbook, for catalogue entries that name no cause."""

_LOADER_DIED = frozenset({"dataloader-worker-error", "dataloader-exited", "dataloader-crashed"})
_NO_CUDA = "cuda-init-error"
_HUNG_TASK = "host-hung-task"
MEMORY = frozenset({"k8s-oom-killed", "host-oom-cgroup", "host-oom-node", "container-memory-limit"})
_SAME_TEXT = 40
_KERNEL_ASSERTS = "cuda-kernel-assert"
_NOT_THERE = "data-file-not-found"
_OF_DATA = re.compile(
    r"(?<!meta)data|corpus|shard|indexmap|manifest|index|bucket"
    r"|\.(?:bin|idx|npy|jsonl?|parquet|arrow|mds|tar|txt|csv|wav|flac|zst|gz)\b",
    re.I,
)
_STEP_CANCELLED = "slurm-step-cancelled"
REPORTS = ("elastic", "launcher")
"""Kinds of errors by which a launcher reports an exit, most specific first."""


def cause_of(entry: CatalogueEntry) -> Cause:
    if entry.role is Role.BENIGN:
        return Cause.UNKNOWN
    if entry.cause is not None:
        return entry.cause
    if entry.xid is not None:  # 13 and 31 are the application's fault unless they recur
        return Cause.CRASH if entry.blame in (Blame.USER, Blame.JOB) else Cause.HARDWARE
    return FAMILIES.get(entry.runbook, Cause.CRASH)


def is_of_a_fork(seen: FaultSeen, faults: Iterable[FaultSeen]) -> bool:
    """Whether a data loader worker was forked from a process that used CUDA: the GPU is healthy."""
    return seen.fault.id == _NO_CUDA and any(each.fault.id in _LOADER_DIED for each in faults)


def is_of_a_loader(faults: Iterable[FaultSeen]) -> bool:
    """Whether a data loader worker read the file: it is not a checkpoint."""
    return any(each.fault.id in _LOADER_DIED for each in faults)


def is_missing_file_of_no_data(seen: FaultSeen) -> bool:
    """Whether a file is missing whose path does not look like part of a dataset."""
    return seen.fault.id == _NOT_THERE and not _OF_DATA.search(seen.fault.text)


def is_without_memory(seen: FaultSeen, faults: Iterable[FaultSeen]) -> bool:
    """Whether a hung kernel task is due to a machine that ran out of memory."""
    return seen.fault.id == _HUNG_TASK and ran_out_of_memory(faults)


def ran_out_of_memory(faults: Iterable[FaultSeen]) -> bool:
    """Whether a process was killed for its memory use."""
    return any(each.fault.id in MEMORY for each in faults)


def plain(exit_code: int | None, signal: str | None = None) -> int | None:
    """Return the trainer's own exit code, negative for a signal; None for a clean exit."""
    if exit_code:
        return _WRAPPED.get(exit_code, exit_code)
    return -(signal_table.number_of(signal) or 1) if signal else None


def exit_of_worker(text: str) -> int | None:
    """Read `failed (exitcode: -9) local_rank: 0`, as torchelastic prints it."""
    found = _WORKER.search(text)
    return plain(int(found[1])) if found else None


def place_of_exit(exit_code: int | None, signal: str | None) -> int:
    """Return a sort key, most specific first: abort and SIGTERM usually follow another death."""
    code = plain(exit_code, signal)
    if code in (RERUN_EXIT, FAILED_RESULT_EXIT):
        return 0
    number = signal_of(code)
    return 1 if number in SHOT else {SIGABRT: 3, SIGTERM: 4}.get(number or 0, 2)


def cause_of_exit(exit_code: int | None) -> Cause:
    signal = signal_of(exit_code)
    if signal is not None:
        known = signal_table.BY_NUMBER.get(signal)
        return Cause.CRASH if known is None else _MEANINGS[known.meaning]
    return _CODES.get(plain(exit_code) or 0, Cause.CRASH)


def cause_of_reason(reason: str | None) -> Cause | None:
    """Classify the reason given by Kubernetes or the wrapper; None if it names no cause."""
    if not reason:
        return None
    return next((cause for pattern, cause in _REASONS if pattern.search(reason)), None)


def is_about_files(error: str | None) -> bool:
    """Whether bad data may raise this exception; a missing module or name is never due to data."""
    return _last_part(error) not in _NAMES | {"AttributeError", "TypeError", "NotImplementedError"}


def names_a_setting(message: str) -> bool:
    """Whether the message asks for another configuration, whichever code raised it."""
    return _SETTING.search(message) is not None


def is_cascade(error: str | None, message: str = "") -> bool:
    """Whether it was raised because another process ended first, or only passes on a failure."""
    return _last_part(error) in _CASCADES or _PASSED_ON.search(message) is not None


def cancelled_at(faults: Iterable[FaultSeen]) -> dict[str, int]:
    """Return, by file, the first line that shows that Slurm cancelled the step."""
    lines: dict[str, int] = {}
    for fault in (each.fault for each in faults if each.fault.id == _STEP_CANCELLED):
        lines[fault.file] = min(fault.line, lines.get(fault.file, fault.line))
    return lines


def is_after_cancel(
    seen: ErrorSeen, cancelled: Mapping[str, int], reports: Iterable[ErrorSeen]
) -> bool:
    """Whether Slurm had already cancelled the step, and no task had failed before that.

    An error during a load belongs to a new run.

    `cancelled`: from `cancelled_at`."""
    file = seen.error.file
    since = cancelled.get(file)
    if since is None or seen.error.line < since or seen.error.during == "load":
        return False
    return all(each.error.line > since for each in reports if each.error.file == file)


def cause_of_cascade(error: str | None, message: str) -> Cause:
    """Classify an exception by which a process reports the loss of another."""
    return _cause_by_words(_last_part(error), f"{error}: {message}") or Cause.CRASH


def cause_of_error(
    error: str | None,
    message: str = "",
    during: str | None = None,
    *,
    has_worked: bool = True,
) -> Cause:
    """Classify an exception that is not in the catalogue.

    A programming error recurs with the same samples: a restart does not fix it. `has_worked`: the
    process had completed this operation before (a step, a save) when the exception was raised.
    Otherwise it will fail again, unless the reason lies outside the program.
    """
    name = _last_part(error)
    if blames_code(message):
        return Cause.USER_ERROR
    if name == "FileExistsError" and not has_worked and "[Errno" not in message:
        return Cause.USER_ERROR  # the program refuses to overwrite the files of an earlier run
    if during == "unscale" and name == "ZeroDivisionError":
        return Cause.LOSS_SCALE_COLLAPSE  # the scale has been halved down to 0
    if during == "save" and name in _FILES:
        return Cause.STORAGE
    if cause := _cause_by_words(name, f"{error}: {message}"):
        return cause
    is_misuse = name == "RuntimeError" and _DEMANDS.search(message)
    if name in _PROGRAMMING or _SETTINGS.fullmatch(name) or is_misuse:
        return Cause.USER_ERROR
    first = None if has_worked else _cause_of_first_try(name, message, during)
    return first or _cause_by_place(name, message, during, has_worked=has_worked)


def _cause_of_first_try(name: str, message: str, during: str | None) -> Cause | None:
    if "Checkpoint" in name and during != "save":
        return Cause.CHECKPOINT
    # A tool of the environment, such as a compiler, or a check that runs before every save.
    is_tool = name == "CalledProcessError" and _COMMAND.search(message)
    is_check = "Checkpoint" in name and _REFUSED.search(message)
    is_refused = _NEVER_WORKS.search(message) or is_tool or is_check
    return Cause.USER_ERROR if is_refused or name in _PATHS else None


def _cause_by_place(name: str, message: str, during: str | None, *, has_worked: bool) -> Cause:
    """Classify an exception whose name is not specific."""
    if not has_worked and name and _REQUIRED.search(message) and not _OUTSIDE.search(name):
        return Cause.USER_ERROR
    may_pass = not name or _OUTSIDE.search(name) or _PASSING.search(message)
    if during == "data" and not may_pass:
        return Cause.DATA  # the same sample raises it again
    if during == "data" and _AWAY.search(name):
        return Cause.STORAGE  # the storage of the data does not respond
    if name == "TimeoutError":
        return Cause.HANG  # another process did not respond
    return Cause.CRASH if has_worked or may_pass else Cause.USER_ERROR


def _cause_by_words(name: str, text: str) -> Cause | None:
    """Classify by the name alone, or by what the name and the message are about."""
    if _TERMINATED.search(text):
        return Cause.KILLED  # the signal was sent to all processes
    if name in _BY_NAME:
        return _BY_NAME[name]
    if _FULL.search(text):
        return Cause.OOM
    return cause_of_exception(text)


def blames_code(message: str) -> bool:
    """Whether the message repeats an error of the program, as wrapping exceptions do."""
    inner = any(found[1] in _PROGRAMMING for found in _INNER.finditer(message))
    return inner or _INTERPRETER.search(message) is not None


def cause_of_load_error(error: str | None, message: str) -> Cause:
    """Classify an exception raised while a checkpoint was being loaded.

    A damaged file can raise any exception. Settings that differ from the checkpoint fail with older
    checkpoints too.
    """
    is_ours = _last_part(error) in _NAMES or _MISMATCH.search(message)
    is_ours = is_ours or _INTERPRETER.search(message)
    return Cause.USER_ERROR if is_ours else Cause.CHECKPOINT


def _last_part(error: str | None) -> str:
    return (error or "").rpartition(".")[2]


def explains(fault: FaultSeen, seen: ErrorSeen) -> bool:
    """Whether fault and error are one event; their ranks may differ: all may raise the same."""
    error, text = seen.error, fault.fault.text
    if fault.fault.id == _KERNEL_ASSERTS and "device-side assert" in error.message:
        return True  # the host's report of the same assertion
    if error.message and error.message[:_SAME_TEXT] in text:
        return True
    return not error.message and bool(error.error) and str(error.error) in text


def place_of_report(seen: ErrorSeen) -> tuple[int, int, float]:
    error = seen.error
    return REPORTS.index(error.kind), place_of_exit(error.exit_code, error.signal), seen.at


def is_after(last: Step | None, at: float, file: str, line: int) -> bool:
    """Whether it came after that iteration line: by number within one file, otherwise by clock."""
    if last is None:
        return True
    return line > last.line if file == last.file else at > last.at


def has_trained(attempt: Attempt) -> bool:
    return bool(attempt.steps) or attempt.first_iteration is not None
