# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A stream of YAML documents; unchanged documents keep every byte.

A YAML library prints a tree in its own style. So the tree is printed before and after the change,
and only the difference is applied to the user's text, next to the same lines; the result is parsed
and compared. If that fails, ruamel.yaml prints the document with its comments, quotes, key order
and measured indentation. A JSON document stays JSON, with its indentation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from mwatch import json_codec
from mwatch.errors import InputError
from mwatch.manifests.plain_data import plain, tree
from mwatch.model.checks import Path

_BLOCK = re.compile(r"(?:^|[\s:-])[|>][-+0-9]*\s*(?:#.*)?$")


class _Change(NamedTuple):
    """Lines of the first printout, and the lines of the second that replace them."""

    old: slice
    new: slice


def transplanted(text: str, before: str, after: str) -> str:
    """Apply the difference between two printouts of the text to it. Comments stay in place."""
    mine = text.splitlines()
    first, second = (list(_content(each.splitlines())) for each in (before, after))
    ending = "\r\n" if "\r\n" in text else "\n"
    places = _places(mine, first)
    parts: list[str] = []
    done = 0
    for change in _changes(first, second, places):
        start, stop = _span(change.old, places, mine)
        parts += mine[done:start]
        new = _shifted(second[change.new], change, mine, first, places)
        inside = {each for each in range(start, stop) if _is_content(mine[each])}
        ours = [mine[each] for each in range(start, stop) if each in inside]
        parts += _replaced(ours, first[change.old], new)
        parts += [mine[each] for each in range(start, stop) if each not in inside]
        done = max(stop, done)
    parts += mine[done:]
    return ending.join(parts) + (ending if text.endswith("\n") else "")


def _content(lines: Sequence[str]) -> Iterator[str]:
    """The lines without blank lines and comments, which are kept inside a block scalar."""
    text_below: int | None = None
    for line in lines:
        if text_below is not None and (not line.strip() or _indent(line) > text_below):
            yield line
            continue
        text_below = _indent(line) if _BLOCK.search(line) and _is_content(line) else None
        if _is_content(line):
            yield line


def _places(mine: Sequence[str], first: Sequence[str]) -> dict[int, int]:
    """Map printed line numbers to the user's, for lines that differ only in spaces."""
    found = SequenceMatcher(None, _bare(first), _bare(mine), autojunk=False)
    return {
        block.a + each: block.b + each
        for block in found.get_matching_blocks()
        for each in range(block.size)
    }


def _bare(lines: Sequence[str]) -> list[str]:
    return ["".join(each.split()) for each in lines]


def _changes(
    first: Sequence[str], second: Sequence[str], places: dict[int, int]
) -> Iterator[_Change]:
    """Each change, extended until the lines around it are in the user's text too."""
    last: _Change | None = None
    for tag, a, b, c, d in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        while a > 0 and a - 1 not in places:
            a, c = a - 1, c - 1
        while b < len(first) and b not in places:
            b, d = b + 1, d + 1
        if last is not None and a <= last.old.stop:
            a, c = last.old.start, last.new.start
        elif last is not None:
            yield last
        last = _Change(slice(a, b), slice(c, d))
    if last is not None:
        yield last


def _span(old: slice, places: dict[int, int], mine: Sequence[str]) -> tuple[int, int]:
    """The changed lines of the user's text, without comments at either end."""
    if old.start == old.stop:
        start = places[old.start - 1] + 1 if old.start > 0 else places.get(0, len(mine))
        return start, start
    start = places[old.start - 1] + 1 if old.start > 0 else 0
    stop = places.get(old.stop, len(mine))
    while start < stop and not _is_content(mine[start]):
        start += 1
    while stop > start and not _is_content(mine[stop - 1]):
        stop -= 1
    return start, stop


def _replaced(mine: list[str], old: list[str], new: list[str]) -> list[str]:
    """Edit within the lines if they differ only in spaces, to keep the user's spaces."""
    if not old or not new or _letters(mine) != _letters(old):
        return new
    if len(old) < len(new):
        if _likeness(old, new[: len(old)]) > _likeness(old, new[-len(old) :]):
            return [*_respelt(mine, old, new[: len(old)]), *new[len(old) :]]
        return [*new[: -len(old)], *_respelt(mine, old, new[-len(old) :])]
    if len(new) < len(old):
        is_head = _likeness(old[: len(new)], new) > _likeness(old[-len(new) :], new)
        cut = len(new) if is_head else len(old) - len(new)
        line = _line_after(mine, len(_letters(old[:cut])))
        kept, was = (mine[:line], old[:cut]) if is_head else (mine[line:], old[cut:])
        return _respelt(kept, was, new)
    return _respelt(mine, old, new)


def _likeness(old: list[str], new: list[str]) -> int:
    was, now = _joined(old), _joined(new)
    head = _common(was, now)
    return head + _common(was[head:][::-1], now[head:][::-1])


def _respelt(mine: list[str], old: list[str], new: list[str]) -> list[str]:
    """Replace only the text between the common beginning and the common end."""
    was, now, whole = _joined(old), _joined(new), "\n".join(mine)
    head = _common(was, now)
    tail = _common(was[head:][::-1], now[head:][::-1])
    start = _reached(whole, len("".join(was[:head].split())))
    stop = _reached(whole, len("".join(was[: len(was) - tail].split())))
    return (whole[:start] + now[head : len(now) - tail] + whole[stop:]).split("\n")


