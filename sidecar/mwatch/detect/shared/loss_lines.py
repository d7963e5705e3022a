# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the losses in the last lines of a recorded log show, in whatever form a program prints them:
they are not finite, jump, never fall, or are worse since the run was resumed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from math import isfinite, log

from mwatch.detect.shared.words import MAX_LINE, Complaint
from mwatch.model.cause import Cause
from mwatch.stats import median

_LOSS = re.compile(
    r"\b((?:[a-z]{1,12} )?\w{0,24}loss\w{0,24}(?:/[\w/]{1,40}| train)?)(?:\(\d{1,6}\))?[\"']?"
    r"\s{0,12}[:=|]?\s{0,12}"
    r"(?:tensor\(|[\"'])?"
    r"(-?\d[\d.]*(?:e[+-]?\d+)?|-?nan|-?inf)\b",
    re.I,
)
_NO_GRADIENT = re.compile(
    r"\bgrad_?norm[\"']?\s{0,4}[:=]\s{0,4}[\"']?0(?:\.0{0,12})?(?![\d.e])", re.I
)
_REWARDED = re.compile(r"reward|advantage", re.I)
_ALL_ALIKE = re.compile(r"frac_reward_zero_std[\"']?[:=] ?[\"']?1(?:\.0{0,12})?(?![\d.])")
_EVALUATES = re.compile(r"eval|val|test|dev", re.I)
_ASIDE = re.compile(r"eval|val|test|dev|balanc|aux|router|z_?loss|(?:^|_)(?:kl|reg)", re.I)
_USUAL = 10  # last losses before a jump, of
_BEFORE = 5  # at least
_FEW_BEFORE = 2  # where they are steady
_AFTER = 3  # losses after it, each
_JUMPS = ((3.0, 0.5), (1.5, 2.0))  # so many times the usual one, and so much more
_SPIKE, _CLEAR_SPIKE = (1.5, 1.0), (2.0, 2.0)  # the second where little is known from before
_SHORT_SPIKE = (1.35, 1.0)  # where there are several, each of a line or two
_NEAR = 1.35  # times the least of the other losses that their largest may be
_RISING = 3  # lines in which it gets there, and two of them are high
_STEADY = 1.2  # times the least one that the largest of the losses before may be
_PLATEAU = 1.5
_BACK = 0.8
_NOT_FINITE = re.compile(
    r"\b(?:loss|grad(?:ient)?s?(?: norm)?) (?:is|are|was|became) (?:nan|inf|not finite|non-?finite)"
    r"|\b(?:nan|inf|non-?finite) (?:loss|grad)|gradients? at all steps are invalid",
    re.I,
)
_Printed = tuple[float, int, str]
"""A loss, the number of its line, and that line."""
_LEFT_OUT, _FEW_GAPS = 20, 4
"""So many times the usual gap between two lines is that of lines that were left out."""
_REDUCED = "reduced_train_loss"
"""Of all stages of a pipeline; beside it NeMo prints that of this stage, which may have none."""
_BAD_LOSSES = 2  # lines in a row
_OFTEN = 4  # lines in all
_FEW = 3  # lines
_RESUMED = re.compile(
    r"\b(?:load(?:ed|ing)\b|restor(?:ed|ing)\b|resum(?:e|ed|es|ing)(?:\b|_)|continu(?:e|ed|es|ing)\b)"
    r"[^\n]{0,160}\b(?:checkpoint|ckpt|global[_ ]step|step|iteration|weights|state)s?\b",
    re.I,
)
_WORSE = (1.2, 0.2)  # times the largest loss before, and so much above it
_CLEARLY_WORSE = (1.3, 0.4)  # where little is known from before
_SAME = 1.02  # times the other of two losses before, which then say as much as three
_STILL = 1.15  # times the largest loss before, that it stays above while it falls
_STEADY_BEFORE = 4  # losses, after which less is enough:
_OFF = (0.05, 8.0)  # share of the loss, and times the distance between the losses before
_FLAT = 0.0005  # share of the loss within which all of them lie
_FLAT_LINES, _SAME_LINES, _MANY = 6, 9, 20
_FAR_LINES = 4  # of a high loss, that are a long training apart
_CROSS_ENTROPY = re.compile(r"cross_?entropy|^lm_?loss", re.I)
_BY_CHANCE = 16.0  # the logarithm of nine million tokens
_FLAT_HIGH, _FLAT_HIGH_LINES = 0.004, 12  # where the loss is as high as at first
_LONG_EPOCHS = 0.5
_EPOCHS = re.compile(r"['\"]epoch['\"]: (\d{1,6}\.\d{1,6})\b")
_CLIMBING = 8  # lines in which the loss never falls,
_NO_FALL, _CLIMBED = 0.99, 1.15  # not by this much, and ends so many times as high
_EXPLODING, _EXPLODED = 4, 3.0  # lines in which it rises, and ends so many times as high
_CLIMBS_FROM = 1.0  # a smaller one may be a penalty that is meant to grow
_LONG = 300  # iterations in which a loss falls by more than that
_ITERATION = re.compile(
    r"\b(?:iter(?:ation)?|(?:global[_ ])?step|num_updates)s?\W{0,8}(\d{1,12})\b"
    r"|\|\s{0,4}(\d{1,12})/\d{1,12} \[",
    re.I,
)
_NO_STEP = 0.05  # the same where each line prints a gradient of 0
_LEARNT = 0.97  # share of its first loss that a model has fallen below
_LONG_TRAINING = 1000  # iterations,
_HIGH_LOSS = 5.0  # where it began with such a one
_FIRST = 10  # iterations
_CHANCE = 0.001  # share of ln 2^k, the loss of choosing one of 2^k by chance, within which all are
_CHOICES = range(4, 20)
_DIGITS = 4  # fewer may be equal by chance


