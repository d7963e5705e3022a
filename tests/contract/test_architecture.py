# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The source tree keeps its rules, and the checker of those rules can fail.

Everything is read by `ast`; the code under test is never imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from source_rules import (
    PURE,
    ROOT,
    Source,
    docstring_breaches,
    guest_breaches,
    header_breaches,
    loner_breaches,
    purity_breaches,
    read_sources,
    size_breaches,
    star_breaches,
)

MWATCH = read_sources("sidecar/mwatch")
TRAINER = read_sources("trainer/mwatch_trainer")
GPT = read_sources("trainer/mwatch_gpt")
EVERYTHING = read_sources(
    "sidecar", "trainer", "tests", "benchmarks", "alerts", "dashboards", "manifests"
)


def assert_kept(rule: Callable[[Source], list[str]], sources: Iterable[Source]) -> None:
    """Fails with every breach, one a line."""
    breaches = [breach for source in sources for breach in rule(source)]
    assert not breaches, "\n".join(["", *breaches])


def test_there_is_something_to_check() -> None:
    assert {"mwatch.__init__", "mwatch_trainer.__init__"} <= {s.module for s in MWATCH + TRAINER}


def test_stages_import_model_and_themselves() -> None:
    assert_kept(star_breaches, MWATCH)


def test_pure_packages_touch_nothing_outside() -> None:
    pure = [source for source in MWATCH if source.package in PURE]
    assert_kept(purity_breaches, pure)


def test_the_trainer_wrapper_is_standard_library_and_python_3_8() -> None:
    assert_kept(guest_breaches, TRAINER)


def test_the_small_trainer_knows_nothing_of_its_watchers() -> None:
    assert_kept(loner_breaches, GPT)


def test_files_and_functions_are_small() -> None:
    assert_kept(size_breaches, EVERYTHING)


def test_every_module_says_what_it_is_for() -> None:
    shipped = [source for source in EVERYTHING if source.path.startswith(("sidecar/", "trainer/"))]
    assert_kept(docstring_breaches, shipped)


def test_every_file_with_comments_has_the_licence_header() -> None:
    code = ("sidecar", "trainer", "tests", "benchmarks", "alerts", "dashboards")
    folders = (*code, "docs", "manifests", ".ci")
    named = [ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / ".ci" / "run"]
    found = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    commented = [path for path in found if path.suffix in (".py", ".sh", ".toml", ".yaml", ".yml")]
    ours = [path for path in named + commented if "corpus" not in path.parts]  # recorded, not ours
    files = [Source(str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in ours]
    assert_kept(header_breaches, files)


STAR_BREACHES = [
    ("parse/a.py", "from mwatch.state.run import Run", "parse may not import mwatch.state.run"),
    ("parse/a.py", "from mwatch import state", "parse may not import mwatch.state"),
    ("parse/a.py", "from ..state import run", "parse may not import mwatch.state.run"),
    ("parse/__init__.py", "from .. import app", "parse may not import mwatch.app"),
    ("detect/a.py", "def f():\n    import mwatch.kube.client", "may not import mwatch.kube"),
    ("detect/a.py", "import_module('mwatch.app')", "detect may not import mwatch.app"),
    ("detect/a.py", "import mwatch_trainer.contract", "may not import mwatch_trainer.contract"),
    ("sources/a.py", "import mwatch_trainer.child", "may not import mwatch_trainer.child"),
    ("export/a.py", "import mwatch.kube", "export may not import mwatch.kube"),
    ("model/a.py", "import mwatch.parse", "model may not import mwatch.parse"),
    ("errors.py", "import mwatch.model", "errors may not import mwatch.model"),
    ("app/a.py", "import mwatch.cli", "app may not import mwatch.cli"),
    ("cli/a.py", "import mwatch.parse", "cli may not import mwatch.parse"),
    ("cli/a.py", "import mwatch.modelling", "cli may not import mwatch.modelling"),
    ("__main__.py", "import mwatch.app", "__main__ may not import mwatch.app"),
    ("common/a.py", "", "package common is not in the table"),
]


@pytest.mark.parametrize(("path", "text", "expected"), STAR_BREACHES)
def test_the_star_checker_sees(path: str, text: str, expected: str) -> None:
    (breach,) = star_breaches(Source(f"sidecar/mwatch/{path}", text))
    assert expected in breach


ALLOWED = [
    ("parse/a.py", "from mwatch.model.event import Iteration\nimport mwatch.parse.markers"),
    ("parse/a.py", "from mwatch_trainer.contract import NAMES\nimport mwatch.errors, mwatch.stats"),
    ("act/a.py", "import mwatch.kube.client\nimport mwatch_trainer.checkpoint"),
    ("app/a.py", "import mwatch.parse, mwatch.sources.log_tail\nfrom mwatch import state"),
    ("cli/a.py", "from mwatch import __version__, app, model\nimport typer"),
    ("__main__.py", "from mwatch.cli.main import main"),
]


@pytest.mark.parametrize(("path", "text"), ALLOWED)
def test_the_star_checker_lets_pass(path: str, text: str) -> None:
    assert star_breaches(Source(f"sidecar/mwatch/{path}", text)) == []


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


@pytest.mark.parametrize("name", ["mwatch.model", "mwatch_trainer"])
def test_the_loner_checker_sees(name: str) -> None:
    assert len(loner_breaches(Source("trainer/mwatch_gpt/a.py", f"import {name}, torch"))) == 1


def test_the_size_checker_sees_a_long_file_and_a_long_function() -> None:
    long_function = "def f():\n" + "    pass\n" * 40
    table = "@table(\n" + "    1,\n" * 50 + ")\ndef f():\n    pass\n"
    assert len(size_breaches(Source("tests/a.py", "#\n" * 301))) == 1
    assert "f has 41 lines" in size_breaches(Source("tests/a.py", long_function))[0]
    assert size_breaches(Source("tests/a.py", "#\n" * 300)) == []
    assert size_breaches(Source("tests/a.py", table)) == []


def test_the_docstring_and_header_checkers_see() -> None:
    spdx = "# SPDX-FileCopyrightText: The mwatch authors\n# SPDX-License-Identifier: Apache-2.0\n"
    assert docstring_breaches(Source("sidecar/a.py", "# no docstring\n")) != []
    assert header_breaches(Source("a.py", "")) != []
    assert header_breaches(Source("a.py", "\n" + spdx)) != []
    assert header_breaches(Source("a.sh", "#!/bin/sh\n" + spdx)) == []
