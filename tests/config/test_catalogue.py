# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The catalogue's loader: what it reads, what it refuses and in which words."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwatch.config.catalogue import MAX_ENTRIES, MAX_FILE_BYTES, check_pattern, load, read, tables
from mwatch.model.fault import AvoidNode, Blame, RestartHelps, Role
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
    with pytest.raises(ValueError, match=r"^mine\.toml:\d+: ") as caught:
        read(text, "mine.toml", patterns_too=True)
    message = str(caught.value)
    assert "\n" not in message
    assert "; " in message, "no fix"
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


def test_the_old_key_mend_is_read_as_fix_with_a_warning() -> None:
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
    ({"colour": "'red'"}, "unknown key 'colour'; known are"),
    ({"fix": None}, "key 'fix' is missing; add it"),
    ({"patterns": None}, "needs one of 'xid' and 'patterns'"),
    ({"xid": "79"}, "needs one of 'xid' and 'patterns'"),
    ({"role": "'rooot'"}, "role is 'rooot'; use one of root, cascade, confirmation, benign"),
    ({"blame": "7"}, "blame is 7; use one of"),
    ({"restart_helps": "true"}, "restart_helps is True; use one of"),
    ({"avoid_node": "'perhaps'"}, "avoid_node is 'perhaps'; use one of yes, no, repeat"),
    ({"title": "7"}, "title is not text; put it in quotes"),
    ({"title": "' '"}, "title is empty; fill it in"),
    ({"title": f"'{'x' * 81}'"}, "title has 81 characters, over 80; shorten it"),
    ({"fix": r'"a\u001b[31m"'}, "fix holds a line break or control character; remove it"),
    ({"id": "'Flux_Drained'"}, "the id is not in kebab-case"),
    ({"id": "'xid-79'"}, "an id that begins with 'xid-' is for an Xid"),
    ({"patterns": "'flux capacitor'"}, "patterns is no list"),
    ({"patterns": "[]"}, "patterns has 0 members; give 1 to 32"),
    ({"patterns": "[7]"}, "a member of patterns is not text"),
    ({"examples": "[]"}, "examples has 0 members"),
    ({"examples": f"['{'x' * 2001}']"}, "a member of examples has 2001 characters, over 2000"),
    ({"patterns": "['flux [capacitor']"}, "is no regular expression"),
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
    assert message.startswith("mine.toml:3: entry '")
    assert expected in message


@pytest.mark.parametrize("xid", ["'79'", "true", "0", "10000", "7.0"])
def test_an_xid_is_a_whole_number(xid: str) -> None:
    message = refusal(entry_text(id="'xid-79'", patterns=None, xid=xid))
    assert "xid is no whole number from 1 to 9999" in message


def test_an_xid_has_its_number_in_its_id() -> None:
    assert "must be 'xid-79'" in refusal(entry_text(patterns=None, xid="79"))


BAD_FILES = [
    ("[[fault]]\nid = \n", "mine.toml:2: is not TOML: Invalid value"),
    ("[[fault]]\nid = 'x", "mine.toml:2: is not TOML: "),
    ("", "mine.toml:1: holds no entry"),
    ("fault = 7\n", "mine.toml:1: holds no entry"),
    ("fault = [7]\n", "mine.toml:1: entry None: is no table"),
    ("colour = 'red'\n" + entry_text(), "mine.toml:1: unknown key 'colour'"),
    ("[[fualt]]\nid = 'x'\n", "mine.toml:1: unknown key 'fualt'"),
    (entry_text() + entry_text(), "mine.toml:13: entry 'flux-drained': the id is taken by mine"),
    (entry_text() * (MAX_ENTRIES + 1), f"mine.toml:1: has {MAX_ENTRIES + 1} entries, over 1000"),
    ("a = " + "[" * 5000, "mine.toml:1: is not TOML"),
    ("a = " + "9" * 5000, "mine.toml:1: is not TOML"),
]


@pytest.mark.parametrize(("text", "expected"), BAD_FILES, ids=[each[1] for each in BAD_FILES])
def test_a_bad_file_is_refused(text: str, expected: str) -> None:
    assert refusal(text).startswith(expected)


def test_a_missing_file_is_named_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.toml: cannot be read \(No such .*\); give the"):
        load([tmp_path / "nowhere.toml"])


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be read \(Is a directory\); give the path"):
        load([tmp_path])


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(entry_text())
    mine.chmod(0)
    expected = r"cannot be read \(Permission denied\); give the path"
    with unprivileged(), pytest.raises(ValueError, match=expected):
        load([mine])


def test_a_file_that_is_too_large_or_no_text_is_refused(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ValueError, match=r"is larger than 1 MiB; split it"):
        load([mine])
    mine.write_bytes(b"# fine\n# \xff\n")
    with pytest.raises(ValueError, match=r":2: is not UTF-8 text; save"):
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


@given(st.lists(st.sampled_from([*entry_text().splitlines(), "    'x',", "]", "a = [", ""])))
def test_the_plain_layout_is_never_read_otherwise_than_toml(lines: list[str]) -> None:
    text = "\n".join(["[[fault]]", *lines])
    try:
        expected = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        with pytest.raises(ValueError, match="is not TOML"):
            tables(text, "x")
    else:
        assert tables(text, "x") == expected["fault"]
