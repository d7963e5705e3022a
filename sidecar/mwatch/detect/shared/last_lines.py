# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the last lines of a recorded log show of a run, in whatever form a program prints them.

A count that rises is progress; a bar that stands still or slows down, a start from scratch, and
what somebody typed or remarked are signs of trouble without an error. Losses have a module of their
own, `detect.shared.loss_lines`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from operator import lt

from mwatch.detect.shared.loss_lines import has_loss
from mwatch.detect.shared.words import COMPLAINS, MAX_LINE, Complaint
from mwatch.model.finding import Cause

_HAD_ONE = re.compile(
    r"\b(?:discovered|found) (?:an? |the )?(?:latest|last|newest|existing) (?:checkpoint|model)\b"
    r"|\bexception while trying to load\b|\bsav(?:ed|ing) (?:an? |the )?checkpoint\b.{0,200}\d"
    r"|\bremoving unfinished checkpoint\b"
    r"|\b(?:attempt|retry|restart) (?:#|number |no\.? )?[2-9]\d?\b|\brestart [1-9]\d? of \d"
    r"|\bre(?:start|launch|creat)(?:ing|ed)?+ (?:the |\d{1,5} )?worker(?: group|s)\b"
    r"|\b(?:restart|resume|requeue|retry)_?(?:count|attempt|number|index)\W{1,3}[1-9]"
    r"|\bresume requested: \S|\bload(?:ing)? (?:the )?checkpoint \S{0,200}[_-]\d{2,12}\b",
    re.I,
)
_FROM_SCRATCH = re.compile(
    r"\b(?:train|start|initiali[sz]|begin)\w*(?: training)? from (?:scratch|step 0|iteration 0"
    r"|random)\b|\bno (?:existing |previous )?(?:autoresume )?checkpoints? (?:was |were )?found\b"
    r"|\blast_checkpoint = None\b",
    re.I,
)
_CUT_OFF = re.compile(r"\b(?:CANCELLED AT|SIGTERM|SIGKILL|preempt(?:ed|ion)|requeue)\b", re.I)
_ASKED = re.compile(
    r"--[\w.-]{0,60}(?:resume[\w.-]{0,40}|restart(?:[_-](?:from|file|path|checkpoint))?)[= ]"
    r"\S{0,200}?[/.-]\S{0,200}?\d{2}|--[\w.-]{0,60}load[_-]step[= ]\d{2}"
)
_AT_FIRST = re.compile(
    r"^\W{0,8}step[ |:]{1,20}[01]\b|\btraining starts at step [01]\b|[\]-] step: {1,8}[01]\b", re.I
)
_HOST_MEMORY = re.compile(
    r"\b(?:CPU Virtual Memory|(?:host|system|cpu) (?:memory|ram)(?: usage)?|RAM usage)\b"
    r"[^%\n]{0,80}?(\d{1,3}(?:\.\d{1,4})?) ?%",
    re.I,
)
_FULL_PERCENT = 75.0  # a report is of before the part that did not fit
_GIVEN = re.compile(
    r"\[?([\w.-]{1,64})\]?: [^\n]{0,60}\b(?:GLOBAL_RANK|global_rank)[:=] {0,2}(\d{1,6}), MEMBER\b"
)
_LISTS = re.compile(r"^(?:\S{0,80}[$#]|\+) (?:sudo )?(?:ls|tree|(?:aws s3|gsutil|hdfs dfs) -?ls)\b")
_LISTED = re.compile(
    r"(?:^|[\s/])(?:iter_\d{5,9}|checkpoint[-_]\d{1,9}|(?:global_)?step[-_=]?\d{1,9}|mp_rank_\d\d"
    r"|\S{1,160}-step=\d{1,9}|(?:ep\d{1,6}-)?ba\d{1,9}|\S{1,80}[-_=]\d{1,9}\S{0,80}\.(?:pt|pth|ckpt))\b"
)
_LISTED_LINES = 12
_NO_MODEL = re.compile(
    r"(?:could not find the metadata file|Unable to find latest file at) "
    r"(?:\S{0,300}/)?(?:\w{0,30}models?|pretrain\w{0,20}|hub|huggingface|[\w.-]{1,60}-hf)/"
    r"|No checkpoint file exists at `resume_from_checkpoint`",
    re.I,
)
"""What it was to begin with is not there; the folder of the run itself is empty at its start."""
_OF_SPEED = re.compile(r"temperature|clocks|throttle|slowdown")
_LOOKED = re.compile(
    r"^(?:\S{0,80}[$#>] |\([\w-]{1,40}\) \S{1,80}[$#] )(?:\w+; ?)?(?:sudo )?"
    r"(?:srun (?:-\S{1,40} (?:\d{1,9} )?){0,6})?"
    r"(?:nvidia-smi|rocm-smi|py-spy|gdb|strace|ps|top|htop)\b"
    r"|^-{2,} ?(?:nvidia-smi|rocm-smi|py-spy|gdb)\b"
)
_NOTED = re.compile(
    r"^\W{0,6}(?:[a-z']{1,12} ){0,5}(?:no (?:more |further |new )?output\b"
    r"|nothing (?:more|else|happens|is printed|moves)|stuck here|hangs? here"
    r"|hangs? (?:forever|for ever|indefinitely)|waited \d+ (?:min|hour))",
    re.I,
)
"""A remark of who pasted the log."""
_AT_ZERO = re.compile(r"\b0/\d{1,12} \[(?:(\d{1,3}):)?(\d{1,2}):\d\d<\?")
_LONG_MINUTES = 10
_TABLE = re.compile(r"# +\(B\) +\(elements\) ")
_ROW = re.compile(r"^\W*(?:\S+ )?\d{1,15} +\d{1,15} +[a-z]\w{2,15} ")
_BAR = re.compile(
    r"\b(\d{1,12})/(\d{1,12}) \[[\d:]{4,12}<[^,\]\n]{1,20},\s{1,4}"
    r"(\d{1,9}(?:\.\d{1,6})?)(s/it|it/s)"
)
_VALUE = r"(?P<value>\d{1,9}(?:,\d{3}){0,3}(?:\.\d{1,6})?(?:e[+-]?\d{1,2})?)"
_COUNTS = r"(?:it(?:er(?:ation)?)?|step|batch|example|sample|token|image|sequence|word)(?:e?s)?"
_RATES = (
    re.compile(
        rf"\b(?P<name>tps|tgs|wps|{_COUNTS}(?:/|_per_|[ _]per[ _])s(?:ec(?:ond)?)?\w{{0,16}}"
        rf"|throughput\w{{0,24}})[\"']?\s{{0,8}}[:=|]\s{{0,8}}{_VALUE}\b",
        re.I,
    ),
    re.compile(rf"\b{_VALUE} (?P<name>{_COUNTS}/s(?:ec(?:ond)?)?)\b", re.I),
)
"""How many in a second."""
_TIMES = (
    re.compile(
        r"\b(?P<name>(?:(?:step|iter(?:ation)?|batch)[ _]time"
        r"|time per (?:iter(?:ation)?|step|batch)) ?(?:\(m?s(?:ec)?\))?)"
        rf"[\"']?\s{{0,8}}[:=]\s{{0,8}}{_VALUE}\b",
        re.I,
    ),
    re.compile(
        rf"\b{_VALUE} (?P<name>m?s(?:ec(?:ond)?s?)?/(?:it(?:er)?|step|batch|sample))\b", re.I
    ),
)
_FEW = 3  # lines, counts of a bar or rates; of the last two each
_MUCH_SLOWER = 2.5  # times as slow as each of as many before
_GROWING = 5  # lines of which each is slower
_DONE = re.compile(
    r"\b(?:epochs|steps|iterations|training) (?:are |is |was |has )?"
    r"(?:completed?|completes|finished|done|over)\b"
    r"|\btraining ends\b|\btrained model has been saved\b"
    r"|\bdid not improve in the last \d{1,9} records\b|\bearly stopping (?:triggered|at epoch)\b",
    re.I,
)
_EXIT_ZERO = re.compile(
    r"\bexit(?:ed|s)?(?: (?:with|code|status|value)){0,3} {0,2}[:=]? {0,2}0(?![\w.])", re.I
)
_NONE_THERE = re.compile(
    r"Only EFA provider is supported|[Nn]o (?:EFA|eligible) (?:device|provider)"
)
_SUCCEEDED = re.compile(
    r"^[a-z0-9][\w.-]{0,80} {2,}(?:\S{1,20} {2,}){0,3}Succeeded(?: {2,}\S{1,20})?$"
)
_ASKS_EXIT = re.compile(r"[$#>] echo \$\?\s*$")
_NEARLY = 0.95
_NO_FAST_NETWORK = re.compile(
    r"NCCL WARN NET/\w+ .{0,80}\b(?:failed|unexpected|error|unable|cannot)"
    r"|NET/Plugin.{0,300}(?:not found \(required by|undefined symbol|cannot open shared object)",
    re.I,
)
_OF_NCCL = re.compile(r"([\w.-]{1,64}):\d+:\d+ \[\d+\] NCCL INFO (?:.{0,80} nranks (\d{1,6}))?")
_GPUS_OF_A_MACHINE = 8
_SOCKETS = re.compile(r"Using network Socket|Initialized NET plugin Socket")
_TRIALS_RUN = re.compile(r"^Number of trials: [^\n]{0,60}\b[1-9]\d{0,5} RUNNING\b|^Result for \w")
_COUNTED = (
    re.compile(
        r"(?:epoch|step|iter(?:ation)?|round|batch|episode|update)s?\W{0,4}(\d{1,12})\b", re.I
    ),
    re.compile(r"\[ {0,12}(\d{1,12})/\d{2,12}\]"),
)
_DIGITS = re.compile(r"\d+")  # of a time, a rank or a process before the count


