# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What was learnt, as the JSON of `<save>/.mwatch/calibration.json`: several layouts, bounded.

The file may be old, foreign or damaged. Learning anew costs a few minutes, a wrong deadline a
healthy run: whatever is not as it should be is not taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mwatch.model.calibration import MAX_SHAPES, Calibration, is_duration
from mwatch.model.phase import Slot
from mwatch.model.sample import Sample

VERSION = 1
_MAX_KEY = 200
_MAX_COUNT = 10**9
_SAMPLES = ("steps", "rises", "recomputed", "recent")


def to_json(calibration: Calibration) -> dict[str, Any]:
    """All layouts that are known, the current one last."""
    shapes = [*calibration.others.values(), calibration]
    return {"version": VERSION, "layouts": [_layout(each) for each in shapes if each.key]}


def _layout(calibration: Calibration) -> dict[str, Any]:
    durations = calibration.durations.items()
    return {
        "key": calibration.key,
        "batch_size": calibration.batch_size,
        "log_interval": calibration.log_interval,
        "best_step": calibration.best_step,
        "best_spread": calibration.best_spread,
        "durations": {slot.value: _numbers(seen) for slot, seen in durations if seen},
        **{name: _numbers(getattr(calibration, name)) for name in _SAMPLES},
    }


def _numbers(sample: Sample) -> list[float]:
    return [float(f"{value:.6g}") for value in sample]


def from_json(document: object) -> Calibration:
    """A fresh one of anything that is not ours; a layout that is damaged is left out."""
    if not isinstance(document, Mapping) or document.get("version") != VERSION:
        return Calibration()
    layouts = document.get("layouts")
    if not isinstance(layouts, list):
        return Calibration()
    found: dict[str, Calibration] = {}
    for entry in layouts[-MAX_SHAPES:]:
        read = _read(entry)
        if read is not None:
            found.pop(read.key, None)
            found[read.key] = read
    if not found:
        return Calibration()
    _, newest = found.popitem()
    newest.others = found
    return newest


def _read(entry: object) -> Calibration | None:
    if not isinstance(entry, Mapping):
        return None
    key, durations = entry.get("key"), entry.get("durations")
    if not isinstance(key, str) or not 0 < len(key) <= _MAX_KEY:
        return None
    if not isinstance(durations, Mapping):
        return None
    read = Calibration(key)
    samples = [(read.durations[slot], durations.get(slot.value, [])) for slot in Slot]
    samples += [(getattr(read, name), entry.get(name, [])) for name in _SAMPLES]
    if not all(_fill(sample, values) for sample, values in samples):
        return None
    best, spread = entry.get("best_step"), entry.get("best_spread", 0.0)
    if not (best is None or is_duration(best)) or not is_duration(spread):
        return None
    read.best_step, read.best_spread = best, spread
    read.batch_size = _count(entry.get("batch_size"))
    read.log_interval = _count(entry.get("log_interval"))
    return read


def _fill(sample: Sample, values: object) -> bool:
    if not isinstance(values, list) or not all(map(is_duration, values[-sample.maxlen :])):
        return False
    sample.extend(values[-sample.maxlen :])
    return True


def _count(value: object) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and isinstance(value, int) and 0 < value <= _MAX_COUNT else None
