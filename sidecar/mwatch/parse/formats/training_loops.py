# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Step lines of training loops without a dedicated recogniser, and lines that report a run's end.

Hugging Face's Trainer, TRL, axolotl and swift print a dict; Lightning, accelerate and Keras a
progress bar; verl `step:12 - actor/pg_loss:…`; MMEngine `Iter(train) [ 12/90]`; and many loops
`step 12 | loss 2.3`. The recognisers read what these have in common: a count that rises, and values
whose names end in `loss`. A dict without a step gets the count of the progress bar before it, or
one more than the last step. A counter that restarts with each epoch is continued from the last
epoch. Values of an evaluation are left out. If several writers print the same steps, only the first
one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mwatch.model.event import Checkpoint, Event, Phase
from mwatch.parse.lines.context import MAX_TEXT, Context, Recogniser
from mwatch.parse.lines.fields import number
from mwatch.parse.lines.line import Line, stamp

_NUMBER = r"[-+]?(?:nan|inf|\d(?:[\d_,]*\d)?(?:\.\d*)?(?:e[-+]?\d{1,4})?)(?:\.0)?(?![\w%])"
_ITEM = re.compile(rf"['\"]([\w/ .@-]{{1,80}})['\"]: ['\"]?({_NUMBER})", re.I)
_NAME = r"(?:loss(?:/train/total| train)?|grad[_ -]?norm|lr|learning[_ ]rate)"
_FIELD = re.compile(
    rf"(?<![\w/.-])((?:[A-Za-z][\w/.-]{{0,60}}[ _/.-])?{_NAME})"
    rf"['\"]?\s*(?:[:=]\s*)?['\"]?({_NUMBER})",
    re.I,
)
_COUNT = re.compile(
    r"(?<![\w/.-])(?:global[_ ]?step|train[_ ]?step|num_updates|steps?|iter(?:\(train\))?|batch)"
    r"[\s:=#\]\[]{1,9}(\d{1,12})"
    r"(?:\s*/\s*(\d{1,12}))?(?![\w.])",
    re.I,
)
_EPOCH = re.compile(r"(?<![\w/.-])epoch['\"]?[\s:=#\[]{1,4}(\d{1,9})(?![\d.])", re.I)
_EPOCH_COUNT = re.compile(
    r"epoch(?:\(train\))?:? {0,4}\[(\d{1,9})(?:/\d{1,9})?\] ?\[ {0,12}(\d{1,12})/(\d{1,12})\]",
    re.I,
)
_KERAS = re.compile(r"(?<![\w/.])(\d{1,12})/(\d{1,12}) (?:\[|\u2501|- |\x1b)")
_KERAS_EPOCH = re.compile(r"Epoch (\d{1,9})/\d{1,9}\s*")
_BAR = re.compile(
    r"(?:[Ee]poch (\d{1,9})[^\n|]{0,40}?: +)?\d{1,3}%\|[^|\n]{0,200}\| *(\d{1,12})/(\d{1,12}) \["
    r"([^\]\n]{0,2000})"
)
_ENDLESS = re.compile(r"(?:[Ee]poch (\d{1,9}):[: ]{1,4})?\b(\d{1,12})it \[([^\]\n]{0,2000})")
"""Progress bar of a data loader of unknown length."""
_AHEAD = re.compile(rf"(?<![\w|])\d{{1,6}}\|(\d{{1,12}})\|Loss: ({_NUMBER}): {{1,4}}\d{{1,3}}%\|")
_TRAINS = re.compile(r"(?:\b[Tt]rain(?:ing)?(?: [Pp]rogress)?|^Steps?): {0,4}\d{1,3}%\|")
_POSTFIX = re.compile(rf"([\w/. -]{{1,60}}?)[=:] ?({_NUMBER})", re.I)
_EVALUATION = re.compile(
    r"(?:^|[\W_])(?:val|valid|validation|eval|evaluation|test|dev)(?:[\W_]|$)", re.I
)
_LOSS = re.compile(r"loss(?:/train/total| train)?$", re.I)
_OWNED = re.compile(
    r"iteration[ :=]+\d+ ?[/|]|step: *\d+ +loss: |iter time \(s\): |Training epoch "
    r"|reduced_train_loss=|(?:batch|token|sample|\[step)=\d+/\d+(?:,epoch=[\d/]+)?\]:?\s*$"
)
"""Lines in a format that another recogniser reads."""
_END = re.compile(
    r"'train_runtime': |`Trainer\.fit` stopped: `max_(?:epochs|steps)=\d+` reached"
    r"|(?:^|[\]:>|*-]\s*|INFO\s+|\) )Training (?:is )?(?:[Cc]ompleted?|completes|finished|done)\b"
    r"(?! (?:step|epoch|iteration) )"
    r"|^training (?:finished|completed?)[:.!]{0,3}\s*(?:\d|$)"
    r"|llmfoundry[^\n]{0,80}: Done\.\s*$"
    r"|(?:^|[>\]|-]\s*)Training (?:took|time):? \d[\d:.]* ?s?(?:ec(?:onds)?)?\.?\s*$"
    r"|Final validation metrics: |\*{5} train metrics \*{5}"
    r"|^Max number of (?:steps|epochs) has been reached"
    r"|[A-Z]\w{1,20}Job [\w./-]{1,200} (?:is |has )?successfully completed"
    r"|# Avg bus bandwidth {1,8}: [\d.]"
)
_RESUME = re.compile(
    r"\bLoading (?:model|checkpoint) from \S{0,300}checkpoint-(\d{1,12})\b"
    r"|\bContinuing training from global step (\d{1,12})\b"
)
"""Lines of Hugging Face's Trainer: the load begins; the training continues."""
_PROCESS_END = re.compile(r"launch\.py:\d+:\w+\] Process \d+ exits successfully")
_OF_TOTAL = re.compile(
    r"['\"](?:iteration|global_step/max_steps)['\"]: ['\"]\d{1,12}/(\d{1,12})['\"]"
)
_JSON_STEP_KEYS = ("step", "globalstep", "globalstep/maxsteps", "numupdates", "currentsteps")
_STEP_KEYS = (*_JSON_STEP_KEYS, "iteration")
_MAX_LOSSES = 8


