# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The rules of the source tree, checked on text: nothing under test is imported.

Each rule takes one `Source` and returns a sentence for each breach. What a rule cannot see:
an import by a computed name, and a pure package that is handed an impure function.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MIN_FILE_LINES = 30
"""Of a module that is neither a table nor an entry point."""
MAX_MODULES = 22
"""Python files in a folder."""
MAX_SINGLE_IMPORTERS = 0.25
MAX_SHARED_CLASS_NAMES = 10
SPDX = (
    "# SPDX-FileCopyrightText: The mwatch authors",
    "# SPDX-License-Identifier: Apache-2.0",
)

# Which package may import which is the business of `.importlinter`.
PURE = (
    "model", "parse", "state", "detect", "decide", "checks", "manifests", "plan", "flight_recorder",
)  # fmt: skip

_FILES = {"fileinput", "glob", "io", "linecache", "mmap", "os", "pathlib", "shelve", "shutil"}
_NETWORK = {"http", "select", "selectors", "socket", "socketserver", "sqlite3", "ssl", "urllib"}
_PROCESSES = {"atexit", "ctypes", "fcntl", "multiprocessing", "resource", "signal", "subprocess"}
_THREADS = {"asyncio", "concurrent", "queue", "sched", "threading"}
_SURROUNDINGS = {"getpass", "locale", "logging", "platform", "tempfile", "warnings", "zoneinfo"}
_CHANCE_AND_CLOCK = {"random", "secrets", "time", "uuid"}
_BACK_DOORS = {"builtins", "importlib"}
IMPURE_MODULES = frozenset().union(
    _FILES, _NETWORK, _PROCESSES, _THREADS, _SURROUNDINGS, _CHANCE_AND_CLOCK, _BACK_DOORS
)
IMPURE_CALLS = {"__import__", "breakpoint", "eval", "exec", "input", "open", "print"}
_CLOCK_METHODS = {"now", "today", "utcnow"}
_FILE_METHODS = {"open", "read_bytes", "read_text", "write_bytes", "write_text"}
_OF_SYS = {"argv", "exit", "modules", "path", "settrace", "stderr", "stdin", "stdout"}
_IMPURE_SYS_NAMES = {f"sys.{name}" for name in _OF_SYS}
PURE_THIRD_PARTY = {"hyperscan", "msgspec", "ruamel"}
OURS = {"mwatch", "mwatch_trainer", "mwatch_gpt"}
BUNDLED = {"pynvml"}
"""In the wrapper's `.pyz`, each one file of Python 3.8."""
STDLIB_AFTER_3_8 = {"annotationlib", "compression", "graphlib", "tomllib", "zoneinfo"}


@dataclass(frozen=True)
class Source:
    """One file, of Python as a rule: its path from the repository's root, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=self.path)

    @cached_property
    def module(self) -> str:
        """The dotted name; `sidecar` and `trainer` are folders, not packages."""
        parts = Path(self.path).with_suffix("").parts
        parts = parts[1:] if parts[0] in ("sidecar", "trainer") else parts
        return ".".join(parts)

    @property
    def name(self) -> str:
        """As an import names it: a package by its own name."""
        return self.module.removesuffix(".__init__")

    @property
    def distribution(self) -> str:
        return self.module.partition(".")[0]

    @property
    def package(self) -> str:
        """The first name under `mwatch`: `parse` for `mwatch.parse.formats.megatron`."""
        return self.module.split(".")[1]


def read_sources(*folders: str) -> list[Source]:
    """Every Python file under these folders of the repository."""
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return [Source(str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in paths]


def imported(source: Source) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of each import, `from x import y` as `x.y`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base_of(node, source.module)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def _base_of(node: ast.ImportFrom, module: str) -> str:
    if not node.level:
        return node.module or ""
    parents = module.split(".")[: -node.level]
    return ".".join([*parents, *filter(None, [node.module])])


def _called(node: ast.Call) -> str:
    """The last name of what is called: `open` for both `open()` and `path.open()`."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def purity_breaches(source: Source) -> list[str]:
    """No input, output, clock, thread or chance: not by import, not by call."""
    found = [(line, f"import {name}") for line, name in imported(source) if not _pure_import(name)]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and _impure_call(node):
            found.append((node.lineno, f"call {_called(node)}()"))
        elif isinstance(node, ast.Attribute) and _dotted(node) in _IMPURE_SYS_NAMES:
            found.append((node.lineno, f"use {_dotted(node)}"))
    return [f"{source.path}:{line}: a pure package may not {deed}" for line, deed in found]


