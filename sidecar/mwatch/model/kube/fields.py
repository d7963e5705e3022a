# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Read parts of Kubernetes objects, which are plain dictionaries in which any part may be missing.

Quantities (`1500m`, `64Gi`) become numbers, times become seconds since 1970.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

Object = Mapping[str, Any]
_QUANTITY = re.compile(r"([+-]?[0-9.]+)(?:[eE]([+-]?[0-9]+)|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)
_UNITS = {
    **{f"{unit}i": 1024.0 ** (power + 1) for power, unit in enumerate("KMGTPE")},
    **{unit: 1000.0 ** (power + 1) for power, unit in enumerate("kMGTPE")},
    "m": 1e-3, "u": 1e-6, "n": 1e-9,
}  # fmt: skip


def part(body: Any, *path: str) -> Any:
    """Return the value at a path; None if any step is missing."""
    for step in path:
        if not isinstance(body, Mapping):
            return None
        body = body.get(step)
    return body


def mapping(body: Any, *path: str) -> Object:
    found = part(body, *path)
    return found if isinstance(found, Mapping) else {}


def items(body: Any, *path: str) -> list[Object]:
    """Return the objects in a list; empty if there is no list."""
    found = part(body, *path)
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        return []
    return [each for each in found if isinstance(each, Mapping)]


def text(body: Any, *path: str) -> str:
    found = part(body, *path)
    return found if isinstance(found, str) else ""


def number(body: Any, *path: str) -> int | None:
    found = part(body, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def flag(body: Any, *path: str) -> bool:
    return part(body, *path) is True


def text_map(body: Any, *path: str) -> dict[str, str]:
    """A mapping of text to text, such as labels."""
    found = mapping(body, *path)
    return {str(key): value for key, value in found.items() if isinstance(value, str)}


def moment(body: Any, *path: str) -> float | None:
    """Return a time in seconds since 1970; None: missing or invalid."""
    found = text(body, *path)
    try:
        return datetime.fromisoformat(found).timestamp() if found else None
    except ValueError:
        return None


def quantity(value: Any) -> float | None:
    """Return a quantity as a number; None: not a quantity that the API accepts."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    found = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return None
    try:
        base = float(found[1])
    except ValueError:
        return None
    return base * 10.0 ** int(found[2]) if found[2] else base * _UNITS.get(found[3] or "", 1.0)


def quantities(body: Any, *path: str) -> dict[str, float]:
    read = {str(name): quantity(value) for name, value in mapping(body, *path).items()}
    return {name: value for name, value in read.items() if value is not None}


def condition(body: Any, kind: str) -> Object | None:
    """Return the condition of the given type in the object's status."""
    return next(
        (each for each in items(body, "status", "conditions") if each.get("type") == kind), None
    )


def is_true(body: Any, kind: str) -> bool:
    return text(condition(body, kind), "status") == "True"


Amounts = Mapping[str, float]


def requests_of(spec: Object) -> dict[str, float]:
    """Return the requests of a pod.

    Those of containers and sidecars add up; other init containers run one after another.
    """
    stay: dict[str, float] = {}
    peak: dict[str, float] = {}
    for each in items(spec, "initContainers"):
        if each.get("restartPolicy") == "Always":
            stay = total((stay, _asked(each)))
            peak = _most(peak, stay)
        else:
            peak = _most(peak, total((stay, _asked(each))))
    main = total((stay, *map(_asked, items(spec, "containers"))))
    return total((_most(main, peak), quantities(spec, "overhead")))


def total(parts: Iterable[Amounts]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in parts:
        for name, amount in each.items():
            found[name] = found.get(name, 0.0) + amount
    return found


def _asked(container: Object) -> dict[str, float]:
    """Return the requests of a container; a limit without a request is also the request."""
    asks = mapping(container, "resources")
    return {**quantities(asks, "limits"), **quantities(asks, "requests")}


def _most(one: Amounts, other: Amounts) -> dict[str, float]:
    return {name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in {*one, *other}}
