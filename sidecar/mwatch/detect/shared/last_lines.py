# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the last lines of a recorded log show of a run, in whatever form a program prints them.

A count that rises is progress; a bar that stands still, ranks that never came, a start from
scratch, and what somebody typed or remarked are signs of trouble without an error. Losses and
speeds have modules of their own, `detect.shared.loss_lines` and `detect.shared.speed_lines`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from mwatch.detect.shared.loss_lines import has_loss
from mwatch.detect.shared.speed_lines import BAR
from mwatch.detect.shared.words import COMPLAINS, MAX_LINE, Complaint, family_of, is_typed
from mwatch.model.cause import Cause

_HAD_ONE = re.compile(
    r"\b(?:discovered|found) (?:an? |the )?(?:latest|last|newest|existing) (?:checkpoint|model)\b"
    r"|\bexception while trying to load\b"
    r"|\bsav(?:ed|ing) (?:an? |the |model )?checkpoint\b.{0,200}\d"
    r"|\bremoving unfinished checkpoint\b"
    r"|\b(?:attempt|retry|restart) (?:#|number |no\.? )?[2-9]\d?\b|\brestart [1-9]\d? of \d"
    r"|\bre(?:start|launch|creat)(?:ing|ed)?+ (?:the |\d{1,5} )?worker(?: group|s)\b"
    r"|\bworker group (?:is )?restarting\b"
    r"|\bresume requested: \S|\bload(?:ing)? (?:the )?checkpoint \S{0,200}[_-]\d{2,12}\b",
    re.I,
)
_IS_RESTART = re.compile(
    r"(?:\b|_)(?:restart|resume|requeue|retry)_?(?:count|attempt|number|index)\W{1,3}[1-9]", re.I
)
_FROM_SCRATCH = re.compile(
    r"\b(?:train|start|initiali[sz]|begin)\w*(?: training|(?: the| new)? model)? from "
    r"(?:scratch|step 0|iteration 0|random)\b|\bno checkpoint given\b"
    r"|\bno (?:existing |previous )?(?:autoresume )?checkpoints? (?:was |were )?found\b"
    r"|\blast_checkpoint = None\b",
    re.I,
)
_CUT_OFF = re.compile(r"\b(?:CANCELLED AT|SIGTERM|SIGKILL|preempt(?:ed|ion)|requeue)\b", re.I)
_ASKED = re.compile(
    r"--[\w.-]{0,60}(?:resume[\w.-]{0,40}|restart(?:[_-](?:from|file|path|checkpoint))?)[= ]"
    r"\S{0,200}?[/.-]\S{0,200}?\d{2}|--[\w.-]{0,60}load[_-]step[= ]\d{2}"
)
_LOADED_AFTER_ALL = re.compile(r"\bsuccessfully loaded (?:checkpoint )?(?:from )?\S*/", re.I)
_LOAD_ROW = re.compile(r"^\W{0,8}(load|save) \.{3,100} (/\S{1,300})\s*$")
"""Of Megatron's list of arguments."""
_EPOCH = re.compile(r"^\W{0,8}epoch (\d{1,6})\b|['\"]epoch['\"]: ?(\d{1,6})\.\d", re.I)
_RESTORED = re.compile(r"\bRestored on \S{1,80} from checkpoint: ")
"""Ray gives the code of the user a checkpoint; whether it is loaded shows later."""
_AT_EPOCH = re.compile(r"\bresum(?:e|ing) [^\n]{0,300}\bepoch[=_-][1-9]\d{0,8}\b", re.I)
_AT_FIRST = re.compile(
    r"^\W{0,8}step[ |:]{1,20}[01]\b|\btraining starts at step [01]\b|[\]-] step: {1,8}[01]\b", re.I
)
_HOST_MEMORY = re.compile(
    r"\b(?:CPU Virtual Memory|(?:host|system|cpu) (?:memory|ram)(?: usage)?|RAM usage)\b"
    r"[^%\n]{0,80}?(\d{1,3}(?:\.\d{1,4})?) ?%",
    re.I,
)
_FILLS_HOST = re.compile(r"\bBefore initializing optimizer states\b")
_LOADS_WEIGHTS = re.compile(r"\bLoading checkpoint shards: [^\n]{0,120}? (\d{1,4})/(\d{1,4}) \[")
_FILLED_HOST = re.compile(r"\bAfter initializing optimizer states\b")
_FULL_PERCENT = 75.0  # a report is of before the part that did not fit
_GIVEN = re.compile(
    r"\[?([\w.-]{1,64})\]?: [^\n]{0,60}\b(?:GLOBAL_RANK|global_rank)[:=] {0,2}(\d{1,6}), MEMBER\b"
)
_LISTS = re.compile(
    r"^(?:\S{0,80}[$#]|\+) (?:sudo )?(?:ls|tree|find|(?:aws s3|gsutil|hdfs dfs) -?ls)\b"
)
_LISTED = re.compile(
    r"(?:^|[\s/])(?:iter_\d{5,9}|checkpoint[-_]\d{1,9}|(?:global_)?step[-_=]?\d{1,9}|mp_rank_\d\d"
    r"|\S{1,160}-step=\d{1,9}|(?:ep\d{1,6}-)?ba\d{1,9}|\S{1,80}[-_=]\d{1,9}\S{0,80}\.(?:pt|pth|ckpt))\b"
)
_LISTED_LINES = 12
_NO_MODEL = re.compile(
    r"(?:could not find the metadata file|Unable to find latest file at) "
    r"(?:\S{0,300}/)?(?:\w{0,30}models?|pretrain\w{0,20}|hub|huggingface|[\w.-]{1,60}-(?:hf|optimizer-states))/"
    r"|Unable to find latest file at [\w-]{1,60}/[\w.-]{1,80}/latest\b"
    r"|No checkpoint file (?:exists|found) at `resume_from_checkpoint`"
    r"|No existing checkpoint found (?!\S{0,300}checkpoint_last)\S{0,300}/",
    re.I,
)
"""What it was to begin with is not there; the folder of the run itself is empty at its start."""
_OF_SPEED = re.compile(r"temperature|clocks|throttle|slowdown|PERFORMANCE")
_SHARE = re.compile(r"\b(\d{1,3}) ?%")
_IDLE, _BUSY = 2, 97  # per cent
_SHOWN = 12  # lines
_LOOKED = re.compile(
    r"^(?:\S{0,80}[$#>] |\([\w-]{1,40}\) \S{1,80}[$#] |\[[^\]\n]{1,80}\][$#] )"
    r"(?:\w+; ?)?(?:sudo )?(?:ssh [\w.@-]{1,80} )?"
    r"(?:srun (?:-\S{1,40} (?:\d{1,9} )?){0,6})?"
    r"(?:nvidia-smi|rocm-smi|py-spy|gdb|strace|ps|top|htop)\b"
    r"|^-{2,} ?(?:nvidia-smi|rocm-smi|py-spy|gdb)\b"
)
_NOTED = re.compile(
    r"^\W{0,6}(?:[a-z']{1,12} ){0,5}(?:no (?:more |further |new )?output\b"
    r"|nothing (?:more|else(?! runs)|happens|is printed|moves)|stuck here|hangs? here"
    r"|hangs? (?:forever|for ever|indefinitely)|waited \d+ (?:min|hour))",
    re.I,
)
"""A remark of who pasted the log."""
_AT_ZERO = re.compile(r"\b0/\d{1,12} \[(?:(\d{1,3}):)?(\d{1,2}):\d\d<\?")
_LONG_MINUTES = 10
_TABLE = re.compile(r"# +\(B\) +\(elements\) ")
_ROW = re.compile(r"^\W*(?:\S+ )?\d{1,15} +\d{1,15} +[a-z]\w{2,15} ")
_FEW = 3  # last lines that may report the end
_DONE = re.compile(
    r"\b(?:epochs|steps|iterations|training) (?:are |is |was |has )?"
    r"(?:completed?|completes|finished|done|over)\b"
    r"|\btraining ends\b|\bdone training\b|\btrained model has been saved\b",
    re.I,
)
_STOPS_EARLY = re.compile(
    r"\bdid not improve in the last \d{1,9} records\b|\bearly stopping (?:triggered|at epoch)\b",
    re.I,
)
_AT_EXIT = re.compile(r"process group has NOT been destroyed|leaked semaphore|^\W*$")
"""What programs print when they end, well or not."""
_PACKS_UP = 12  # lines in which a trainer that stops early may close what it opened
_LOOP_LINES, _TRIED = 24, 4
_OF_PEERS = (Cause.FABRIC, Cause.LOST_POD)
_TIME = re.compile(r"\d[\d:.,T/-]{4,}\d")
_ANNOUNCED = re.compile(
    r"\b(?:total (?:number of )?|max )(?:train(?:ing)? |optimi[sz]ation )?(?:steps?|iterations)"
    r"\W{1,4}(\d{1,12}(?:,\d{3}){0,3})\b",
    re.I,
)
_RAN_DRY = re.compile(
    r"\bThere seems(?: to be)? not (?:to be )?a single sample in your epoch_iterator"
    r"|\btime(?:out| limit) (?:has been |was )?reached, stopping training early"
    r"|\bran out of data; ",
    re.I,
)
_GOES_ON = re.compile(r"\bContinuing training from global step (\d{1,12})\b", re.I)
_IN_ALL = re.compile(r"train_runtime|train_loss", re.I)
_REACHED = re.compile(r"\b(?:global[_ ]?step|last[_ ]step|total steps)\W{1,8}(\d{1,12})\b", re.I)
_MEMBER = re.compile(r"\bMEMBER: (\d{1,6})/(\d{1,6})\b")
_EMPTY_SHARD = re.compile(
    r"^[-rwxsStT]{10}[.+@]? +\d+ +\S+ +\S+ +0 .{0,300}\.(?:pt|pth|ckpt|distcp|safetensors)$"
)
_PREPARED = re.compile(
    r"\b(\d{1,12})/(\d{2,12}) \[[^\]\n]{1,60} (?:ex|examples|docs|samples)/s"
    r"|^(?:\S{1,40} )?(?:[Pp]acking|[Tt]okenizing|[Pp]re-?processing|[Ff]iltering|[Mm]ap)\b"
    r"[^|\n]{0,80}\|[^|\n]{0,200}\| *(\d{1,12})/(\d{2,12}) \["
)
_BAR_TEXT = 4096  # characters: a bar is printed again and again in one line
_EXIT_ZERO = re.compile(
    r"\bexit(?:ed|s)?(?:[ _](?:with|code|status|value)){0,3} {0,2}[:=]? {0,2}0(?![\w.])", re.I
)
_SUCCEEDED = re.compile(
    r"^[a-z0-9][\w.-]{0,80} {2,}(?:\S{1,20} {2,}){0,3}Succeeded(?: {2,}\S{1,20})?$"
)
_ASKS_EXIT = re.compile(r"[$#>] echo \$\?\s*$")
_NEARLY = 0.95
_TRIALS_RUN = re.compile(r"^Number of trials: [^\n]{0,60}\b[1-9]\d{0,5} RUNNING\b|^Result for \w")
_TRIALS_PENDING = re.compile(r"^Number of trials: [^\n]{0,60}\([1-9]\d{0,5} PENDING\)")
_COUNTED = (
    re.compile(
        r"(?:epoch|step|iter(?:ation)?|round|batch|episode|update)s?\W{0,4}(\d{1,12})\b", re.I
    ),
    re.compile(r"\[ {0,12}(\d{1,12})/\d{2,12}\]"),
    re.compile(r"^ {0,16}(\d{1,15}) +\d{1,15} +(?:u?int\d{1,2}|half|b?float\d{0,2}|double) "),
    re.compile(r"(?:^|[\s>:])(\d{1,12})\s{1,4}(?:image|example|sample|token)s/s(?:ec)?: \d"),
    re.compile(
        r"^(?!.{0,80}(?:ing|[Mm]ap|[Ff]ilter|[Ss]hards?|[Tt]okenize)\b).{0,120}\d%\|[^|\n]{0,200}"
        r"\| *(\d{1,12})/\d{2,12} \[[^\]\n]{0,80}(?:it/s|s/it)"
    ),
)
_FILLED = re.compile(r"[\s\u2580-\u259f#=>]+")
"""What fills a bar, and the space beside it."""
_DIGITS = re.compile(r"\d+")  # of a time, a rank or a process before the count


