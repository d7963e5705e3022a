# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The catalogue's loader: what it reads, what it refuses and in which words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwatch.config.catalogue import (
    MAX_ENTRIES,
    check_pattern,
    compiled_meanwhile,
    load,
    read,
    with_grammar,
)
from mwatch.config.loader import MAX_BYTES
from mwatch.errors import InputError
from mwatch.model.fault import AvoidNode, Blame, RestartHelps, Role
from mwatch.parse import grammar as grammars
from mwatch.parse.grammar import Grammar
from mwatch.parse.lines.literals import literals
from support.unprivileged import unprivileged

GOOD = {
    "id": "'flux-drained'",
    "title": "'Flux is drained'",
    "patterns": "['flux capacitor drained']",
    "role": "'root'",
    "blame": "'node'",
    "restart_helps": "'elsewhere'",
    "avoid_node": "'yes'",
    "fix": "'Charge it.'",
    "runbook": "'gpu-hardware'",
    "source": "'a test'",
    "examples": "['E1115 flux capacitor drained on node 7']",
}


def entry_text(**changes: str | None) -> str:
    values = {**GOOD, **changes}
    body = "".join(f"{key} = {value}\n" for key, value in values.items() if value is not None)
    return f"[[fault]]\n{body}"


def refusal(text: str) -> str:
    with pytest.raises(InputError, match=r"^mine\.toml: line \d+: ") as caught:
        read(text, "mine.toml", patterns_too=True)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_packaged_catalogue_loads_and_names_where_each_entry_is() -> None:
    entries = {entry.id: entry for entry in load()}
    assert entries["xid-79"].xid == 79
    assert entries["xid-79"].patterns == ()
    assert re.fullmatch(r"catalogue/xid\.toml:\d+", entries["xid-79"].origin)


def test_an_entry_is_read_whole() -> None:
    (entry,) = read("# mine\n\n" + entry_text(), "mine.toml", patterns_too=True)
    assert (entry.role, entry.blame) == (Role.ROOT, Blame.NODE)
    assert (entry.restart_helps, entry.avoid_node) == (RestartHelps.ELSEWHERE, AvoidNode.YES)
    assert entry.patterns == ("flux capacitor drained",)
    assert entry.origin == "mine.toml:3"


def test_the_deprecated_key_of_a_fix_is_read_with_a_warning() -> None:
    with pytest.warns(FutureWarning, match="mine.toml:1: key 'mend' is now called 'fix'"):
        (entry,) = read(entry_text(fix=None, mend="'Charge it.'"), "mine.toml")
    assert entry.fix == "Charge it."