def _losses(text: str) -> Iterator[tuple[str, float]]:
    """The losses that a line prints, with their names; not the scale of the loss."""
    for found in _LOSS.finditer(text):
        name = found[1].lower()
        if "scale" not in name:
            with suppress(ValueError):  # digits and dots that are no number
                yield name, float(found[2])


def has_loss(text: str) -> bool:
    return next(_losses(text), None) is not None


def bad_numbers(lines: Iterable[tuple[int, str]], least: int = _BAD_LOSSES) -> Complaint | None:
    """The last losses of one name are not finite, or many of them are, in a form of line that no
    recogniser reads.

    `least`: so many of them; no loss scale is searched in an evaluation, so that one is enough."""
    bad: dict[str, list[tuple[int, str]]] = {}
    ever: dict[str, list[tuple[int, str]]] = {}
    for number, line in lines:
        text = line[:MAX_LINE]
        named = list(_losses(text))
        reduced = [each for each in named if _REDUCED in each[0]]
        for name, loss in reduced or named:
            of_name = bad.setdefault(name, [])
            if not isfinite(loss):
                of_name.append((number, line))
                ever.setdefault(name, []).append((number, line))
            elif loss:  # 0 is what some print instead of a bad one
                of_name.clear()
                bad.get("", []).clear()
        if _NOT_FINITE.search(text):
            bad.setdefault("", []).append((number, line))
    often = next((found for found in ever.values() if len(found) >= _OFTEN), None)
    if often is not None:
        return Complaint(Cause.NAN, often[0][0], often[0][1].strip())
    for name, found in sorted(bad.items(), key=lambda each: -len(each[1])):
        if len(found) >= (1 if _EVALUATES.search(name) else least):
            return Complaint(Cause.NAN, found[0][0], found[0][1].strip())
    return None


