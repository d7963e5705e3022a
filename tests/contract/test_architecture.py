# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The source tree keeps its rules, and the checker of those rules can fail.

Everything is read by `ast`; the code under test is never imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from support.repository.source_rules import (
    MAX_SHARED_CLASS_NAMES,
    MAX_SINGLE_IMPORTERS,
    PURE,
    ROOT,
    Source,
    docstring_breaches,
    folder_breaches,
    guest_breaches,
    header_breaches,
    purity_breaches,
    read_sources,
    shared_class_names,
    single_importers,
    size_breaches,
)

FOLDERS = (
    *("sidecar", "trainer", "tests", "benchmarks", "alerts", "dashboards", "manifests", "release"),
    "docs_site",
)
EVERYTHING = read_sources(*FOLDERS)
MWATCH, TRAINER, GPT = (
    [source for source in EVERYTHING if source.path.startswith(folder)]
    for folder in ("sidecar/mwatch/", "trainer/mwatch_trainer/", "trainer/mwatch_gpt/")
)


def assert_kept(rule: Callable[[Source], list[str]], sources: Iterable[Source]) -> None:
    """Fails with every breach, one a line."""
    breaches = [breach for source in sources for breach in rule(source)]
    assert not breaches, "\n".join(["", *breaches])


def test_there_is_something_to_check() -> None:
    assert {"mwatch.__init__", "mwatch_trainer.__init__"} <= {s.module for s in MWATCH + TRAINER}


def test_pure_packages_touch_nothing_outside() -> None:
    pure = [source for source in MWATCH if source.package in PURE]
    assert_kept(purity_breaches, pure)


def test_the_trainer_wrapper_is_standard_library_and_python_3_8() -> None:
    assert_kept(guest_breaches, TRAINER)


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_and_functions_are_small(folder: str) -> None:
    there = [source for source in EVERYTHING if source.path.startswith(f"{folder}/")]
    assert there
    assert_kept(size_breaches, there)


def test_a_folder_holds_no_more_modules_than_a_reader_can_survey() -> None:
    shipped = MWATCH + TRAINER + GPT
    assert not folder_breaches(shipped), "\n".join(["", *folder_breaches(shipped)])


def test_few_modules_have_one_importer_and_few_class_names_two_meanings() -> None:
    """`pytest -s` prints both lists."""
    shipped = MWATCH + TRAINER + GPT
    single, shared = single_importers(shipped), shared_class_names(shipped)
    share = len(single) / len(shipped)
    print(f"\n{len(single)} of {len(shipped)} modules ({share:.1%}) have one importer:")
    print("\n".join(f"  {name} <- {by}" for name, by in sorted(single.items())))
    print(f"{len(shared)} public class names are defined in more than one file:")
    print("\n".join(f"  {name}: {', '.join(paths)}" for name, paths in shared.items()))
    assert share <= MAX_SINGLE_IMPORTERS
    assert len(shared) <= MAX_SHARED_CLASS_NAMES


def test_every_module_says_what_it_is_for() -> None:
    shipped = [source for source in EVERYTHING if source.path.startswith(("sidecar/", "trainer/"))]
    assert_kept(docstring_breaches, shipped)