def test_a_users_entry_replaces_the_packaged_one_and_new_ones_are_added(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(entry_text() + entry_text(id="'xid-79'", patterns=None, xid="79"))
    before, after = load(), load([mine])
    assert len(after) == len(before) + 1
    (replaced,) = [entry for entry in after if entry.id == "xid-79"]
    assert replaced.title == "Flux is drained"
    assert replaced.origin == f"{mine}:13"


def test_the_last_of_several_user_files_wins(tmp_path: Path) -> None:
    first, second = tmp_path / "1.toml", tmp_path / "2.toml"
    first.write_text(entry_text())
    second.write_text(entry_text(title="'Second'"))
    assert [e.title for e in load([first, second]) if e.id == "flux-drained"] == ["Second"]


BAD_ENTRIES = [
    ({"zzzz": "1"}, "unknown key zzzz; known keys: avoid_node, blame"),
    ({"pattern": "'x'"}, "unknown key pattern; did you mean patterns?"),
    ({"origin": "'here'"}, "unknown key origin; "),
    ({"fix": None}, "key 'fix' is missing; add it"),
    ({"cause": "'healthy'"}, "cause 'healthy' belongs to runs without a fault"),
    ({"cause": "'hnag'"}, "cause: expected one of "),
    ({"patterns": None}, "needs one of 'xid' and 'patterns'"),
    ({"xid": "79"}, "needs one of 'xid' and 'patterns'"),
    ({"role": "'rooot'"}, "role: expected one of root, cascade, confirmation, benign, got 'rooot'"),
    ({"blame": "7"}, "blame: expected one of gpu, node, fabric, storage, job, user, got 7"),
    ({"restart_helps": "true"}, "restart_helps: expected one of yes, no, maybe, elsewhere, got T"),
    ({"avoid_node": "'perhaps'"}, "avoid_node: expected one of yes, no, repeat, got 'perhaps'"),
    ({"title": "7"}, "title: expected a line of 1 to 80 printable characters, got 7"),
    ({"title": "' '"}, "title: expected a line of 1 to 80 printable characters, got ' '"),
    ({"title": f"'{'x' * 81}'"}, "title: expected a line of 1 to 80 printable characters, got 'x"),
    ({"fix": r'"a\u001b[31m"'}, "fix: expected a line of 1 to 300 printable characters"),
    ({"id": "'Flux_Drained'"}, "id: expected at most 40 characters in kebab-case"),
    ({"id": "'xid-79'"}, "an id that begins with 'xid-' is for an Xid"),
    ({"patterns": "'flux capacitor'"}, "patterns: expected a list of 1 to 32 regular expressions"),
    ({"patterns": "[]"}, "patterns: expected a list of 1 to 32 regular expressions"),
    ({"patterns": "[7]"}, "patterns[0]: expected a list of 1 to 32 regular expressions"),
    ({"examples": "[]"}, "examples: expected a list of 1 to 32 examples"),
    ({"examples": f"['{'x' * 2001}']"}, "examples[0]: expected a list of 1 to 32 examples"),
    ({"patterns": "['flux [capacitor']"}, "is not a valid regular expression"),
    ({"patterns": "['(?i)flux capacitor']"}, "a case-insensitive flag ((?i)"),
    ({"patterns": "['flux capacitor(?= drained)']"}, "a lookaround ((?=)"),
    ({"patterns": "['(?<!un)drained flux']"}, "a lookaround ((?<)"),
    ({"patterns": r"['(flux) capacitor \1']"}, r"a backreference (\1)"),
    ({"patterns": "['(?P<a>flux) capacitor (?P=a)']"}, "a backreference ((?P=a))"),
    ({"patterns": "['(flux capacitor)?']"}, "matches the empty text"),
    ({"patterns": "['flux|capacitor']"}, "has no literal of 6 characters"),
    ({"patterns": "['flux.*drain']"}, "has no literal of 6 characters"),
    ({"patterns": "['warp core breach']"}, "matches no example; add a line that it matches"),
]


@pytest.mark.parametrize(("changes", "expected"), BAD_ENTRIES)
def test_a_bad_entry_is_refused(changes: dict[str, str | None], expected: str) -> None:
    message = refusal("\n\n" + entry_text(**changes))
    assert message.startswith("mine.toml: line 3: entry '")
    assert expected in message


@pytest.mark.parametrize("xid", ["'79'", "true", "0", "10000", "7.0"])
def test_an_xid_is_a_whole_number(xid: str) -> None:
    message = refusal(entry_text(id="'xid-79'", patterns=None, xid=xid))
    assert "xid: expected a whole number from 1 to 9999, got " in message


def test_an_xid_has_its_number_in_its_id() -> None:
    assert "must be 'xid-79'" in refusal(entry_text(patterns=None, xid="79"))


BAD_FILES = [
    ("[[fault]]\nid = \n", "mine.toml: line 2: invalid TOML: Invalid value"),
    ("[[fault]]\nid = 'x", "mine.toml: line 2: invalid TOML: "),
    ("", "mine.toml: line 1: holds no entry"),
    ("fault = 7\n", "mine.toml: line 1: holds no entry"),
    ("fault = [7]\n", "mine.toml: line 1: entry None: is not a table"),
    ("colour = 'red'\n" + entry_text(), "mine.toml: line 1: unknown key 'colour'"),
    ("[[fualt]]\nid = 'x'\n", "mine.toml: line 1: unknown key 'fualt'"),
    (entry_text() * 2, "mine.toml: line 13: entry 'flux-drained': the id is taken by mine.toml:1"),
    (entry_text() * (MAX_ENTRIES + 1), "mine.toml: line 1: has 1001 entries, over 1000"),
    ("a = " + "[" * 5000, "mine.toml: line 1: invalid TOML"),
    ("a = " + "9" * 5000, "mine.toml: line 1: invalid TOML"),
]


@pytest.mark.parametrize(("text", "expected"), BAD_FILES, ids=[each[1] for each in BAD_FILES])
def test_a_bad_file_is_refused(text: str, expected: str) -> None:
    assert refusal(text).startswith(expected)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    locked = tmp_path / "mine.toml"
    locked.write_text(entry_text())
    locked.chmod(0)
    for file, reason in (
        (tmp_path / "nowhere.toml", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (locked, "Permission denied"),
    ):
        expected = rf"cannot be read \({reason}\); check the path"
        with unprivileged(), pytest.raises(InputError, match=expected):
            load([file])


def test_a_file_that_is_too_large_or_no_text_is_refused(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(InputError, match=r"larger than 500000 bytes"):
        load([mine])
    mine.write_bytes(b"# fine\n# \xff\n")
    with pytest.raises(InputError, match=r": line 2: not UTF-8 text; save"):
        load([mine])


LITERALS = [
    (r"abc def(?:gh|ij)?kl", ("abc def",)),
    (r"abcdefgh|ab\.cdef-xyz", ("abcdefgh", "ab.cdef-xyz")),
    (r"a+bcdefgh", ("bcdefgh",)),
    (r"(?:foo bar|quxquux) x", ("foo bar", "quxquux")),
    (r"abcdefg{0,2}", ("abcdef",)),
    (r"(abc defg)*", ()),
    (r"[abc]defghi+j", ("defghi",)),
    (r"foo\(barbaz\)\d", ("foo(barbaz)",)),
    (r"(?P<rank>\d+) lost", (" lost",)),
]


@pytest.mark.parametrize(("pattern", "expected"), LITERALS)
def test_the_literals_of(pattern: str, expected: tuple[str, ...]) -> None:
    assert literals(pattern) == expected


@given(
    st.from_regex(r"(?:[ab]|\\\.|[ab][*+?]|\((?:[ab]{1,3}\|?){1,3}\)[*+?]?){1,8}", fullmatch=True)
)
def test_every_match_contains_one_of_the_literals(pattern: str) -> None:
    found = literals(pattern)
    for text in ("", "a", "ab.ab", "aabb.", "ba.baab", "abababab..bb"):
        for match in re.finditer(pattern, text):
            assert not found or any(literal in match[0] for literal in found)


def test_a_lazy_quantifier_and_a_named_group_are_allowed() -> None:
    assert check_pattern(r"lost node (?P<node>\w+?)\.").search("lost node a7.")


def test_a_grammar_that_reads_no_line_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(grammars, "hyperscan")
    made = Grammar(load())
    with pytest.raises(NameError):
        made.scan(b"a line")


def test_the_packaged_grammar_is_compiled_beside_the_imports_of_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[Grammar] = []
    monkeypatch.setattr(Grammar, "compile", lambda self: compiled.append(self))
    with compiled_meanwhile():
        pass
    assert compiled == [with_grammar()[1]]