def is_completed(text: str) -> bool:
    """A line by which a trainer reports its own end."""
    return (_DONE.search(text) or _STOPS_EARLY.search(text)) is not None


def ends_well(lines: Sequence[tuple[int, str]]) -> bool:
    """The last lines report exit code 0, or a row of `kubectl get` that the job succeeded."""
    last = [text[:MAX_LINE] for _, text in lines[-_FEW:]]
    is_asked = any(_ASKS_EXIT.search(text) for text in last) and last[-1].strip() == "0"
    is_listed = bool(last) and _SUCCEEDED.search(last[-1]) is not None
    return is_asked or is_listed or any(map(_EXIT_ZERO.search, last))


def stopped_short(lines: Sequence[tuple[int, str]], *, is_done: bool = False) -> Complaint | None:
    """The run ended with exit code 0 far from the last count of its bar, or from the number of
    steps that it announced. `is_done`: it reported its own end, so that a bar may be that of an
    evaluation."""
    if (dry := _ran_dry(lines)) is not None:
        return dry
    if (skipped := _had_all(lines)) is not None:
        return skipped
    if not is_done and not ends_well(lines):
        return None
    last: Complaint | None = None
    for number, line, count, end, total in _counts(lines):
        if end == total or not is_done:
            is_short = count < _NEARLY * end
            last = Complaint(Cause.FINISHED_EARLY, number, line.strip()) if is_short else None
    return last