def _joined(lines: Sequence[str]) -> str:
    """The lines as one text, without leading spaces and without padding before comments."""
    return re.sub(r" +#", " #", "\n".join(lines).lstrip())


def _letters(lines: Sequence[str]) -> str:
    return "".join(_bare(lines))


def _line_after(lines: Sequence[str], letters: int) -> int:
    for count, line in enumerate(_bare(lines)):
        if letters <= 0:
            return count
        letters -= len(line)
    return len(lines)


def _common(one: str, other: str) -> int:
    count = 0
    for mine, yours in zip(one, other, strict=False):
        if mine != yours:
            break
        count += 1
    return count


def _reached(text: str, letters: int) -> int:
    for index, each in enumerate(text):
        if each.isspace():
            continue
        if letters == 0:
            return index
        letters -= 1
    return len(text)


def _shifted(
    new: list[str],
    change: _Change,
    mine: Sequence[str],
    first: Sequence[str],
    places: dict[int, int],
) -> list[str]:
    """The new lines, indented like their siblings in the user's text."""
    moved: list[str] = []
    for block in _blocks(new):
        by = 0
        found = _sibling(block[0], change.old, first, places)
        if found is not None:
            by = _indent(mine[places[found]]) - _indent(first[found])
            if _has_dash(first[found]) and not _has_dash(block[0]):
                by = _depth(mine[places[found]]) - _depth(first[found])
        moved += [_moved(each, by) for each in block]
    return moved


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Split before each line with less indentation than the first line of its block."""
    block: list[str] = []
    for line in lines:
        is_left = bool(block) and _is_content(line) and _indent(line) < _indent(block[0])
        if is_left or (block and _is_above(line, block[0])):
            yield block
            block = []
        block.append(line)
    if block:
        yield block


def _sibling(line: str, old: slice, first: Sequence[str], places: dict[int, int]) -> int | None:
    """Number of a line of the same list or mapping, else of the nearest known line above."""
    for way in (range(old.start - 1, -1, -1), range(old.stop, len(first))):
        for each in way:
            if not _is_content(first[each]):
                continue
            if each in places and _is_beside(first[each], line):
                return each
            if _indent(first[each]) < _indent(line) or _is_above(first[each], line):
                break
    return next((each for each in range(old.start - 1, -1, -1) if each in places), None)


def _is_beside(one: str, line: str) -> bool:
    if _has_dash(line):
        return _has_dash(one) and _indent(one) == _indent(line)
    return _depth(one) == _indent(line)


def _is_above(one: str, line: str) -> bool:
    """Whether `one` is a key at the indentation of the list whose item is `line`."""
    return _has_dash(line) and not _has_dash(one) and _indent(one) == _indent(line)


def _is_content(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _has_dash(line: str) -> bool:
    return line.lstrip().startswith("- ")


def _depth(line: str) -> int:
    """The column of the key, after the dash of its item."""
    bare = line.lstrip()
    return _indent(line) + (len(bare) - len(bare[1:].lstrip()) if _has_dash(line) else 0)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _moved(line: str, by: int) -> str:
    if not line.strip() or by == 0:
        return line
    return " " * by + line if by > 0 else line[min(-by, _indent(line)) :]


MAX_CHARACTERS = 4_000_000
_MAX_DEPTH, _MAX_VALUES = 100, 500_000  # values after alias expansion
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
    """One document of a stream. `head` and `tail`: lines around the body that never change."""

    file: str
    head: str
    body: str
    tail: str
    first_line: int
    """Line of the body in the file, from 1."""
    content: Any = None
    """The tree, with comments; None: an empty document."""
    is_changed: bool = False

    @property
    def is_json(self) -> bool:
        if not self.body.lstrip().startswith(("{", "[")):
            return False
        try:
            json.loads(self.body)
        except (ValueError, RecursionError):
            return False  # YAML in flow style
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
        """Line in the file of each key and each list item."""
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
    """Parse the documents of a file. Raises InputError with the line."""
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"{file}: is too large for a manifest ({len(text)} characters)")
    documents = [_document(chunk, file, line) for chunk, line in _chunks(text)]
    for each in documents:
        if each.body.strip():
            _parse(each)
    return documents


def _parse(document: Document) -> None:
    try:
        document.content = _parsed(document)
    except InputError:
        if not document.tail.strip():
            raise
        # The last line of a quoted text may look like a comment or a directive.
        document.body, document.tail = document.body + document.tail, ""
        document.content = _parsed(document)


def new_document(content: Mapping[str, Any], file: str) -> Document:
    return Document(file, "---\n", "", "", 1, tree(content), is_changed=True)


def _chunks(text: str) -> Iterator[tuple[str, int]]:
    """Each document, including its separator, and the number of its first line."""
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
    """Whether the lines are a directive (`%YAML 1.2`), which belongs to the document after it."""
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
        json_codec.check_depth(document.body, _MAX_DEPTH)
        return json_codec.checked(_yaml(document.body).load(document.body), _MAX_VALUES)
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
