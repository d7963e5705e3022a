# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lines read in bulk give the same events as lines read one by one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mwatch.model.event import Iteration
from support.builders.events import STAMP, events, log, megatron_line, only

floats = st.floats(0, 1e6, allow_nan=False)
special = st.sampled_from(["nan", "inf", "-inf", "0.0"])


@st.composite
def runs(draw: st.DrawFn) -> list[str]:
    """Lines of one run: the same keys for a while, with now and then one more or one less."""
    prefix = draw(st.sampled_from(["", "[default7]:", "[rank5]: ", "3: ", "worker-0: "]))
    stamps = draw(st.sampled_from([None, STAMP, "2026-01-07 23:58:47.123456"]))
    seconds = draw(st.booleans())
    extra = draw(
        st.sampled_from(["", " samples per second: 1.5 |", " toks/s: 12 | avg_seq_len: 8 |"])
    )
    first = draw(st.integers(1, 10_000_000))
    lines = []
    for step in range(draw(st.integers(2, 30))):
        loss = draw(st.one_of(floats.map(lambda value: f"{value:.6E}"), st.just("INF")))
        norm = draw(st.one_of(floats.map(lambda value: f"{value:.3f}"), special))
        missing = draw(st.integers(0, 9)) == 0
        line = megatron_line(
            first + step * draw(st.sampled_from([1, 1, 1, 5])), 99_999_999, stamp=stamps,
            losses="" if missing else f" lm loss: {loss} | z_loss: {loss} |",
            change={
                "grad norm": None if missing else norm,
                "elapsed time per iteration (ms)": f"{draw(floats):.1f}",
                "number of skipped iterations": f"{draw(st.integers(0, 12)):3d}",
            },
            tail=extra,
        )  # fmt: skip
        lines.append(prefix + (line.replace("(ms)", "(s)") if seconds else line))
    return lines


def neutral(event: Iteration) -> Iteration:
    return event._replace(covers=None, first_of_process=False, line=0)


def values(found: list[Iteration]) -> list[str]:
    return [repr(neutral(event)) for event in found]


@settings(max_examples=40, deadline=None)
@given(runs(), st.sampled_from([None, 1, 100, 1000]))
def test_a_run_reads_like_its_lines(lines: list[str], chunk: int | None) -> None:
    together = only(events(log(*lines), chunk=chunk), Iteration)
    alone = [event for line in lines for event in only(events(log(line)), Iteration)]
    assert values(together) == values(alone)
    assert [event.line for event in together] == list(range(1, len(lines) + 1))


@settings(max_examples=25, deadline=None)
@given(runs(), runs())
def test_two_interleaved_runs_read_like_their_lines(first: list[str], second: list[str]) -> None:
    mixed = [line for both in zip(first, second, strict=False) for line in both]
    together = only(events(log(*mixed)), Iteration)
    alone = [event for line in mixed for event in only(events(log(line)), Iteration)]
    assert values(together) == values(alone)


@settings(max_examples=25, deadline=None)
@given(runs())
def test_other_lines_in_between_change_nothing(lines: list[str]) -> None:
    noise = "WARNING: something happened on another rank"
    together = only(events(log(*(part for line in lines for part in (line, noise)))), Iteration)
    assert values(together) == values(only(events(log(*lines)), Iteration))
    assert [event.line for event in together] == list(range(1, 2 * len(lines), 2))
