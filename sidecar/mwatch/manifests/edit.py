# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reversible changes of a manifest tree.

Each change is recorded as a short list, which is stored as JSON in an annotation of the object. It
addresses its place by keys and by the `name` of list items (their index if they have none), so the
user may change other parts before the undo. Parts that mwatch added are removed even if the user
has changed them.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

from mwatch.manifests.plain_data import plain, tree

Change = list[Any]
Step = str
"""A key of a mapping, or `[NAME]` for the list item with this name or index."""


class Editor:
    """Edits one document. Parts shared through YAML aliases are changed only once."""

    def __init__(self, content: MutableMapping[str, Any]) -> None:
        self._content = content
        self.changes: list[Change] = []
        self._done: set[tuple[int, str]] = set()

    def at(self, path: Sequence[Step]) -> Any:
        return find(self._content, path)

    def mapping(self, path: Sequence[Step]) -> MutableMapping[str, Any]:
        """The mapping at a path, created if missing."""
        found = self.at(path)
        if not isinstance(found, MutableMapping):
            self.put(path, {})
            found = self.at(path)
        made: MutableMapping[str, Any] = found
        return made

    def put(self, path: Sequence[Step], value: Any) -> None:
        above = self.at(path[:-1]) if path[:-1] else self._content
        key = path[-1]
        if self._is_done(above, key):
            return
        if key in above:
            self.changes.append(["set", list(path), plain(above[key])])
        else:
            self.changes.append(["key", list(path)])
        above[key] = tree(value)

    def add(
        self, path: Sequence[Step], item: Mapping[str, Any], *, first: int | None = None
    ) -> None:
        """Add a named item to a list, which is created if missing."""
        if not isinstance(self.at(path), MutableSequence):
            self.put(path, [])
        items = self.at(path)
        name = str(item["name"])
        if self._is_done(items, name):
            return
        self.changes.append(["item", list(path), name])
        if first is None:
            items.append(tree(item))
        else:
            items.insert(first, tree(item))

    def prefix(self, path: Sequence[Step], words: Sequence[str]) -> None:
        """Insert words at the start of a list of strings."""
        items = self.at(path)
        if self._is_done(items, "<prefix>"):
            return
        self.changes.append(["words", list(path), len(words)])
        for index, word in enumerate(words):
            items.insert(index, word)

    def _is_done(self, holder: Any, what: str) -> bool:
        mark = (id(holder), what)
        if mark in self._done:
            return True
        self._done.add(mark)
        return False


def shortened(changes: Sequence[Change]) -> list[Change]:
    """The changes, with consecutive items of the same list merged into one."""
    short: list[Change] = []
    for change in changes:
        if short and change[0] == "item" and short[-1][:2] == change[:2]:
            short[-1] = [*short[-1], *change[2:]]
        else:
            short.append(change)
    return short


def undo(content: MutableMapping[str, Any], changes: Sequence[Change]) -> None:
    """Undo the changes, newest first; parts that no longer exist are skipped."""
    for change in reversed(changes):
        _undo(content, change)


def _undo(content: MutableMapping[str, Any], change: Change) -> None:
    kind, path = change[0], change[1]
    if kind in ("key", "set"):
        above = find(content, path[:-1]) if path[:-1] else content
        if not isinstance(above, MutableMapping) or path[-1] not in above:
            return
        if kind == "set":
            above[path[-1]] = tree(change[2])
        elif not isinstance(above[path[-1]], Mapping | MutableSequence) or not above[path[-1]]:
            del above[path[-1]]  # a list or mapping to which the user has added stays
        return
    items = find(content, path)
    if not isinstance(items, MutableSequence):
        return
    if kind == "words":
        del items[: change[2]]
        return
    ours = set(change[2:])
    for index in reversed(range(len(items))):
        if _name(items[index]) in ours:
            del items[index]


def find(content: Any, path: Sequence[Step]) -> Any:
    here = content
    for step in path:
        if step.startswith("[") and isinstance(here, Sequence) and not isinstance(here, str):
            here = _item(here, step[1:-1])
        elif isinstance(here, Mapping):
            here = here.get(step)
        else:
            return None
    return here


def _item(items: Sequence[Any], name: str) -> Any:
    """Find an item by name, or by index in lists whose items have no name."""
    found = next((each for each in items if _name(each) == name), None)
    if found is None and name.isdigit() and int(name) < len(items):
        return items[int(name)]
    return found


def _name(item: Any) -> str | None:
    return str(item.get("name")) if isinstance(item, Mapping) else None
