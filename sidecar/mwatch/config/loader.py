# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Load settings into a dataclass from a TOML file, a variable or a flag, checked by msgspec.

The types of the dataclass define what is valid: `msgspec.Meta` has the bounds, and its
`description` is the "expected ..." part of messages. An unknown key is an error that names the
nearest known one, so a typo never becomes a silent default. An example of a message:

`policy.toml: line 7: invalid value for act.stall_factor: expected a number from 1 to 1e6, got 0`
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from difflib import get_close_matches
from enum import EnumType
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import tomli

from mwatch.errors import InputError
from mwatch.model.settings import Settings

T = TypeVar("T")
MAX_BYTES = 500_000
_EXPECTED: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text in quotes",
    Path: "a path",
}
_MAX_DOTS = 64
_FLAGS = {"yes": "true", "no": "false"}  # booleans of manifests that msgspec does not accept
_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_HEADER = re.compile(r"\s*\[\[?([\w\s.\"'-]+)\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([\w.\"'-]+)\s*=")
_INSIDE = re.compile(r" - at `\$(.*)`$")


def load(
    file: Path, usual: T, *, check: str = "the path", aliases: Mapping[str, str] | None = None
) -> T:
    """`usual` with the values of the file; raises InputError. If the file cannot be read, the
    message advises to check `check`."""
    return TomlSource(str(file), read_text(file, check), aliases=aliases or {}).applied(usual)


def load_policy(file: Path | None) -> Settings:
    """The settings of a policy file; None: the defaults."""
    return Settings() if file is None else load(file, Settings(), check="the path of --policy")


def parse(text: str, usual: T, origin: str) -> T:
    """`usual` with the values of a TOML text; `origin` names it in messages."""
    return TomlSource(origin, text).applied(usual)


def read_text(file: Path, check: str = "the path") -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); check {check}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{file}: line {line}: not UTF-8 text; save the file as UTF-8") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{file}: larger than {MAX_BYTES} bytes; check {check}")
    return text


def parse_toml(text: str, origin: str) -> dict[str, Any]:
    for number, each in enumerate(text.split("\n"), 1):
        # The parser copies a dotted key once per part: quadratic time.
        if each.count(".") > _MAX_DOTS and max(map(_dots, each.split("="))) > _MAX_DOTS:
            raise InputError(f"{origin}: line {number}: a key of more than {_MAX_DOTS} parts")
    try:
        return tomli.loads(text)  # compiled tomllib: loads the catalogue in a third of the time
    except (ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())[:200]
        place = _PLACE.search(problem)
        line = int(place[1] or text.rstrip("\n").count("\n") + 1) if place else 1
        words = _PLACE.sub("", problem)
        raise InputError(f"{origin}: line {line}: invalid TOML: {words}") from None


def _dots(text: str) -> int:
    return text.count(".")


def checked(value: Any, hint: Any, name: str, *, strict: bool = True) -> Any:
    """Convert `value` to the type `hint`; raises InputError. With `strict=False`, a string may be a
    number or a boolean, as in an environment variable."""
    if hint is bool and isinstance(value, str) and not strict:
        value = _FLAGS.get(value.lower(), value)
    try:
        return msgspec.convert(value, hint, strict=strict, dec_hook=_path)
    except ValueError as error:
        inside = _INSIDE.search(str(error))
        path = inside[1] if inside else ""
        expected = _expected(_hint_inside(hint, path)) or str(error)
        got = "" if path else f", got {_shown(value)}"
        raise InputError(f"invalid value for {name}{path}: expected {expected}{got}") from None


@dataclass(frozen=True, slots=True)
class TomlSource:
    origin: str
    text: str
    strict: bool = True
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Top-level keys of earlier releases, each with its new name."""

    def applied(self, usual: T) -> T:
        """`usual`, a dataclass instance, with the values of the text."""
        return self.section(parse_toml(self.text, self.origin), usual, "")

    def values(self, kind: type[Any]) -> dict[str, Any]:
        """The values of the text, by field name of the dataclass `kind`."""
        return self._values(parse_toml(self.text, self.origin), kind, None, "")

    def section(self, tree: Mapping[str, Any], usual: T, path: str) -> T:
        values = self._values(tree, type(usual), usual, path)
        try:
            return replace(usual, **values)  # type: ignore[type-var]
        except ValueError as error:  # raised by __post_init__ if fields contradict each other
            raise InputError(f"{self._place(path[:-1])}: {path}{error}") from None

    def _values(self, tree: Mapping[str, Any], kind: Any, usual: Any, path: str) -> dict[str, Any]:
        known, found = hints_of(kind), {}
        for written, value in tree.items():
            key = written if path else self.aliases.get(written, written)
            name = path + written
            try:
                hint = known[key] if key in known else unknown(key, known, path)
                section = getattr(usual, key, None)
                if not is_dataclass(section):
                    found[key] = checked(value, hint, name, strict=self.strict)
                elif not isinstance(value, dict):
                    raise InputError(f"invalid value for {name}: expected a section [{name}]")
            except InputError as error:
                raise InputError(f"{self._place(name)}: {error}") from None
            if is_dataclass(section):
                found[key] = self.section(value, section, f"{name}.")
        return found

    def _place(self, name: str) -> str:
        """The file and the line of a key; if the key is not found, of the table around it."""
        section, best = "", 0
        for number, line in enumerate(self.text.split("\n"), 1):
            if header := _HEADER.match(line):
                section = plain = _bare(header[1])
            elif key := _KEY.match(line):
                plain = f"{section}.{_bare(key[1])}".strip(".")
            else:
                continue
            if plain == name:
                return f"{self.origin}: line {number}"
            if name.startswith(f"{plain}."):
                best = number
        return f"{self.origin}: line {best}" if best else self.origin


def unknown(key: str, known: Iterable[str], path: str = "") -> Any:
    """Raise InputError with the nearest known key."""
    names = sorted(known)
    near = get_close_matches(key.lower().replace("-", "_"), names, n=1, cutoff=0.5)
    fix = f"did you mean {path}{near[0]}?" if near else f"known keys: {', '.join(names)}"
    raise InputError(f"unknown key {path}{_bare(key)[:60]}; {fix}")


@cache
def hints_of(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _bare(name: str) -> str:
    return re.sub(r"[\s\"']", "", name)


def _path(kind: type[Any], value: Any) -> Any:
    """Convert a type that msgspec does not know."""
    if kind is Path and isinstance(value, str) and "\0" not in value:
        return Path(value).absolute()
    raise ValueError("no path")


def _hint_inside(hint: Any, path: str) -> Any:
    """The type of the last named field of a path such as `[0].days[...]` into a struct."""
    names = re.findall(r"\.(\w+)", path)
    for name in names:
        struct = next((each for each in _parts(hint) if hasattr(each, "__struct_fields__")), None)
        types = {} if struct is None else {
            each.encode_name: each.type for each in msgspec.structs.fields(struct)
        }  # fmt: skip
        hint = types.get(name)
    return hint


def _parts(hint: Any) -> list[Any]:
    return [hint, *(part for each in get_args(hint) for part in _parts(each))]


def _expected(hint: Any) -> str:
    """The expectation as text; empty: use the message of msgspec."""
    parts = _parts(hint)
    for part in parts:
        if isinstance(part, msgspec.Meta) and part.description:
            return part.description
    for part in parts:
        choices = get_args(part) if get_origin(part) is Literal else ()
        if isinstance(part, EnumType):
            choices = tuple(part.__members__.values())
        if choices:
            return f"one of {', '.join(choices)}"
        if isinstance(part, type) and part in _EXPECTED:
            return _EXPECTED[part]
    return ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
