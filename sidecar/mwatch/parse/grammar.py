# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Combine the recognisers, the catalogue and the scanner; built once, used for many files."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cached_property

import hyperscan

from mwatch.model.event import Flavour
from mwatch.model.fault import CatalogueEntry
from mwatch.parse.formats import (
    exceptions,
    failures,
    megatron,
    megatron_blocks,
    other_trainers,
    training_loops,
)
from mwatch.parse.formats.failures import FaultMatcher
from mwatch.parse.lines.context import Recogniser
from mwatch.parse.lines.literals import with_rarer_end

ALL: tuple[Recogniser, ...] = (
    megatron.RECOGNISER,
    other_trainers.NEMO_PRINTER,
    other_trainers.NEMO_BAR,
    other_trainers.DEEPSPEED_STEP,
    other_trainers.DEEPSPEED_OVERFLOW,
    other_trainers.TORCHTITAN,
    other_trainers.TORCHTITAN_CHECKPOINTS,
    other_trainers.COMPOSER,
    other_trainers.OLMO,
    training_loops.BARS,
    training_loops.ENDLESS_BARS,
    training_loops.DICTS,
    training_loops.TEXTS,
    training_loops.KERAS,
    training_loops.KERAS_EPOCHS,
    training_loops.ENDS,
    training_loops.RESUMES,
    training_loops.PROCESS_ENDS,
    megatron_blocks.VALIDATION,
    megatron.BARRIERS,
    megatron.LINES,
    megatron.EXITS,
    megatron.BRIDGE,
    megatron.CHECKPOINTS,
    megatron.PROGRESS,
    megatron_blocks.ARGUMENTS,
    megatron_blocks.VERSION,
    megatron_blocks.TIMERS,
    megatron_blocks.STRAGGLER,
    exceptions.TRACEBACK,
    exceptions.BOX,
    exceptions.IGNORED,
    exceptions.FRAME,
    exceptions.EXCEPTION,
    failures.ROOT_CAUSE,
    failures.WORKER_FAILED,
    failures.RESTART,
    failures.CRASHED,
    failures.STATUS,
)
_BAR = ord("|")
Span = tuple[int, int]  # start and end of a line in a block
Hit = tuple[int, int]  # end offset of a match, and the index of its pattern


# Never occurs in a log. With such a short literal among 500 longer ones, Hyperscan picks a matcher
# that is two and a half times as fast (1,330 instead of 530 MB/s on one core).
_SHORT = r"\x01\x02\x03\x04"


# With the bounds of such repeats, Hyperscan takes six times as long to compile the triggers.
_BOUNDED = re.compile(r"(\[\^[^\]]*\\n\])\{[01],\d+\}")


def _without_bounds(trigger: str) -> str:
    """Return a trigger that matches the same lines and possibly more."""
    return _BOUNDED.sub(r"\1*", trigger)


class Scanner:
    """Searches for all patterns at once."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._ignored = len(patterns)
        self._expressions = [each.replace("(?P<", "(?<").encode() for each in (*patterns, _SHORT)]

    @cached_property
    def database(self) -> hyperscan.Database:
        """The compiled database, built on first use."""
        made = hyperscan.Database()
        made.compile(
            expressions=self._expressions,
            ids=list(range(len(self._expressions))),
            elements=len(self._expressions),
            flags=hyperscan.HS_FLAG_MULTILINE,
        )
        return made

    def scan(self, block: bytes) -> list[Hit]:
        hits: list[Hit] = []

        def report(index: int, _start: int, end: int, _flags: int, _context: object) -> None:
            if index != self._ignored:
                hits.append((end, index))

        self.database.scan(block, match_event_handler=report)
        return hits


class Grammar:
    def __init__(
        self, catalogue: Sequence[CatalogueEntry] = (), flavour: Flavour | None = None
    ) -> None:
        self.flavour = flavour
        self.faults = FaultMatcher(catalogue)
        used = [r for r in ALL if not (flavour and r.flavours and flavour not in r.flavours)]
        self._owners = [r for r in used for _ in r.triggers]
        triggers = [trigger for r in used for trigger in r.triggers]
        patterns = [_without_bounds(with_rarer_end(trigger)) for trigger in triggers]
        self._bounded = {i: t.encode() for i, t in enumerate(triggers) if _BOUNDED.search(t)}
        self._first_fault = len(patterns)
        steps = [i for i, owner in enumerate(self._owners) if owner is megatron.RECOGNISER]
        self.step = steps[0] if len(steps) == 1 else -1
        """Index of the trigger found once in a Megatron step line and nowhere else; negative if
        there is none."""
        inert = [trigger in r.inert for r in used for trigger in r.triggers]
        self._inert = frozenset(i for i, is_inert in enumerate(inert) if is_inert)
        self._scanner = Scanner([*patterns, *self.faults.triggers])

    def compile(self) -> None:
        """Save the first scan a tenth of a second; other threads can run in the meantime."""
        _ = self._scanner.database

    def scan(self, block: bytes) -> list[Hit]:
        return self._scanner.scan(block)

    def confirmed(self, hits: Collection[int], line: bytes) -> set[int]:
        """Return the hits, without those that matched only because a bound was left out."""
        if self._bounded.keys().isdisjoint(hits):
            return set(hits)
        bounds = self._bounded
        return {hit for hit in hits if hit not in bounds or re.search(bounds[hit], line)}

    def recognisers(self, hits: set[int]) -> list[Recogniser]:
        """Return the owners of the hits, each once, in the order of `ALL`."""
        owners = (self._owners[hit] for hit in sorted(hits) if hit < self._first_fault)
        return list(dict.fromkeys(owners))

    def fault_hits(self, hits: Collection[int]) -> list[int]:
        """Return the hits of the catalogue, as indices into its triggers."""
        first = self._first_fault
        return [hit - first for hit in sorted(hits) if hit >= first]

    def leaves_steps(self, hits: Collection[int]) -> bool:
        """Whether a line with these hits does not change how step lines around it are read."""
        return all(hit in self._inert or hit >= self._first_fault for hit in hits)

    def has_no_fault(self, hits: list[int], block: bytes, start: int, end: int) -> bool:
        """Cheap check that only literals of the catalogue were found and no pattern matches."""
        first = self._first_fault
        if min(hits) < first:
            return False
        return not self.faults.may_match([hit - first for hit in hits], block, start, end)

    def pass_steps(
        self, hits: list[Hit], index: int, position: int, block: bytes, steps: list[Span]
    ) -> tuple[int, int]:
        """Collect whole step lines in `steps` and pass over lines that are not faults.

        Stop at a line with any other hit. Return the index of that hit, and where the line after
        the last step line begins. The last hit must lie beyond the block.
        """
        size, step, first_fault = len(block), self.step, self._first_fault
        find, rfind = block.find, block.rfind
        hit, kind = hits[index]
        while hit <= size:
            end = find(b"\n", hit)
            end = size if end < 0 else end
            after, next_kind = hits[index + 1]
            if after <= end:
                break
            if kind == step and block[end - 1] == _BAR:
                steps.append((rfind(b"\n", position, hit) + 1 or position, end))
                position = end + 1
            elif kind < first_fault or self.faults.may_match(
                (kind - first_fault,), block, rfind(b"\n", position, hit) + 1 or position, end
            ):
                break
            index += 1
            hit, kind = after, next_kind
        return index, position
