# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A stream of YAML documents; unchanged documents keep every byte.

In a changed document only the lines of the change differ. Where that fails, ruamel.yaml prints the
document with its comments, quotes, order of keys and measured indentation, so that few other lines
differ. A JSON document stays JSON, with its indentation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from mwatch.errors import InputError
from mwatch.manifests.transplant import transplanted
from mwatch.model.checks import Path

MAX_CHARACTERS = 4_000_000
_SEPARATOR = re.compile(r"---(?:\s.*)?")
_MARK = re.compile(r"---[ \t]+(?=[^\s#])")
_BARE = re.compile(r"---\s*(?:#.*)?")
_ASIDE = re.compile(r"(?:#.*|%.*|\s*)")
_KEY = re.compile(r"( *)(?:- +)*[^\s#].*:\s*(?:#.*)?")
_DASH = re.compile(r"( *)(- +)(?=[^\s#])")
_UNWRAPPED = 1 << 20
_TEMPLATED = re.compile(r"\{\{|\{%")
RENDER = "render it first (helm template NAME CHART) and give what comes out with -f -"


@dataclass(slots=True)
class Document:
    """`head` and `tail` are lines around the body that never change."""

    file: str
    head: str
    body: str
    tail: str
    first_line: int
    """Of the body, from 1."""
    content: Any = None
    """A tree with comments; None: an empty document."""
    is_changed: bool = False

    @property
    def is_json(self) -> bool:
        if not self.body.lstrip().startswith(("{", "[")):
            return False
        try:
            json.loads(self.body)
        except (ValueError, RecursionError):
            return False  # a flow mapping of YAML
        return True

    def text(self) -> str:
        return self.head + (self.printed() if self.is_changed else self.body) + self.tail

    def printed(self) -> str:
        if self.is_json:
            return _json(self.content, self.body)
        yaml = _yaml(self.body)
        printed = _printed(yaml, self.content)
        if not self.body:
            return printed
        text = transplanted(self.body, _printed(yaml, yaml.load(self.body)), printed)
        return text if _means(text, self.content) else printed

    def lines(self) -> dict[Path, int]:
        """The line of each key and each item in the file."""
        return {path: line + self.first_line for path, line in _lines(self.content, ())}

    def refusal(self, path: Path, problem: str) -> InputError:
        known = self.lines()
        nearest = (known[path[:end]] for end in range(len(path), -1, -1) if path[:end] in known)
        return InputError(f"{self.file}:{next(nearest, self.first_line)}: {problem}")


def _printed(yaml: YAML, content: Any) -> str:
    sink = _Sink()
    yaml.dump(content, sink)
    return "".join(sink.parts)


def _means(text: str, content: Any) -> bool:
    try:
        return bool(plain(_yaml(text).load(text)) == plain(content))
    except (YAMLError, ValueError, RecursionError):
        return False


def _json(content: Any, body: str) -> str:
    lines = body.splitlines()
    indent = len(lines[1]) - len(lines[1].lstrip()) if len(lines) > 1 else None
    text = json.dumps(plain(content), indent=indent, ensure_ascii=False)
    return text + "\n" if body.endswith("\n") else text


class _Sink:
    def __init__(self) -> None:
        self.parts: list[str] = []

    def write(self, text: str | bytes) -> int:
        self.parts.append(text.decode("utf-8") if isinstance(text, bytes) else text)
        return len(text)


def read(text: str, file: str) -> list[Document]:
    """InputError, with the line, if it cannot be parsed."""
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"{file}: is too large for a manifest ({len(text)} characters)")
    documents = [_document(chunk, file, line) for chunk, line in _chunks(text)]
    for each in documents:
        if each.body.strip():
            each.content = _parsed(each)
    return documents


def new_document(content: Mapping[str, Any], file: str) -> Document:
    return Document(file, "---\n", "", "", 1, tree(content), is_changed=True)


