# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Megatron's timer reports in four forms, and the straggler report."""

from __future__ import annotations

import pytest

from mwatch.model.event import Straggler, Timers
from support.builders.events import events, log, many, megatron_line, none, one, steps


def dotted(name: str) -> str:
    return f"    {name} " + "." * (47 - len(name))


@pytest.mark.parametrize("prefix", ["", "INFO:megatron.core.timers:", "[default7]:"])
def test_smallest_and_largest_across_ranks(prefix: str) -> None:
    rest = "[default7]:" if prefix.startswith("[") else ""
    text = log(
        f"{prefix}(min, max) time across ranks (ms):",
        f"{rest}{dotted('forward-backward')}: (113.05, 120.10)",
        f"{rest}{dotted('train/valid/test-data-iterators-setup')}: (0.25, 171.23)",
        megatron_line(1),
    )
    event = one(text, Timers)
    assert event.values == {
        "forward-backward": (113.05, 120.10),
        "train/valid/test-data-iterators-setup": (0.25, 171.23),
    }
    assert event.line == 1
    assert [step.line for step in steps(text)] == [4]


def test_largest_across_ranks() -> None:
    text = log("max time across ranks (ms):", f"{dotted('evaluate')}: 1008.04")
    assert one(text, Timers).values == {"evaluate": (1008.04, 1008.04)}


def test_all_ranks() -> None:
    text = log(
        "times across ranks (ms):",
        "  forward-compute:", "     rank  0: 80.06", "     rank  1: 95.10", "     rank 10: 70.00",
        "  backward-compute:", "     rank  0: 23.35", "     rank  1: 24.00",
    )  # fmt: skip
    assert one(text, Timers).values == {
        "forward-compute": (70.0, 95.1),
        "backward-compute": (23.35, 24.0),
    }


def test_one_line_up_to_v2_6() -> None:
    text = "time (ms) | forward-compute: 1123.61 | backward-compute: 2311.91 | optimizer: 31.9\n"
    assert one(text, Timers).values == {
        "forward-compute": (1123.61, 1123.61),
        "backward-compute": (2311.91, 2311.91),
        "optimizer": (31.9, 31.9),
    }


def test_a_bare_time_line_is_no_report() -> None:
    none(log("time (ms)"), Timers)


def test_reports_in_a_row_are_kept_apart() -> None:
    head = "(min, max) time across ranks (ms):"
    text = log(
        head, f"{dotted('evaluate')}: (1.00, 2.00)", head, f"{dotted('evaluate')}: (3.00, 4.00)"
    )
    assert [event.values for event in many(text, Timers)] == [
        {"evaluate": (1.0, 2.0)}, {"evaluate": (3.0, 4.0)},
    ]  # fmt: skip


def test_the_lines_after_a_report_are_not_swallowed() -> None:
    text = log(
        "(min, max) time across ranks (ms):", f"{dotted('evaluate')}: (1.00, 2.00)",
        megatron_line(7), megatron_line(8),
    )  # fmt: skip
    assert sorted(event.line for event in events(text)) == [1, 3, 4]


STRAGGLER = (
    "[2024-03-14 22:07:05] | MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0 |"
    " MnPwr/Rnk: 601.80W/8 | MxPwr/Rnk: 683.94W/18 | MnTmp/Rnk: 52.00C/0 | MxTmp/Rnk: 65.00C/21 |"
    " MnUtl/Rnk: 97.00%/8 | MxUtl/Rnk: 100.00%/6 | MnClk/Rnk: 1950.00MHz/28 |"
    " MxClk/Rnk: 1980.00MHz/0 | MnDRtt/Rnk: 14.27ms/23 | MxDRtt/Rnk: 34.65ms/3 |"
    " MnEtpt/Rnk: 296.02TF/0 | MxEtpt/Rnk: 297.32TF/7"
)


def test_the_straggler_report_names_a_rank_for_each_measure() -> None:
    text = log(STRAGGLER, "^^^^ Bottom 4 Ranks with lowest  Etpt(TF): 296.02/0, 296.5/1,")
    event = one(text, Straggler)
    assert event.measures == {
        "MnRtt": (3453.08, 8), "MxRtt": (3468.2, 0), "MnPwr": (601.8, 8), "MxPwr": (683.94, 18),
        "MnTmp": (52.0, 0), "MxTmp": (65.0, 21), "MnUtl": (97.0, 8), "MxUtl": (100.0, 6),
        "MnClk": (1950.0, 28), "MxClk": (1980.0, 0), "MnDRtt": (14.27, 23), "MxDRtt": (34.65, 3),
        "MnEtpt": (296.02, 0), "MxEtpt": (297.32, 7),
    }  # fmt: skip
    assert event.timestamp == "2024-03-14T22:07:05"


def test_warnings_of_the_other_stream_may_stand_between_head_and_values() -> None:
    """Seen under torchrun's tee: 20 lines of standard error came in between."""
    noise = [
        part for _ in range(10) for part in ("/w/x.py:25: UserWarning: old", "  warnings.warn(")
    ]
    text = log(
        "[default0]:INFO:megatron.core.timers:(min, max) time across ranks (ms):",
        *(f"[default0]:{line}" for line in noise),
        f"[default0]:{dotted('model-and-optimizer-setup')}: (68.26, 68.26)",
        f"[default0]:{dotted('train/valid/test-data-iterators-setup')}: (150.60, 150.60)",
        "[default0]:training ...",
    )
    assert one(text, Timers).values == {
        "model-and-optimizer-setup": (68.26, 68.26),
        "train/valid/test-data-iterators-setup": (150.6, 150.6),
    }