def test_every_file_with_comments_has_the_licence_header() -> None:
    code = ("sidecar", "trainer", "tests", "benchmarks", "alerts", "dashboards")
    folders = (*code, "docs", "docs_site", "manifests", "release", ".ci", ".github")
    named = [ROOT / "Makefile", ROOT / "mkdocs.yml", ROOT / "pyproject.toml", ROOT / ".ci" / "run"]
    found = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    commented = [path for path in found if path.suffix in (".py", ".sh", ".toml", ".yaml", ".yml")]
    ours = [path for path in named + commented if "corpus" not in path.parts]  # recorded, not ours
    files = [Source(str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in ours]
    assert_kept(header_breaches, files)


IMPURE = [
    ("import os", "import os"),
    ("from time import monotonic", "import time.monotonic"),
    ("from os.path import join", "import os.path.join"),
    ("import numpy", "import numpy"),
    ("def f():\n    import logging", "import logging"),
    ("from sys import stdin", "import sys.stdin"),
    ("import sys\nsys.stdout.write('x')", "use sys.stdout"),
    ("open('x')", "call open()"),
    ("print('x')", "call print()"),
    ("input()", "call input()"),
    ("datetime.now(UTC)", "call now()"),
    ("datetime.date.today()", "call today()"),
    ("path.read_text()", "call read_text()"),
    ("__import__(name)", "call __import__()"),
]


@pytest.mark.parametrize(("text", "expected"), IMPURE)
def test_the_purity_checker_sees(text: str, expected: str) -> None:
    (breach,) = purity_breaches(Source("sidecar/mwatch/parse/a.py", text))
    assert breach.endswith(f"a pure package may not {expected}")


def test_the_purity_checker_lets_pure_code_pass() -> None:
    text = "import re, sys, tomllib\nimport hyperscan\nfrom datetime import datetime\n"
    text += "datetime(2025, 9, 7)\nsys.intern('x')\nmwatch = text.format(now=1)\n"
    assert purity_breaches(Source("sidecar/mwatch/parse/a.py", text)) == []


GUEST_BREACHES = [
    ("match x:\n    case 1: pass", "not Python 3.8"),
    ("import psutil", "mwatch_trainer may not import psutil"),
    ("import tomllib", "mwatch_trainer may not import tomllib"),
    ("from mwatch.model import event", "mwatch_trainer may not import mwatch.model.event"),
    ("import mwatch_gpt", "mwatch_trainer may not import mwatch_gpt"),
]


@pytest.mark.parametrize(("text", "expected"), GUEST_BREACHES)
def test_the_guest_checker_sees(text: str, expected: str) -> None:
    (breach,) = guest_breaches(Source("trainer/mwatch_trainer/a.py", text))
    assert expected in breach


def test_the_guest_checker_lets_the_standard_library_pass() -> None:
    text = "from __future__ import annotations\nimport os\nfrom . import contract\n"
    assert guest_breaches(Source("trainer/mwatch_trainer/a.py", text)) == []


def test_the_size_checker_sees_long_files_long_functions_and_slices() -> None:
    long_function = "def f():\n" + "    pass\n" * 60
    table = "@table(\n" + "    1,\n" * 70 + ")\ndef f():\n    pass\n"
    assert len(size_breaches(Source("tests/a.py", "#\n" * 501))) == 1
    assert "f has 61 lines" in size_breaches(Source("tests/a.py", long_function))[0]
    assert size_breaches(Source("tests/a.py", "#\n" * 500)) == []
    assert size_breaches(Source("tests/a.py", table)) == []
    slice_ = "from x import y\n\n\ndef f():\n    return y()\n"
    assert "merge it" in size_breaches(Source("sidecar/mwatch/a.py", slice_))[0]
    for short in ("ONE = 1\nTWO = 2\n", "class Kind(Enum):\n    A = 1\n"):
        assert size_breaches(Source("sidecar/mwatch/a.py", short)) == []
    assert size_breaches(Source("sidecar/mwatch/__main__.py", slice_)) == []


def test_the_checkers_of_the_whole_tree_see() -> None:
    one = Source("sidecar/mwatch/x/a.py", "class Found:\n    pass\n")
    two = Source("sidecar/mwatch/x/b.py", "from mwatch.x.a import Found\nclass Other(Found): ...\n")
    three = Source("sidecar/mwatch/x/c.py", "from mwatch.x import b\nclass Found: ...\n")
    assert single_importers([one, two, three]) == {
        "mwatch.x.a": "mwatch.x.b",
        "mwatch.x.b": "mwatch.x.c",
    }
    assert list(shared_class_names([one, two, three])) == ["Found"]
    many = [Source(f"sidecar/mwatch/x/m{n}.py", "") for n in range(23)]
    assert folder_breaches(many) and not folder_breaches(many[1:])


def test_the_docstring_and_header_checkers_see() -> None:
    spdx = "# SPDX-FileCopyrightText: The mwatch authors\n# SPDX-License-Identifier: Apache-2.0\n"
    assert docstring_breaches(Source("sidecar/a.py", "# no docstring\n")) != []
    assert header_breaches(Source("a.py", "")) != []
    assert header_breaches(Source("a.py", "\n" + spdx)) != []
    assert header_breaches(Source("a.sh", "#!/bin/sh\n" + spdx)) == []
