# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which programs the chosen tests need, and the order in which they are built.

Cold, all of them take some 20 minutes on two cores. So nothing is built that no chosen test needs,
and tests begin as soon as their own programs are there: those without a node after Kubernetes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cluster import binaries, images, jobset, kueue
from cluster.tools import tools
from release.image import sources_key

WITHOUT_NODE = "not node"
TRAINS = "trains"
WITH_NODE = "node and not trains"
PARTS = (WITHOUT_NODE, TRAINS, WITH_NODE)
"""Of the tests, as pytest's -m takes them. In the order in which they begin: the first needs the
least, the second takes longest."""
NEEDS_FILE = "MWATCH_CLUSTER_NEEDS"
"""Where collected tests are asked for their needs: the file for `write_needs`."""


class Program(NamedTuple):
    name: str
    fixture: str
    """Tests that ask for it need the program."""
    minutes: int
    """On two cores, measured from an empty cache."""
    folder: str
    build: Callable[[], object]

    @property
    def is_built(self) -> bool:
        return (binaries.home() / self.folder).is_dir()


@cache
def all_programs() -> tuple[Program, ...]:
    old, new = binaries.OLD_OPERATOR, binaries.OPERATOR
    operator = "training-operator"
    return (
        Program("Kubernetes", "plane", 9, f"kubernetes-{binaries.kubernetes_key()}",
                lambda: (binaries.helm(), binaries.kubernetes())),
        Program(f"{operator} {new}", "cluster", 2, f"{operator}-{new}", binaries.training_operator),
        Program(f"{operator} {old}", "old_operator", 2, f"{operator}-{old}",
                lambda: binaries.training_operator(old)),
        Program("JobSet", "jobsets", 2, f"jobset-{jobset.VERSION}", jobset.jobset_manager),
        Program("Kueue", "queues", 3, f"kueue-{kueue.VERSION}", kueue.kueue_manager),
        Program("the image", "cluster", 2, f"image-{sources_key()}", images.mwatch_image),
    )  # fmt: skip


def needed_by(fixtures: Iterable[str]) -> list[Program]:
    """By tests that use these fixtures; Kubernetes by all of them."""
    wanted = {"plane", *fixtures}
    return [each for each in all_programs() if each.fixture in wanted]


def build(programs: Iterable[Program]) -> None:
    """All that comes from the network, before the tests leave it for that of their cluster."""
    tools()
    for each in programs:
        each.build()
    binaries.fetch_modules()


def stages(needs: Mapping[str, Sequence[Program]]) -> Iterator[tuple[str, list[Program]]]:
    """Each part of the tests with what is to be built before it begins: nothing twice."""
    done: set[str] = set()
    for part in PARTS:
        if part in needs:
            new = [each for each in needs[part] if each.name not in done]
            done.update(each.name for each in new)
            yield part, new


def expected(needs: Mapping[str, Sequence[Program]]) -> list[str]:
    """What a person is told who waits: one line for each program that is not there yet."""
    lines, minutes = [], 0
    for part, programs in stages(needs):
        for each in (each for each in programs if not each.is_built):
            minutes += each.minutes
            name, time = each.name, f"about {each.minutes} minutes on two cores, once"
            lines.append(f"building {name}: {time}")
        if minutes:
            lines.append(f"the tests `{part}` begin after about {minutes} minutes")
    return lines


def write_needs(tests: Iterable[tuple[str, Iterable[str]]]) -> None:
    """Of collected tests, each with its part and its fixtures, where somebody asks for it."""
    if path := os.environ.get(NEEDS_FILE):
        found: dict[str, set[str]] = {}
        for part, fixtures in tests:
            found.setdefault(part, set()).update(fixtures)
        Path(path).write_text(json.dumps({part: sorted(names) for part, names in found.items()}))


def read_needs(path: Path) -> dict[str, list[Program]]:
    """All programs for all parts where the tests could not be collected: pytest will say why."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        print("mwatch: the tests could not be collected: building everything", file=sys.stderr)
        return {part: [*all_programs()] for part in PARTS}
    return {part: needed_by(fixtures) for part, fixtures in found.items()}