def is_completed(text: str) -> bool:
    """A line by which a trainer reports its own end."""
    return _DONE.search(text) is not None


def ends_well(lines: Sequence[tuple[int, str]]) -> bool:
    """The last lines report exit code 0, or a row of `kubectl get` that the job succeeded."""
    last = [text[:MAX_LINE] for _, text in lines[-_FEW:]]
    is_asked = any(_ASKS_EXIT.search(text) for text in last) and last[-1].strip() == "0"
    is_listed = bool(last) and _SUCCEEDED.search(last[-1]) is not None
    return is_asked or is_listed or any(map(_EXIT_ZERO.search, last))


def stopped_short(lines: Sequence[tuple[int, str]]) -> Complaint | None:
    """The run ended with exit code 0 far from the last count of its bar."""
    if not ends_well(lines):
        return None
    last: Complaint | None = None
    for number, line in lines:
        for found in _BAR.finditer(line[:MAX_LINE]):
            is_short = int(found[1]) < _NEARLY * int(found[2])
            last = Complaint(Cause.FINISHED_EARLY, number, line.strip()) if is_short else None
    return last


def completed(lines: Sequence[tuple[int, str]]) -> Complaint | None:
    """One of the last lines reports the end of the run."""
    for number, line in reversed(lines[-_FEW:]):
        text = line[:MAX_LINE]
        if _DONE.search(text) or _EXIT_ZERO.search(text):
            return Complaint(Cause.FINISHED, number, line.strip())
    return None


