# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch faults` as a user sees it: the list, one entry, JSON, and what goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from mwatch.cli.faults import faults
from support.repository.json_schema import read_json

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(str(ROOT / name) for name in ("sidecar", "trainer"))
PROGRAM = """
import typer
from mwatch.cli.faults import faults

app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command()(faults)
app()
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command()(faults)

MINE = """[[fault]]
id = 'flux-drained'
title = 'Flux is drained \u26a1'
patterns = ['flux capacitor drained']
role = 'root'
blame = 'node'
restart_helps = 'no'
avoid_node = 'no'
fix = 'Charge it.'
runbook = 'gpu-hardware'
source = 'a test'
examples = ['flux capacitor drained']
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def run_piped(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**os.environ, "PYTHONPATH": PATHS, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_list_is_aligned_and_fits_100_columns() -> None:
    lines = run().stdout.splitlines()
    assert lines[0].split() == ["ID", "ROLE", "BLAME", "RESTART", "TITLE"]
    assert len(lines) > 140
    assert max(map(len, lines)) <= 100
    column = lines[0].index("TITLE")
    assert all(line[column - 2 : column] == "  " and line[column] != " " for line in lines)


def test_the_filters_narrow_the_list() -> None:
    shown = run("--role", "benign", "--json").stdout
    assert {entry["role"] for entry in read_json(shown, "faults")["faults"]} == {"benign"}
    both = read_json(run("--role", "root", "--blame", "gpu", "--json").stdout, "faults")["faults"]
    assert {(entry["role"], entry["blame"]) for entry in both} == {("root", "gpu")}


def test_an_unknown_role_is_bad_usage() -> None:
    assert run("--role", "culprit").exit_code == 2


@pytest.mark.parametrize("name", ["xid-79", "79", "xid79", "XID 79", "Xid-79", "079"])
def test_an_xid_is_found_by_any_spelling(name: str) -> None:
    done = run(name)
    assert done.exit_code == 0
    assert done.stdout.startswith("xid-79: GPU fell off the bus\n")


def test_an_entry_is_explained_with_all_that_is_known() -> None:
    text = run("cuda-out-of-memory").stdout
    for expected in [
        "role           root: the cause",
        "blame          job",
        "restart helps  no: it fails again",
        "avoid node     no",
        "fix            Lower the micro-batch",
        "matches        CUDA out of memory\n               HIP out of memory",
        "example        [rank0]: torch.OutOfMemoryError",
        "runbook        mwatch runbook out-of-memory",
        "source         ",
        "defined in     catalogue/memory.toml:",
    ]:
        assert expected in text


def test_json_of_one_entry_is_one_object() -> None:
    entry = read_json(run("79", "--json").stdout, "fault")
    assert (entry["id"], entry["xid"], entry["avoid_node"]) == ("xid-79", 79, "yes")


def test_an_unknown_id_names_its_neighbours_in_one_line() -> None:
    done = run("cuda-out-of-memroy")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "cuda-out-of-memory" in done.stderr


def test_an_id_like_nothing_is_informed() -> None:
    done = run("qqqqqqqqqqqqqqqq")
    assert done.exit_code == 2
    assert "near it" not in done.stderr
    assert "'mwatch faults' lists all" in done.stderr


def test_an_id_and_a_filter_exclude_each_other() -> None:
    done = run("79", "--role", "root")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)


def test_entries_of_ones_own_are_shown(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(MINE, "utf-8")
    text = run("flux-drained", "--catalogue", str(mine)).stdout
    assert "Charge it." in text
    assert f"defined in     {mine}:1" in text


def test_a_bad_catalogue_is_one_line_and_exit_2(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(MINE.replace("'root'", "'rooot'"), "utf-8")
    done = run("--catalogue", str(mine))
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert (
        f"{mine}: line 1: entry 'flux-drained': invalid value for role: expected one of root"
        in done.stderr
    )


def test_a_catalogue_that_is_not_there_is_one_line_and_exit_2() -> None:
    done = run("--catalogue", "/nowhere/mine.toml")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "/nowhere/mine.toml: cannot be read" in done.stderr


def test_help_has_an_example() -> None:
    assert "mwatch faults xid-79" in run("--help").stdout


def test_a_reader_that_goes_away_is_no_error() -> None:
    with run_piped("--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 0


def test_a_terminal_without_unicode_gets_escapes(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(MINE, "utf-8")
    with run_piped("flux-drained", "--catalogue", str(mine), PYTHONIOENCODING="ascii") as process:
        out, err = process.communicate(timeout=60)
    assert err == ""
    assert "Flux is drained \\u26a1" in out


def test_a_pasted_line_shows_the_best_entry_and_the_others() -> None:
    line = "w1:7:9 [0] misc/socket.cc:48 NCCL WARN Call to connect failed : Connection timed out"
    text = run(line).stdout
    assert text.startswith("nccl-connect-timeout: ")
    assert "It also matches:" in text
    assert text.index("nccl-connect-refused") < text.index("nccl-warning")
    found = [entry["id"] for entry in read_json(run(line, "--json").stdout, "faults")["faults"]]
    assert found == ["nccl-connect-timeout", "nccl-connect-refused", "nccl-warning"]


def test_a_pasted_line_of_the_kernel_is_found_by_its_xid() -> None:
    line = "[5.2] NVRM: Xid (PCI:0000:c1:00): 79, pid=1, GPU has fallen off the bus."
    assert run(line).stdout.startswith("xid-79: ")


def test_a_pasted_traceback_is_read_line_by_line() -> None:
    text = (
        "Traceback (most recent call last):\n[rank3]: OSError: [Errno 28] No space left on device"
    )
    assert run(text).stdout.startswith("storage-full: ")


def test_a_word_lists_the_entries_that_have_it() -> None:
    found = read_json(run("nccl", "--json").stdout, "faults")["faults"]
    assert len(found) > 20
    assert all(
        "nccl" in " ".join([e["id"], e["title"], *e["patterns"], e["fix"]]).lower() for e in found
    )
    table = run("NCCL", "--role", "root").stdout.splitlines()
    assert table[0].split()[0] == "ID"
    assert all(line.split()[1] == "root" for line in table[1:])


def test_several_words_must_all_be_there() -> None:
    found = {
        entry["id"]
        for entry in read_json(run("shared segment", "--json").stdout, "faults")["faults"]
    }
    assert "nccl-shared-memory" in found
    assert "nccl-warning" not in found