def _ran_dry(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """The trainer says why it trains no further."""
    last: Complaint | None = None
    for number, line in lines:
        text = line[:MAX_LINE]
        if found := _RAN_DRY.search(text):
            last = Complaint(Cause.FINISHED_EARLY, number, line[found.start() :].strip())
        elif has_loss(text) and not _IN_ALL.search(text):
            last = None
    return last


def _had_all(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """The run resumed beyond the steps that it announced, so that none was left."""
    total = 0
    for number, line in lines:
        text = line[:MAX_LINE]
        if announced := _ANNOUNCED.search(text):
            total = int(announced[1].replace(",", ""))
        elif total and (resumed := _GOES_ON.search(text)) and int(resumed[1]) > total:
            return Complaint(Cause.FINISHED_EARLY, number, line.strip())
    return None


def _counts(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, int, int, int]]:
    """Number and text of each line that counts steps, the count, its end, and how many steps were
    announced before; 0: none were."""
    total = 0
    for number, line in lines:
        text = line[:MAX_LINE]
        for found in BAR.finditer(text):
            if int(found[2]):
                yield number, line, int(found[1]), int(found[2]), total
        if _GOES_ON.search(text):
            continue
        if total and (reached := _REACHED.search(text)):
            yield number, line, int(reached[1]), total, total
        elif announced := _ANNOUNCED.search(text):
            total = int(announced[1].replace(",", ""))


def members_missing(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """Processes print that they are one of so many, fewer than that came, and nothing follows but
    what somebody typed."""
    members: dict[str, set[str]] = {}
    last: Complaint | None = None
    for number, line in lines:
        text = line[:MAX_LINE]
        if found := _MEMBER.search(text):
            members.setdefault(found[2], set()).add(found[1])
            is_whole = len(members[found[2]]) >= int(found[2])
            last = None if is_whole else Complaint(Cause.HANG, number, line.strip())
        elif text.strip():
            if is_typed(text):
                break
            last = None
    return last


def keeps_failing(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """The last lines are the same complaint again and again, but for its time: somebody tries to
    reach what is gone. As a warning, one of them would mean nothing."""
    last = [(number, line[:MAX_LINE].strip()) for number, line in lines if line.strip()]
    tried: dict[str, list[tuple[int, str]]] = {}
    for number, text in last[-_LOOP_LINES:]:
        tried.setdefault(_TIME.sub("", text), []).append((number, text))
    for found in tried.values():
        complaint = family_of(found[0][1]) if len(found) >= _TRIED else None
        is_last = last[-1][0] - found[-1][0] < _LOOP_LINES // _TRIED
        if complaint in _OF_PEERS and is_last:
            return Complaint(complaint, *found[0])
    return None


def empty_shards(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """A listing shows files of a checkpoint without any content."""
    for number, line in lines:
        if _EMPTY_SHARD.match(line[:MAX_LINE]):
            return Complaint(Cause.CHECKPOINT, number, line.strip())
    return None


def completed(lines: Sequence[tuple[int, str]]) -> Complaint | None:
    """One of the last lines reports the end of the run, or that it stops early."""
    behind = 0
    for number, line in reversed(lines[-_PACKS_UP:]):
        text = line[:MAX_LINE]
        if behind < _FEW and (_DONE.search(text) or _EXIT_ZERO.search(text)):
            return Complaint(Cause.FINISHED, number, line.strip())
        behind += not _AT_EXIT.search(text)
        if _STOPS_EARLY.search(text):
            return Complaint(Cause.FINISHED, number, line.strip())
        if has_loss(text):
            return None
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
            before = _FILLED.sub(" ", text[: found.start(1)]).rstrip()
            form, count = _DIGITS.sub("0", before), int(found[1])
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
    last_epoch, at_epoch = 0, 0
    folders: dict[str, str] = {}
    for number, line in lines:
        text = line[:MAX_LINE]
        if _CUT_OFF.search(text) or _RESTORED.search(text):
            had_one, at_epoch = had_one or has_stepped, max(at_epoch, last_epoch)
        has_stepped = has_stepped or has_loss(text)
        if row := _LOAD_ROW.match(text):
            folders[row[1]] = row[2]
            had_one = had_one or len(set(folders.values())) > 1  # the weights of another run
        epoch = _EPOCH.search(text)
        last_epoch = int(epoch[1] or epoch[2]) if epoch else last_epoch
        is_first = epoch is not None and last_epoch < min(at_epoch, 2)
        if is_first or (is_asked and _AT_FIRST.search(text)):
            return anew or Complaint(Cause.STARTED_FROM_RANDOM, number, line.strip())
        if anew is not None and _LOADED_AFTER_ALL.search(text):
            return None
        is_asked = is_asked or _ASKED.search(text) is not None
        at_epoch = at_epoch or _AT_EPOCH.search(text) is not None
        if _FROM_SCRATCH.search(text) or _NO_MODEL.search(text):
            anew = anew or Complaint(Cause.STARTED_FROM_RANDOM, number, line.strip())
            had_one = had_one or _NO_MODEL.search(text) is not None
        elif anew is None:
            had_one = had_one or _HAD_ONE.search(text) is not None
        had_one = had_one or _IS_RESTART.search(text) is not None
        if _LISTS.search(text):
            listed_until = number + _LISTED_LINES
        elif number <= listed_until:
            had_one = had_one or _LISTED.search(text) is not None
    return anew if had_one else None


def trials_pending(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """Ray Tune reports again and again that no trial runs, as none fits."""
    pending: list[tuple[int, str]] = []
    for number, line in lines:
        text = line[:MAX_LINE]
        if _TRIALS_RUN.search(text):
            pending.clear()
        elif _TRIALS_PENDING.search(text):
            pending.append((number, line.strip()))
    return Complaint(Cause.UNSCHEDULABLE, *pending[-1]) if len(pending) > 1 else None


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
    """The last report of the host's memory, such as DeepSpeed's, shows it nearly full, or the
    weights or the states of the optimizer were being put there."""
    last: Complaint | None = None
    is_filling = False
    for number, line in lines:
        text = line[:MAX_LINE]
        is_filling = is_filling or _FILLS_HOST.search(text) is not None
        if used := _HOST_MEMORY.search(text):
            is_full = is_filling or float(used[1]) >= _FULL_PERCENT
            last = Complaint(Cause.OOM, number, line.strip()) if is_full else None
        elif loads := _LOADS_WEIGHTS.search(text):
            is_open = int(loads[1]) < int(loads[2])
            last = Complaint(Cause.OOM, number, line.strip()) if is_open else None
        elif _FILLED_HOST.search(text) or has_loss(text):
            is_filling, last = False, None
    return last


def prepares_data(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """Before the first step a data set is tokenized or converted, and that is far from done."""
    last: Complaint | None = None
    for number, line in lines:
        if has_loss(line[:MAX_LINE]):
            return None
        for found in _PREPARED.finditer(line[-_BAR_TEXT:] + line[:MAX_LINE]):
            is_open = int(found[1] or found[3]) < _NEARLY * int(found[2] or found[4])
            last = Complaint(Cause.HANG, number, line.strip()) if is_open else None
    return last


def _computes(lines: Sequence[tuple[int, str]]) -> bool:
    """Whether GPUs are neither idle nor all at 100 %, as they are in a collective that waits."""
    shown = (each for _, line in lines[:_SHOWN] for each in _SHARE.findall(line[:MAX_LINE]))
    return any(_IDLE < int(share) < _BUSY for share in shown)


def stood_still(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """A bar that stays at zero, a table of nccl-tests without a row, or what somebody typed to see
    why nothing comes any more."""
    is_begun, found, table = False, None, None
    lines = list(lines)
    for at, (number, line) in enumerate(lines):
        text = line[:MAX_LINE]
        is_looked = _LOOKED.search(text) and not _OF_SPEED.search(text)
        is_looked = is_looked and not _computes(lines[at + 1 :])
        is_typed_here = is_begun and (is_looked or _NOTED.search(text))
        if is_typed_here and not counted_until(lines[at + 1 :]):
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
