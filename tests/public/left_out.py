# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How well mwatch judges texts for which the catalogue has no entry: `python -m public.left_out`.

The catalogue has grown with the cases, so that the hit rate on them says little about the next log.
Here a part of its patterns, drawn at random, is left out, and all cases are judged without it: what
is right then was found by the general rules. Harmless messages keep their entries.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

from mwatch.config import catalogue
from mwatch.model.fault import CatalogueEntry, Role
from public.judge import judge_here, read_cases, summary


def without(entries: Sequence[CatalogueEntry], share: float, seed: int) -> list[CatalogueEntry]:
    """The entries without this share of their patterns; one that loses them all goes."""
    chance = random.Random(seed)
    kept = []
    for entry in entries:
        if entry.role is Role.BENIGN or entry.xid is not None:
            kept.append(entry)
            continue
        patterns = tuple(each for each in entry.patterns if chance.random() >= share)
        if patterns:
            kept.append(replace(entry, patterns=patterns))
    return kept


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--share", type=float, default=0.3, help="of the patterns to leave out")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--misses", action="store_true", help="list the cases that go wrong")
    chosen = options.parse_args()
    cases, whole, right = read_cases(), catalogue.load(), 0
    for seed in range(chosen.seeds):
        left = tuple(without(whole, chosen.share, seed))
        catalogue._packaged.cache_clear()
        with patch.object(catalogue, "load", return_value=left):
            results = [judge_here(case) for case in cases]
        right += sum(each.is_right for each in results)
        if chosen.misses:
            print(f"seed {seed}\n{summary(results)}\n")
    print(f"{100 * right / len(cases) / chosen.seeds:.1f} % right without {chosen.share:.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