def _pure_import(name: str) -> bool:
    top = name.partition(".")[0]
    if top in OURS or top in PURE_THIRD_PARTY:
        return True
    return top in sys.stdlib_module_names - IMPURE_MODULES and name not in _IMPURE_SYS_NAMES


def _impure_call(node: ast.Call) -> bool:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr in _CLOCK_METHODS | _FILE_METHODS
    return _called(node) in IMPURE_CALLS


def _dotted(node: ast.Attribute) -> str:
    return f"{node.value.id}.{node.attr}" if isinstance(node.value, ast.Name) else ""


def guest_breaches(source: Source) -> list[str]:
    """`mwatch_trainer`: standard library, itself and what its `.pyz` bundles; Python 3.8 syntax."""
    try:
        ast.parse(source.text, filename=source.path, feature_version=(3, 8))
    except SyntaxError as error:
        return [f"{source.path}:{error.lineno}: not Python 3.8: {error.msg}"]
    known = (sys.stdlib_module_names - STDLIB_AFTER_3_8) | BUNDLED
    known |= {"mwatch_trainer", "sitecustomize"}
    return [
        f"{source.path}:{line}: mwatch_trainer may not import {name}"
        for line, name in imported(source)
        if name.partition(".")[0] not in known
    ]


def size_breaches(source: Source) -> list[str]:
    """Decorators, and so the tables of parametrised tests, are outside a function's lines."""
    found = []
    if (lines := len(source.text.splitlines())) > MAX_FILE_LINES:
        found.append(f"{source.path}: {lines} lines, more than {MAX_FILE_LINES}")
    if lines < MIN_FILE_LINES and not _may_be_short(source):
        found.append(f"{source.path}: {lines} lines, fewer than {MIN_FILE_LINES}; merge it")
    for node in _statements(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                where = f"{source.path}:{node.lineno}: {node.name}"
                found.append(f"{where} has {lines} lines, more than {MAX_FUNCTION_LINES}")
    return found


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All of them, at any depth. Expressions, most of a tree, hold none and are passed by."""
    found: list[ast.AST] = [tree]
    while found:
        node = found.pop()
        yield node
        found += (
            each
            for each in ast.iter_child_nodes(node)
            if isinstance(each, ast.stmt | ast.excepthandler | ast.match_case)
        )


def _may_be_short(source: Source) -> bool:
    """Entry points, tests, and tables: constants, enums and bare exceptions over functions."""
    name = Path(source.path).name
    if not source.path.startswith(("sidecar/", "trainer/")) or name.startswith("__"):
        return True
    defined = [each for each in source.tree.body if not isinstance(each, ast.ImportFrom | ast.Expr)]
    functions = [each for each in ast.walk(source.tree) if isinstance(each, ast.FunctionDef)]
    return len(functions) <= 1 and len(defined) > 2 * len(functions)


def folder_breaches(sources: Iterable[Source]) -> list[str]:
    """A folder with too many modules needs sub-packages."""
    counts = Counter(str(Path(source.path).parent) for source in sources)
    return [
        f"{folder}: {count} modules, more than {MAX_MODULES}"
        for folder, count in sorted(counts.items())
        if count > MAX_MODULES
    ]


def single_importers(sources: Sequence[Source]) -> dict[str, str]:
    """Modules that exactly one other module imports, and that module: often one idea in two."""
    known = {source.name: source for source in sources}
    importers: dict[str, set[str]] = {name: set() for name in known}
    for source in sources:
        for _, full in imported(source):
            name = full if full in known else full.rpartition(".")[0]
            if name in known and name != source.name:
                importers[name].add(source.name)
    return {name: next(iter(by)) for name, by in importers.items() if len(by) == 1}


def shared_class_names(sources: Iterable[Source]) -> dict[str, list[str]]:
    """Public class names that more than one file defines, with those files."""
    files: dict[str, list[str]] = {}
    for source in sources:
        names = {each.name for each in ast.walk(source.tree) if isinstance(each, ast.ClassDef)}
        for name in names:
            if not name.startswith("_"):
                files.setdefault(name, []).append(source.path)
    return {name: paths for name, paths in sorted(files.items()) if len(paths) > 1}


def docstring_breaches(source: Source) -> list[str]:
    return [] if ast.get_docstring(source.tree) else [f"{source.path}: no module docstring"]


def header_breaches(source: Source) -> list[str]:
    """The two SPDX lines come first; only a `#!` line may stand above them."""
    lines = source.text.splitlines()
    start = 1 if lines and lines[0].startswith("#!") else 0
    return [] if tuple(lines[start : start + 2]) == SPDX else [f"{source.path}: no SPDX header"]