class _Values:
    """Named numbers of one line: losses of the training, gradient norm, learning rate."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.losses: dict[str, float] = {}
        self.grad_norm: float | None = None
        self.learning_rate: float | None = None
        self.others: dict[str, float] = {}
        for key, text in pairs:
            value = number(text.replace("nan.0", "nan").replace("inf.0", "inf"))
            if value is not None and not _EVALUATION.search(key):
                self._add(key.strip(), value)

    def _add(self, key: str, value: float) -> None:
        squeezed = re.sub(r"[ _-]", "", key).lower()
        if _LOSS.search(key):
            if len(self.losses) < _MAX_LOSSES:
                self.losses.setdefault(key, value)
        elif squeezed.endswith("gradnorm"):
            self.grad_norm = value if self.grad_norm is None else self.grad_norm
        elif squeezed in ("lr", "learningrate"):
            self.learning_rate = value
        else:
            self.others[squeezed] = value

    def whole(self, *keys: str) -> int | None:
        found = (self.others[key] for key in keys if key in self.others)
        return next((int(value) for value in found if value.is_integer()), None)


def _step(
    line: Line, context: Context, values: _Values, count: int, total: int | None = None
) -> Iterable[Event]:
    if not context.loop.accepts(line.lane, count):
        return
    yield context.step(
        line,
        count,
        total,
        "other",
        timestamp=stamp(line.text),
        losses=values.losses,
        grad_norm=values.grad_norm,
        learning_rate=values.learning_rate,
    )


def _read_dict(line: Line, context: Context) -> Iterable[Event]:
    begin = line.body.find("{")
    if begin < 0 or line.body[begin - 1 : begin] == "=" or _OWNED.search(line.text):
        return
    values = _Values(_ITEM.findall(line.body[begin:]))
    if not values.losses or "trainruntime" in values.others:
        return
    _see_bar(line, context)
    loop = context.loop
    is_json = line.body[begin + 1 : begin + 2] == '"'  # other programs print JSON too
    of_total = _OF_TOTAL.search(line.body)
    has_plain_iteration = is_json and of_total is None
    printed = values.whole(*(_JSON_STEP_KEYS if has_plain_iteration else _STEP_KEYS))
    if printed is None and (is_json or not loop.is_writer(line.lane)):
        return
    total = int(of_total[1]) if of_total else None
    yield from _step(line, context, values, loop.next() if printed is None else printed, total)


def _see_bar(line: Line, context: Context) -> None:
    for found in _BAR.finditer(line.text):
        if not found[1]:
            context.loop.bar = int(found[2])
            if _TRAINS.search(line.text):
                context.loop.total = int(found[3])


def _read_bar(line: Line, context: Context) -> Iterable[Event]:
    _see_bar(line, context)
    for found in _BAR.finditer(line.text):
        values = _Values(_POSTFIX.findall(found[4]))
        if ahead := _AHEAD.search(line.text):  # torchtune
            values = _Values([("loss", ahead[2])])
            yield from _step(line, context, values, int(ahead[1]))
            return
        done, total = int(found[2]), int(found[3])
        if not values.losses or not done or _OWNED.search(line.text):
            continue
        if found[1] is None:
            yield from _step(line, context, values, done, total)
        else:
            yield from _step(line, context, values, int(found[1]) * total + done)


def _read_endless_bar(line: Line, context: Context) -> Iterable[Event]:
    for found in _ENDLESS.finditer(line.text):
        values = _Values(_POSTFIX.findall(found[3]))
        if values.losses and not _OWNED.search(line.text):
            epoch = int(found[1]) if found[1] else None
            count = context.loop.continued(int(found[2]), epoch)
            yield from _step(line, context, values, count)


def _read_text(line: Line, context: Context) -> Iterable[Event]:
    text = line.text
    if (
        _OWNED.search(text)
        or _ENDLESS.search(text)
        or "%|" in text
        or "': " in text
        or '": ' in text
    ):
        return
    values = _Values(_FIELD.findall(text))
    if not values.losses:
        return
    epoch = _EPOCH.search(text)
    if nested := _EPOCH_COUNT.search(text):
        count = int(nested[1]) * int(nested[3]) + int(nested[2])
        yield from _step(line, context, values, count)
    elif found := _COUNT.search(text):
        total = int(found[2]) if found[2] and not epoch else None
        count = context.loop.continued(int(found[1]), int(epoch[1]) if epoch else None)
        total = context.loop.total if total is None and count == context.loop.total else total
        yield from _step(line, context, values, count, total)
    elif epoch and context.loop.counts_epochs():
        yield from _step(line, context, values, int(epoch[1]))


def _read_keras_epoch(line: Line, context: Context) -> Iterable[Event]:
    if found := _KERAS_EPOCH.fullmatch(line.body):
        context.loop.announced = int(found[1])
    return ()


def _read_keras(line: Line, context: Context) -> Iterable[Event]:
    """Read the last state of a bar; earlier ones, which a terminal overwrites, share the line."""
    text = line.text[-MAX_TEXT:]
    *_, found = (None, *_KERAS.finditer(text))
    if found is None:
        return
    values = _Values(_FIELD.findall(text[found.end() :]))
    if values.losses:
        done = (context.loop.announced - 1) * int(found[2])
        yield from _step(line, context, values, done + int(found[1]))


def _read_end(line: Line, context: Context) -> Iterable[Event]:
    if _END.search(line.text if "'train_runtime'" in line.text else line.body):
        yield _end_of("training", line, context)


def _read_process_end(line: Line, context: Context) -> Iterable[Event]:
    """Read DeepSpeed's report that one process exited with 0; another one may still fail."""
    if _PROCESS_END.search(line.body):
        yield _end_of("process", line, context)


