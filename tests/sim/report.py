# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""SCORECARD.md: what was run, what came out, and every run that went wrong, by its seed."""

from __future__ import annotations

from sim.score import MOST_GOODPUT_ERROR, MOST_MISSED, Line, Score, latency

_LISTED = 40


def markdown(score: Score) -> str:
    last = score.first_seed + score.runs - 1
    parts = [
        "# Scorecard",
        "",
        "Written by `make scorecard`; do not edit. A simulated Megatron job (`tests/sim`) runs"
        f" {score.runs:,} times, seeds {score.first_seed} to {last}; it prints the lines and probe"
        " records that the real one prints, breaks as planned by the seed, and mwatch's engine"
        " watches and acts. One run again: `PYTHONPATH=tests .venv/bin/python -m sim --seed N"
        " --verbose`.",
        "",
        *_summary(score),
        "",
        *_latencies(score),
        "",
        *_matrix(score),
        "",
        *_lists(score),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _mark(is_met: bool) -> str:
    return "met" if is_met else "**missed**"


def _summary(score: Score) -> list[str]:
    healthy = score.healthy_runs / max(1, score.runs)
    errors = [error for error, _ in score.goodput] or [0.0]
    good = latency(errors)
    hours = score.simulated_seconds / 3600.0
    late = len(score.late)
    promised = sum(map(len, score.hangs.values()))
    rows = [
        ("runs (simulated time)", f"{score.runs:,} ({hours:,.0f} h)", "", ""),
        ("healthy runs that try to look sick", f"{score.healthy_runs:,} ({healthy:.0%})",
         "at least a third", _mark(healthy >= 1 / 3)),
        ("**false kills**", f"**{len(score.false_kills)}**", "0", _mark(not score.false_kills)),
        ("faults / missed", f"{score.faults:,} / {len(score.missed)} ({score.missed_share:.2%})",
         "at most 0.5 %", _mark(score.missed_share <= MOST_MISSED)),
        ("wrong checkpoint chosen",
         f"{len(score.wrong_checkpoints)} of {score.restarts:,} restarts", "0",
         _mark(not score.wrong_checkpoints)),
        ("older checkpoint than needed", f"{score.older_checkpoints}", "", ""),
        ("wrong cause", f"{len(score.wrong_causes)} ({_share(score.wrong_causes, score)})", "", ""),
        ("wrong action", f"{len(score.wrong_actions)}", "", ""),
        ("wrong culprit", f"{len(score.wrong_culprits)} of {score.named_culprits:,} named", "", ""),
        ("hangs in training found later than promised", f"{late} of {promised:,}", "0",
         _mark(not late)),
        ("hangs in training with a second witness, ended", _ended(score), "", ""),
        ("critical alarms while all was well (steps of 6 times the usual, bad clocks)",
         f"{len(score.alarms)}", "", ""),
        ("goodput error, share of wall time",
         f"median {good.median:.2%}, p99 {good.p99:.2%}, max {good.worst:.2%}",
         "at most 1 %", _mark(good.p99 <= MOST_GOODPUT_ERROR)),
        ("GPU-hours lost to waiting / to acting",
         f"{score.gpu_waiting / 3600:,.0f} / {score.gpu_acting / 3600:,.0f}", "", ""),
    ]  # fmt: skip
    table = ["| | result | target | |", "| --- | --- | --- | --- |"]
    return [*table, *(f"| {' | '.join(row)} |" for row in rows), "", _YARDSTICK]


_YARDSTICK = (
    "Goodput is judged at its p99. What nobody prints counts as right anywhere between its bounds:"
    " how much of a first step was usual work, and a pause shorter than a long step."
)


def _ended(score: Score) -> str:
    if not score.acted_after:
        return f"0 of {score.could_act:,}"
    found = latency(score.acted_after)
    return (
        f"{found.cases:,} of {score.could_act:,}, after {found.median:.0f} s"
        f" (p99 {found.p99:.0f} s)"
    )


def _share(lines: list[Line], score: Score) -> str:
    return f"{len(lines) / max(1, score.faults):.2%}"


def _latencies(score: Score) -> list[str]:
    rows = ["## How soon", "", "Seconds from the fault to the first true finding.", "",
            "| cause | faults | median | p99 | max |",
            "| --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for cause, values in sorted(score.latencies.items()):
        found = latency(values)
        rows.append(
            f"| {cause} | {found.cases} | {found.median:.1f} | {found.p99:.1f}"
            f" | {found.worst:.1f} |"
        )
    rows += ["", "Hangs while training, against the promise (with the probe max(5 s, 3 x p99 of a"
             " step) and a look; from the log alone two log intervals):", "",
             "| seen by | hangs | median | p99 | median of the promise | kept |",
             "| --- | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for sees_by, pairs in sorted(score.hangs.items()):
        found = latency(after for after, _ in pairs)
        bound = latency(bound for _, bound in pairs)
        kept = sum(after <= limit for after, limit in pairs) / len(pairs)
        rows.append(
            f"| {sees_by} | {found.cases} | {found.median:.1f} | {found.p99:.1f}"
            f" | {bound.median:.1f} | {kept:.1%} |"
        )
    return rows


def _matrix(score: Score) -> list[str]:
    truths = sorted({truth for truth, _ in score.matrix})
    rows = ["## Truth and verdict", "",
            "A stall that heals is `healthy`; while it lasts it is rightly called a hang.", "",
            "| truth | cases | verdicts |", "| --- | ---: | --- |"]  # fmt: skip
    for truth in truths:
        found = {verdict: n for (told, verdict), n in score.matrix.items() if told == truth}
        words = ", ".join(
            f"{verdict} {n}" for verdict, n in sorted(found.items(), key=lambda each: -each[1])
        )
        rows.append(f"| {truth} | {sum(found.values())} | {words} |")
    return rows


def _lists(score: Score) -> list[str]:
    rows: list[str] = []
    for title, lines in (
        ("False kills", score.false_kills),
        ("Missed faults", score.missed),
        ("Wrong checkpoints", score.wrong_checkpoints),
        ("Engine failures", score.crashes),
        ("Wrong causes", score.wrong_causes),
        ("Wrong actions", score.wrong_actions),
        ("Wrong culprits", score.wrong_culprits),
        ("Later than promised", score.late),
    ):
        rows += [f"## {title}", "", *(_listed(lines) if lines else ["None."]), ""]
    return rows


def _listed(lines: list[Line]) -> list[str]:
    rows = [f"- seed {line.seed}: {line.text}" for line in lines[:_LISTED]]
    more = len(lines) - _LISTED
    return rows + ([f"- and {more} more"] if more > 0 else [])
