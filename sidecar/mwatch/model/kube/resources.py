# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What pods ask of a cluster: the sum over a pod's containers, as scheduler and quota count it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mwatch.model.kube.fields import Object, items, mapping, quantities

Amounts = Mapping[str, float]


def requests_of(spec: Object) -> dict[str, float]:
    """Of a pod: containers and staying init containers add up; the others run one by one."""
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
    """A limit without a request is the request."""
    asks = mapping(container, "resources")
    return {**quantities(asks, "limits"), **quantities(asks, "requests")}


def _most(one: Amounts, other: Amounts) -> dict[str, float]:
    return {name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in {*one, *other}}