def counted_until(lines: Iterable[tuple[int, str]]) -> int:
    """The last line but one of a count that rises, in a form that no recogniser reads, or the last
    by which Ray Tune reports trials that run; 0: none.

    Two more counts after an error show that it was caught.
    """
    counts: dict[str, int] = {}
    risen = [0, 0]
    for number, line in lines:
        text = line[:MAX_LINE]
        if _TRIALS_RUN.search(text):
            risen = [number, number]
        if COMPLAINS.search(text):
            continue
        is_risen = False
        for found in filter(None, (each.search(text) for each in _COUNTED)):
            form, count = _DIGITS.sub("0", text[: found.start(1)].rstrip()), int(found[1])
            is_risen = is_risen or count > counts.get(form, count)
            counts[form] = max(count, counts.get(form, count))
        if is_risen:
            risen = [risen[1], number]
    return risen[0]


def started_anew(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """There was a checkpoint, or one was asked for by its number, or a model to begin with was
    named, and yet the training began without one. Who pasted the log may have listed the
    checkpoints above or below it."""
    had_one, is_asked, listed_until, anew = False, False, 0, None
    has_stepped = False
    for number, line in lines:
        text = line[:MAX_LINE]
        if _CUT_OFF.search(text):
            had_one = had_one or has_stepped
        has_stepped = has_stepped or has_loss(text)
        if is_asked and _AT_FIRST.search(text):
            return anew or Complaint(Cause.STARTED_FROM_RANDOM, number, line.strip())
        is_asked = is_asked or _ASKED.search(text) is not None
        if _FROM_SCRATCH.search(text) or _NO_MODEL.search(text):
            anew = anew or Complaint(Cause.STARTED_FROM_RANDOM, number, line.strip())
            had_one = had_one or _NO_MODEL.search(text) is not None
        elif anew is None:
            had_one = had_one or _HAD_ONE.search(text) is not None
        if _LISTS.search(text):
            listed_until = number + _LISTED_LINES
        elif number <= listed_until:
            had_one = had_one or _LISTED.search(text) is not None
        if anew is not None and had_one:
            return anew
    return None


def ranks_given_twice(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """Processes of different nodes were given the same rank, so that others wait for the rest."""
    nodes: dict[str, str] = {}
    for number, line in lines:
        if found := _GIVEN.match(line[:MAX_LINE]):
            node, rank = found.groups()
            if nodes.setdefault(rank, node) != node:
                return Complaint(Cause.USER_ERROR, number, line.strip())
    return None


def host_memory_full(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """The last report of the host's memory, such as DeepSpeed's, shows it nearly full."""
    last: Complaint | None = None
    for number, line in lines:
        if used := _HOST_MEMORY.search(line[:MAX_LINE]):
            is_full = float(used[1]) >= _FULL_PERCENT
            last = Complaint(Cause.OOM, number, line.strip()) if is_full else None
    return last


def stood_still(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """A bar that stays at zero, a table of nccl-tests without a row, or what somebody typed to see
    why nothing comes any more."""
    is_begun, found, table = False, None, None
    for number, line in lines:
        text = line[:MAX_LINE]
        is_looked = _LOOKED.search(text) and not _OF_SPEED.search(text)
        if is_begun and (is_looked or _NOTED.search(text)):
            return Complaint(Cause.HANG, number, line.strip())
        bar = _AT_ZERO.search(text)
        minutes = int(bar[1] or 0) * 60 + int(bar[2]) if bar else 0
        found = Complaint(Cause.HANG, number, line.strip()) if minutes >= _LONG_MINUTES else None
        if _TABLE.search(text):
            table = Complaint(Cause.HANG, number, line.strip())
        elif _ROW.search(text):
            table = None
        is_begun = is_begun or bool(text.strip())
    return found or table


def slowed(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """The last counts of a progress bar, or the last rates or times of one name, are several times
    as slow as those before, or each is slower than the one before."""
    bars: dict[str, dict[int, tuple[float, int, str]]] = {}
    times: dict[str, list[tuple[float, int, str]]] = {}
    for number, line in lines:
        text = line[:MAX_LINE]
        for found in _BAR.finditer(text):
            rate = float(found[3])
            if rate:
                seconds = rate if found[4] == "s/it" else 1 / rate
                bars.setdefault(found[2], {})[int(found[1])] = seconds, number, line.strip()
        for name, seconds in _printed_times(text):
            times.setdefault(name, []).append((seconds, number, line.strip()))
    of_bars = (_slowdown([*steps.values()], least=1.0) for steps in bars.values())
    return next(filter(None, (*of_bars, *map(_slowdown, times.values()))), None)


def _printed_times(text: str) -> Iterator[tuple[str, float]]:
    """What a line says of its speed: the name, and a time in whatever unit."""
    for form in (*_RATES, *_TIMES):
        for found in form.finditer(text):
            value = float(found["value"].replace(",", ""))
            if 0.0 < value < inf:
                yield found["name"].lower(), 1 / value if form in _RATES else value


def _slowdown(times: Sequence[tuple[float, int, str]], least: float = 0.0) -> Complaint | None:
    """`times`: seconds, line and text. `least`: shorter ones are never slow."""
    if _grows([seconds for seconds, _, _ in times]) and times[-1][0] >= least:
        return Complaint(Cause.SLOW, *times[-1][1:])
    if len(times) < 2 * _FEW:
        return None
    slow = min(seconds for seconds, _, _ in times[-_FEW:])
    is_fast = [_MUCH_SLOWER * seconds < slow for seconds, _, _ in times]
    begin = next((at for at in range(len(times) - 1, -1, -1) if is_fast[at]), -1) + 1
    fast = sum(is_fast[:begin])
    if fast < max(_FEW, begin // 2) or slow < least:
        return None
    return Complaint(Cause.SLOW, times[begin][1], times[begin][2])


def _grows(seconds: Sequence[float]) -> bool:
    """Each of the last is longer than the one before, and the last one much longer."""
    last = seconds[-_GROWING:]
    rises = len(last) == _GROWING and all(map(lt, last, last[1:]))
    return rises and last[-1] > _MUCH_SLOWER * last[0]


def slow_network(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """NCCL gave up its network and goes on over plain sockets, between machines."""
    is_without, found, hosts, ranks = False, None, set(), 0
    for number, line in lines:
        text = line[:MAX_LINE]
        if place := _OF_NCCL.search(text):
            hosts.add(place[1])
            ranks = max(ranks, int(place[2] or 0))
        if _NONE_THERE.search(text):
            return None  # the machine has no fast network that could be used
        is_without = is_without or _NO_FAST_NETWORK.search(text) is not None
        if is_without and found is None and _SOCKETS.search(text):
            found = Complaint(Cause.SLOW, number, line.strip())
    is_one_machine = len(hosts) == 1 and 0 < ranks <= _GPUS_OF_A_MACHINE
    return None if is_one_machine else found