def tree(value: Any) -> Any:
    """Plain data in ruamel.yaml's types, which carry comments."""
    if isinstance(value, Mapping):
        made = CommentedMap()
        for key, each in value.items():
            made[key] = tree(each)
        return made
    if isinstance(value, list | tuple):
        return CommentedSeq([tree(each) for each in value])
    return value


def plain(value: Any) -> Any:
    """Without comments and ruamel.yaml's own types of strings and numbers."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return str(value)  # a date, which is a string in Kubernetes


def _chunks(text: str) -> Iterator[tuple[str, int]]:
    """Each document with its separator, and its first line."""
    lines: list[str] = []
    start = 1
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if _SEPARATOR.fullmatch(line.rstrip("\n\r")):
            if lines and not _is_directive(lines):
                yield "".join(lines), start
                lines = []
            start = start if lines else number
        lines.append(line)
    if lines:
        yield "".join(lines), start


def _is_directive(lines: list[str]) -> bool:
    """`%YAML 1.2`: the separator after it begins the same document."""
    return any(each.startswith("%") for each in lines) and all(map(_is_aside, lines))


def _document(chunk: str, file: str, line: int) -> Document:
    lines = chunk.splitlines(keepends=True)
    mark = _MARK.match(chunk)
    if mark is not None:  # the document starts on the line of its separator
        lines[0] = lines[0][mark.end() :]
        return Document(file, mark.group(0), "".join(lines), "", line)
    begin = 0
    while begin < len(lines) and (
        _is_aside(lines[begin]) or _BARE.fullmatch(lines[begin].rstrip())
    ):
        begin += 1
    end = len(lines)
    while end > begin and (_is_aside(lines[end - 1]) or lines[end - 1].rstrip() == "..."):
        end -= 1
    head, body, tail = lines[:begin], lines[begin:end], lines[end:]
    return Document(file, "".join(head), "".join(body), "".join(tail), line + begin)


def _is_aside(line: str) -> bool:
    return bool(_ASIDE.fullmatch(line.rstrip("\n\r")))


def _parsed(document: Document) -> Any:
    try:
        return _yaml(document.body).load(document.body)
    except (YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = document.first_line + (mark.line if mark is not None else 0)
        lines = enumerate(document.body.splitlines(), document.first_line)
        if found := next((number for number, text in lines if _TEMPLATED.search(text)), None):
            line, message = found, f"is a template, not a manifest; {RENDER}"
        else:
            problem = error.problem if isinstance(error, MarkedYAMLError) else None
            text = " ".join(str(problem or error).split())[:160]
            message = f"invalid YAML: {text}; correct this line"
        raise InputError(f"{document.file}:{line}: {message}") from None


def _yaml(body: str) -> YAML:
    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    yaml.width = _UNWRAPPED
    yaml.allow_duplicate_keys = False
    mapping, sequence, offset = _indents(body)
    yaml.indent(mapping=mapping, sequence=sequence, offset=offset)
    return yaml


def _indents(body: str) -> tuple[int, int, int]:
    """Indentation of mappings, of the text after a dash, and of dashes below their key."""
    mapping: int | None = None
    dashes: tuple[int, int] | None = None
    above: int | None = None
    for line in body.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        dash, indent = _DASH.match(line), len(line) - len(line.lstrip())
        if above is not None and dash and dashes is None and indent >= above:
            dashes = indent - above, len(dash.group(2))
        elif above is not None and not dash and mapping is None and indent > above:
            mapping = indent - above
        key = _KEY.fullmatch(line)
        above = len(key.group(1)) if key and not dash else None
    offset, width = dashes or (0, 2)
    return mapping or 2, offset + width, offset


def _lines(node: Any, path: Path) -> Iterator[tuple[Path, int]]:
    if not isinstance(node, CommentedMap | CommentedSeq):
        return
    pairs = node.items() if isinstance(node, CommentedMap) else enumerate(node)
    for key, value in pairs:
        below = (*path, key if isinstance(node, CommentedSeq) else str(key))
        where = (node.lc.data or {}).get(key)
        if where is not None:
            yield below, where[0]
        yield from _lines(value, below)
