# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`make judge`: the hit rate on public failure logs by kind, and every miss.

Names of cases, or parts of them, choose some: `make judge CASES="disk nccl"`.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor

from public.judge import judge, read_cases, summary


def main(parts: list[str]) -> int:
    cases = [each for each in read_cases() if not parts or any(part in each.name for part in parts)]
    if not cases:
        print(f"no case is named like {' or '.join(parts)}", file=sys.stderr)
        return 2
    with ProcessPoolExecutor(os.cpu_count()) as pool:  # one command server per process
        results = list(pool.map(judge, cases))
    print(summary(results))
    return 0 if all(each.is_right for each in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