def jumped(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """The last losses of one name are far above those before, and do not come back."""
    stretches = map(_last_stretch, _by_name(lines).values())
    return next(filter(None, map(_jump, stretches)), None)


def _last_stretch(printed: Sequence[_Printed]) -> Sequence[_Printed]:
    """Without the lines above a gap that somebody left when they pasted an excerpt."""
    counts = [_iteration(each) for each in printed]
    gaps = [after - before for before, after in pairwise(counts) if before and after]
    if len(gaps) + 1 < len(printed) or len(gaps) < _FEW_GAPS:
        return printed
    usual = median(gaps)
    wide = [at for at, gap in enumerate(gaps, 1) if gap > _LEFT_OUT * usual > 0]
    return printed[wide[-1] :] if wide else printed


def _jump(printed: Sequence[_Printed], least_before: int = _BEFORE) -> Complaint | None:
    losses = [loss for loss, _, _ in printed]
    if len(losses) < least_before + _AFTER or not all(map(isfinite, losses)):
        return None
    last = losses[-_AFTER:]
    least = last[1] if last == sorted(last) else min(last)  # while it explodes, not the first
    low = (i for i in range(len(losses) - 1, -1, -1) if losses[i] * _PLATEAU < least)
    start = next(low, -1) + 1
    before = losses[max(0, start - _USUAL) : start]
    if len(before) < least_before or least <= max(before):
        return None
    if losses[-1] < _BACK * max(losses[start:]):
        return None
    usual = median(before)
    if usual <= 0 or not any(
        least > usual * ratio and least > usual + far for ratio, far in _JUMPS
    ):
        return None
    return Complaint(Cause.LOSS_SPIKE, printed[start][1], printed[start][2].strip())


def stays_high(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """The same after few losses, if these were steady."""
    found = filter(_begins_steady, _by_name(lines).values())
    return next(filter(None, (_jump(each, _FEW_BEFORE) for each in found)), None)


def _begins_steady(printed: Sequence[_Printed]) -> bool:
    first = [loss for loss, _, _ in printed[:_FEW_BEFORE]]
    return len(first) == _FEW_BEFORE and 0 < max(first) < _STEADY * min(first)


def spiked(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """A loss that had been steady jumped for more than one line, and may have come back since."""
    return next(filter(None, map(_spike, _by_name(lines).values())), None)


def _spike(printed: Sequence[_Printed]) -> Complaint | None:
    losses = [loss for loss, _, _ in printed]
    if (first := _first_of_several(losses)) is not None:
        return Complaint(Cause.LOSS_SPIKE, printed[first][1], printed[first][2].strip())
    for at in range(_FEW - 1, len(losses) - 1):
        before, after = losses[max(0, at - _USUAL) : at], losses[at : at + _RISING + 1]
        if not (0.0 < max(before) < _STEADY * min(before) and all(map(isfinite, after))):
            continue
        ratio, far = _SPIKE if at >= _FEW else _CLEAR_SPIKE
        usual, high = median(before), max(map(min, after, after[1:]))
        if high > usual * ratio and high > usual + far:
            return Complaint(Cause.LOSS_SPIKE, printed[at][1], printed[at][2].strip())
    return None


def _first_of_several(losses: Sequence[float]) -> int | None:
    """Where the first of several short spikes is, above losses that are steady otherwise."""
    if len(losses) < _USUAL or not all(map(isfinite, losses)) or min(losses) <= 0:
        return None
    usual = median(losses)
    ratio, far = _SHORT_SPIKE
    high = [loss > ratio * usual and loss > usual + far for loss in losses]
    calm = [loss for loss, is_high in zip(losses, high, strict=True) if not is_high]
    begins = [at for at in range(1, len(high)) if high[at] and not high[at - 1]]
    is_steady = max(calm) < _NEAR * min(calm) and len(calm) > len(losses) // 2
    return begins[0] if len(begins) > 1 and is_steady else None


def _by_name(lines: Iterable[tuple[int, str]]) -> dict[str, list[_Printed]]:
    """Each loss that is printed, with its line."""
    printed: dict[str, list[_Printed]] = {}
    for number, line in lines:
        for name, loss in _losses(line[:MAX_LINE]):
            printed.setdefault(name, []).append((loss, number, line))
    return printed


def _of_training(lines: Iterable[tuple[int, str]]) -> dict[str, list[_Printed]]:
    """Without those of evaluations, and without parts such as that of a router, which stay as they
    are."""
    named = _by_name(lines).items()
    return {name: each for name, each in named if not _ASIDE.search(name)}


def nothing_learnt(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """Each line prints a loss and a gradient, or a cross entropy, of exactly 0: every target is
    masked. Learning from rewards does so while all of them are equal, and learns nothing if every
    line says so."""
    cause = Cause.DATA
    found: list[tuple[int, str]] = []
    for number, line in lines:
        text = line[:MAX_LINE]
        losses = dict(_losses(text))
        if not losses:
            continue
        is_sure = any(map(_CROSS_ENTROPY.search, losses)) or _NO_GRADIENT.search(text)
        if any(losses.values()) or not is_sure:
            return None
        if _REWARDED.search(text):
            if not _ALL_ALIKE.search(line):
                return None
            cause = Cause.LOSS_STUCK
        found.append((number, line.strip()))
    return Complaint(cause, *found[0]) if len(found) >= _FEW else None


def lost_its_loss(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """A loss that was none for lines is exactly 0 from one line on."""
    for printed in _of_training(lines).values():
        begin = next((at for at, (loss, _, _) in enumerate(printed) if not loss), 0)
        before, since = printed[:begin], printed[begin:]
        is_zero = len(since) >= _FEW and not any(loss for loss, _, _ in since)
        is_learning = len(before) >= _FEW and min(loss for loss, _, _ in before) > _NO_STEP
        if is_zero and is_learning and not _REWARDED.search(since[0][2]):
            return Complaint(Cause.LOSS_STUCK, since[0][1], since[0][2].strip())
    return None


def worse_since_resume(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """Since a checkpoint was loaded, the losses of one name are far above those before, from one of
    the first on."""
    lines = list(lines)
    resumed = _last_load(lines)
    trained = _of_training(lines).values()
    return next(filter(None, (_worse(each, resumed) for each in trained)), None)


def lost_at_once(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """The first loss behind a load is that of the loaded weights, all others are far above it."""
    lines = list(lines)
    loaded = _last_load(lines)
    trained = _of_training(lines).values()
    return next(filter(None, (_lost_at_once(each, loaded) for each in trained)), None)


def _last_load(lines: Iterable[tuple[int, str]]) -> int:
    """The number of the last line by which a checkpoint is loaded; 0: none."""
    return max((number for number, line in lines if _RESUMED.search(line[:MAX_LINE])), default=0)


def _lost_at_once(printed: Sequence[_Printed], loaded: int) -> Complaint | None:
    after = [each for each in printed if each[1] > loaded]
    if not loaded or len(after) < len(printed) or len(after) <= _AFTER:
        return None
    first, least = after[0][0], min(loss for loss, _, _ in after[1:])
    ratio, far = _CLEAR_SPIKE
    if first <= 0 or least <= max(ratio * first, first + far):
        return None
    return Complaint(Cause.LOSS_SPIKE, after[1][1], after[1][2].strip())


def impossible_since_load(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """Behind the load of a checkpoint each cross entropy is larger than that of pure chance over
    any vocabulary: the weights do not fit the code."""
    has_loaded = False
    found: list[tuple[int, str]] = []
    for number, line in lines:
        text = line[:MAX_LINE]
        has_loaded = has_loaded or _RESUMED.search(text) is not None
        for name, loss in _losses(text):
            if has_loaded and _CROSS_ENTROPY.search(name):
                if not (isfinite(loss) and loss > _BY_CHANCE):
                    return None
                found.append((number, line.strip()))
    return Complaint(Cause.RESUME_DIVERGED, *found[0]) if len(found) >= _FEW else None


def _worse(printed: Sequence[_Printed], resumed: int) -> Complaint | None:
    before = [loss for loss, number, _ in printed if number < resumed][-_USUAL:]
    after: Sequence[_Printed] = [each for each in printed if each[1] > resumed]
    if not before:
        after, below = _until_earlier_run(after)
        before = [loss for loss, _, _ in below]
    if len(before) < 2 or not all(isfinite(loss) for loss, _, _ in printed):
        return None
    if len(before) < _FEW and max(before) > _STEADY * min(before):
        return None
    is_known = len(before) >= _FEW or max(before) < _SAME * min(before)
    ratio, far = _WORSE if is_known else _CLEARLY_WORSE
    limit = max(ratio * max(before), max(before) + far)
    if len(before) >= _STEADY_BEFORE and min(before) > 0:
        spread = max(before) - min(before)
        limit = min(limit, max(before) + max(_OFF[0] * max(before), _OFF[1] * spread))
        scattered = _scattered(after, max(before), spread)
        if scattered is not None:
            return scattered
    start = next((at for at, each in enumerate(after) if each[0] > limit), len(after))
    high = after[start:]
    if start > _AFTER or len(high) < _AFTER or min(high[:_AFTER])[0] <= limit:
        return None
    if min(high)[0] <= min(limit, _STILL * max(before)):
        return None
    return Complaint(Cause.RESUME_DIVERGED, high[0][1], high[0][2].strip())


def _until_earlier_run(
    after: Sequence[_Printed],
) -> tuple[Sequence[_Printed], Sequence[_Printed]]:
    """Split where lines of earlier iterations follow: who pasted the log compares with them."""
    counts = [_iteration(each) or 0 for each in after]
    end = next((at for at, count in enumerate(counts) if 0 < count < counts[0]), len(after))
    return after[:end], after[end:]


def _scattered(after: Sequence[_Printed], usual: float, spread: float) -> Complaint | None:
    """The losses lie on both sides of the usual one, many times as far apart as before."""
    losses = [loss for loss, _, _ in after]
    far = max(_OFF[0] * usual, _OFF[1] * spread)
    sides = [loss > usual + far for loss in losses], [loss < usual - far for loss in losses]
    if min(map(sum, sides)) < 2 or sum(map(sum, sides)) <= len(losses) // 2:
        return None
    return Complaint(Cause.RESUME_DIVERGED, after[0][1], after[0][2].strip())


def climbs(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """The losses of one name rise from line to line."""
    stretches = map(_last_stretch, _of_training(lines).values())
    return next(filter(None, map(_climbs, stretches)), None)


def _climbs(printed: Sequence[_Printed]) -> Complaint | None:
    losses = [loss for loss, _, _ in printed]
    if len(losses) < _EXPLODING or losses[0] < _CLIMBS_FROM or _REWARDED.search(printed[0][2]):
        return None
    if not all(after > _NO_FALL * before for before, after in pairwise(losses)):
        return None
    if losses[-1] < (_CLIMBED if len(losses) >= _CLIMBING else _EXPLODED) * losses[0]:
        return None
    return Complaint(Cause.LOSS_SPIKE, printed[0][1], printed[0][2].strip())


def never_falls(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """The losses of one name stay the same for many lines, or come again with each epoch."""
    trained = _of_training(lines).values()
    ways = ((each, _first_run(each)) for each in trained)
    return next(filter(None, map(_never_falls, chain.from_iterable(ways))), None)


def _first_run(printed: Sequence[_Printed]) -> Sequence[_Printed]:
    """Without the lines of another run that who pasted the log compares with."""
    furthest = 0
    for at, each in enumerate(printed):
        count = _iteration(each)
        if count is not None and count < furthest / 2:
            return printed[:at]
        furthest = max(furthest, count or 0)
    return printed


def _never_falls(printed: Sequence[_Printed]) -> Complaint | None:
    losses = [loss for loss, _, _ in printed]
    is_far = losses[0] > _HIGH_LOSS and _iterations(printed) >= _LONG_TRAINING
    least = _FAR_LINES if is_far else _FLAT_LINES
    if len(losses) < least or not all(map(isfinite, losses)) or min(losses) <= 0:
        return None
    is_high = min(losses) > _HIGH_LOSS and len(losses) >= _FLAT_HIGH_LINES
    exact = sum(len(repr(loss).replace(".", "").strip("0")) >= _DIGITS for loss in losses)
    is_exact = 2 * exact > len(losses)
    share = (max(losses) - min(losses)) / max(losses)
    is_still = all(_NO_GRADIENT.search(line[:MAX_LINE]) for _, _, line in printed)
    kinds = len(set(losses))
    counted = len(set(_counted(printed)))
    is_many = (counted or len(losses)) >= _MANY
    is_same = kinds == 1 and (is_many or (is_exact and not counted))
    if is_same and losses[0] > _HIGH_LOSS:
        return Complaint(Cause.LOSS_STUCK, printed[0][1], printed[0][2].strip())
    is_turn = len(losses) >= _SAME_LINES and _FEW <= kinds <= len(losses) // _FEW
    is_long = (
        _iterations(printed) >= _LONG
        or _epochs(printed) >= _LONG_EPOCHS
        or (kinds == 1 and len(losses) >= _SAME_LINES)
    )
    is_flat = (
        (share <= (_FLAT_HIGH if is_high else _FLAT) and is_long)
        or _is_chance(losses)
        or _has_learnt_nothing(printed)
    )
    if (is_still and share <= _NO_STEP) or (is_exact and (is_flat or is_turn)):
        return Complaint(Cause.LOSS_STUCK, printed[0][1], printed[0][2].strip())
    return None


def _is_chance(losses: Sequence[float]) -> bool:
    """As of a contrastive loss that tells no pair of a batch from another."""
    return len(losses) >= _FLAT_LINES and any(
        all(abs(loss - chance) < _CHANCE * chance for loss in losses)
        for chance in (choices * log(2.0) for choices in _CHOICES)
    )


def _has_learnt_nothing(printed: Sequence[_Printed]) -> bool:
    """After a thousand iterations the losses are those of the first ones."""
    first = next(_counted(printed), 0)
    if first > _FIRST or _iterations(printed) < _LONG_TRAINING or printed[0][0] < _HIGH_LOSS:
        return False
    return all(loss > _LEARNT * printed[0][0] for loss, _, _ in printed)


def _iterations(printed: Sequence[_Printed]) -> int:
    """From the first line to the last; 0: they do not count."""
    counted = list(_counted(printed))
    return counted[-1] - counted[0] if counted else 0


def _epochs(printed: Sequence[_Printed]) -> float:
    """The same in epochs."""
    ends = [_EPOCHS.search(line[:MAX_LINE]) for _, _, line in (printed[0], printed[-1])]
    first, last = (float(found[1]) if found else 0.0 for found in ends)
    return last - first


def _counted(printed: Sequence[_Printed]) -> Iterator[int]:
    """The iterations of the lines that print one."""
    return (count for each in printed if (count := _iteration(each)) is not None)


def _iteration(printed: _Printed) -> int | None:
    """None: it is not printed."""
    found = _ITERATION.search(printed[2][:MAX_LINE])
    return int(found[1] or found[2]) if found else None
