# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Changes of a tree that can be taken back: each one notes how.

The notes are short lists, kept as JSON in an annotation of the object. They find their place by
keys and by the `name` of list items (their number where they have none), so that a person may
change other parts in between. What a person changed of ours is removed all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

from mwatch.manifests.stream import plain, tree

Note = list[Any]
Step = str
"""A key; `[NAME]` is the item of a list that has this name, or number."""


class Editor:
    """Of one document. Aliases share parts: what was done to one of them is not done again."""

    def __init__(self, content: MutableMapping[str, Any]) -> None:
        self._content = content
        self.notes: list[Note] = []
        self._done: set[tuple[int, str]] = set()

    def at(self, path: Sequence[Step]) -> Any:
        """What is there; None where nothing is."""
        return find(self._content, path)

    def mapping(self, path: Sequence[Step]) -> MutableMapping[str, Any]:
        """Made where it is not there."""
        found = self.at(path)
        if not isinstance(found, MutableMapping):
            self.put(path, {})
            found = self.at(path)
        made: MutableMapping[str, Any] = found
        return made

    def put(self, path: Sequence[Step], value: Any) -> None:
        """The value of a key, whatever it was."""
        above = self.at(path[:-1]) if path[:-1] else self._content
        key = path[-1]
        if self._is_done(above, key):
            return
        if key in above:
            self.notes.append(["set", list(path), plain(above[key])])
        else:
            self.notes.append(["key", list(path)])
        above[key] = tree(value)

    def add(
        self, path: Sequence[Step], item: Mapping[str, Any], *, first: int | None = None
    ) -> None:
        """An item with a name to a list, which is made where it is not there."""
        if not isinstance(self.at(path), MutableSequence):
            self.put(path, [])
        items = self.at(path)
        name = str(item["name"])
        if self._is_done(items, name):
            return
        self.notes.append(["item", list(path), name])
        if first is None:
            items.append(tree(item))
        else:
            items.insert(first, tree(item))

    def prefix(self, path: Sequence[Step], words: Sequence[str]) -> None:
        """Words before those of a list of texts."""
        items = self.at(path)
        if self._is_done(items, "<prefix>"):
            return
        self.notes.append(["words", list(path), len(words)])
        for index, word in enumerate(words):
            items.insert(index, word)

    def _is_done(self, holder: Any, what: str) -> bool:
        mark = (id(holder), what)
        if mark in self._done:
            return True
        self._done.add(mark)
        return False


def shortened(notes: Sequence[Note]) -> list[Note]:
    """Items that were put into one list one after the other, as one note."""
    short: list[Note] = []
    for note in notes:
        if short and note[0] == "item" and short[-1][:2] == note[:2]:
            short[-1] = [*short[-1], *note[2:]]
        else:
            short.append(note)
    return short


def undo(content: MutableMapping[str, Any], notes: Sequence[Note]) -> None:
    """The newest first; what is not there any more is passed over."""
    for note in reversed(notes):
        _undo(content, note)


def _undo(content: MutableMapping[str, Any], note: Note) -> None:
    change, path = note[0], note[1]
    if change in ("key", "set"):
        above = find(content, path[:-1]) if path[:-1] else content
        if not isinstance(above, MutableMapping) or path[-1] not in above:
            return
        if change == "set":
            above[path[-1]] = tree(note[2])
        elif _is_ours_alone(above[path[-1]]):
            del above[path[-1]]
        return
    items = find(content, path)
    if not isinstance(items, MutableSequence):
        return
    if change == "words":
        del items[: note[2]]
        return
    ours = set(note[2:])
    for index in reversed(range(len(items))):
        if _name(items[index]) in ours:
            del items[index]


def _is_ours_alone(value: Any) -> bool:
    """A list or mapping that was made for us, and that somebody has put more into, stays."""
    return not isinstance(value, Mapping | MutableSequence) or not value


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
    """By its name; by its number in lists whose items have none."""
    found = next((each for each in items if _name(each) == name), None)
    if found is None and name.isdigit() and int(name) < len(items):
        return items[int(name)]
    return found


def _name(item: Any) -> str | None:
    return str(item.get("name")) if isinstance(item, Mapping) else None
