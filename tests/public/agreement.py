# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How often two write-ups of the same public thread agree: `python -m public.agreement`.

Cases of different sets with the same `source` were written and judged independently. They agree if
the first cause and the first action of one are among those that the other accepts. No tool can be
right much more often than that, since the next expectation is as uncertain as these.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from itertools import permutations
from statistics import mean

from public.judge import Case, read_cases


def agreement(cases: Iterable[Case]) -> list[float]:
    """Of each thread with several write-ups: the share of their pairs, in both directions, that
    agree."""
    by_source: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_source[case.source].append(case)
    shares = []
    for of_source in by_source.values():
        pairs = [
            (one, other)
            for one, other in permutations(of_source, 2)
            if one.set_name != other.set_name
        ]
        if pairs:
            shares.append(sum(_accepts(*pair) for pair in pairs) / len(pairs))
    return shares


def _accepts(one: Case, other: Case) -> bool:
    return one.causes[0] in other.causes and one.right_actions[0] in other.right_actions


def main() -> int:
    shares = agreement(read_cases())
    print(f"{mean(shares):.1%} of write-ups of the same thread agree, over {len(shares)} threads")
    return 0


if __name__ == "__main__":
    sys.exit(main())
