# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The scorecard, or with --verbose the story of one run.

Exit codes: 0 all targets met, 1 a target missed, 2 usage.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sim import report, story
from sim.runner import run
from sim.scenarios import plan_of
from sim.score import MOST_MISSED
from sim.scorecard import score_of


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, help="write the scorecard here, not to stdout")
    parser.add_argument("--verbose", action="store_true", help="tell the story of this one seed")
    return parser.parse_args()


def main() -> int:
    options = _options()
    if options.verbose:
        plan = plan_of(options.seed)
        story.opening(plan)
        story.ending(run(plan, story.Teller()))
        return 0
    score = score_of(options.seed, options.runs, options.jobs, shows=sys.stderr.isatty())
    text = report.markdown(score)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text)
    is_met = not score.false_kills and not score.wrong_checkpoints and not score.crashes
    return 0 if is_met and score.missed_share <= MOST_MISSED else 1


if __name__ == "__main__":
    sys.exit(main())