def _end_of(name: str, line: Line, context: Context) -> Phase:
    text = line.body.strip()[:MAX_TEXT]
    return Phase(name, "end", text, stamp(line.text), line.rank, context.file, line.number)


_FLAVOURS = frozenset({"other"})


def _read_resume(line: Line, context: Context) -> Iterable[Event]:
    found = _RESUME.search(line.text)
    if found:
        yield Checkpoint(
            "load", "begin" if found[1] else "end", int(found[1] or found[2]), None, None,
            line.body.strip()[:MAX_TEXT], stamp(line.text), line.rank, context.file, line.number,
        )  # fmt: skip


DICTS = Recogniser((r"'(?:train_)?loss': ", r"\"(?:train_)?loss\": "), _read_dict, _FLAVOURS)
BARS = Recogniser((r"%\|[^|\n]{0,200}\| *\d+/\d+ \[",), _read_bar, _FLAVOURS)
ENDLESS_BARS = Recogniser((r"\d+it \[\d",), _read_endless_bar, _FLAVOURS)
TEXTS = Recogniser(
    (
        r"(?:[Ss]tep|STEP|[Ii]ter|[Bb]atch)s?[ :=#]{1,3}\d+[^\n]{0,160}[Ll]oss",
        r"[Ee]poch[ :=]{0,2}\[?\d+[^\n]{0,120}[Ll]oss",
        r"Iter(?:\(train\))? {1,4}\[ *\d+/\d+\][^\n]{0,400}[Ll]oss",
        r"Epoch\(train\) {1,4}\[\d+\]\[ *\d+/\d+\][^\n]{0,400}[Ll]oss",
        r"step:\d+ - [a-z_]+/",
        r"loss = [\w.+-]{1,24}, step = \d",
        r"batch=\d+/\d+\]: [^\n]{0,80}loss",
    ),
    _read_text,
    _FLAVOURS,
)
KERAS = Recogniser(
    (r"s/step - [^\n]{0,80}loss: ", r"- ETA: [^\n]{1,12} - [^\n]{0,80}loss: "),
    _read_keras,
    _FLAVOURS,
)
KERAS_EPOCHS = Recogniser((r"Epoch \d+/\d",), _read_keras_epoch)
ENDS = Recogniser(
    (
        "'train_runtime': ",
        "` stopped: `max_",
        r"Training (?:is )?(?:[Cc]omplete|finished|done)",
        r"training (?:finished|complete)",
        r"Training (?:took|time):? \d",
        r"llmfoundry[^\n]{0,80}: Done\.",
        "Final validation metrics: ",
        "Max number of (?:steps|epochs) has been reached",
        r"\*{5} train metrics \*{5}",
        "Job [^ \n]{1,200} (?:is |has )?successfully completed",
        "# Avg bus bandwidth ",
    ),
    _read_end,
)
RESUMES = Recogniser(
    (r"Loading (?:model|checkpoint) from ", r"Continuing training from global step"), _read_resume
)
PROCESS_ENDS = Recogniser((r"Process \d+ exits successfully",), _read_process_end)
