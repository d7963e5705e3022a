# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch runbook` and `mwatch export` from a checkout: lists, pages, wrong names, overwriting."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mwatch.cli.program import program
from mwatch.errors import InputError
from mwatch.shipped import Kind, contents, files

ROOT = Path(__file__).resolve().parents[2]
RUNBOOKS = {page.stem: page for page in sorted((ROOT / "runbooks").glob("*.md"))}
LINK = re.compile(r"\]\(([\w-]+\.md(?:#[\w-]+)?)\)")


def output(*words: str) -> str:
    done = CliRunner().invoke(program(), list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def refusal(*words: str) -> str:
    with pytest.raises(InputError) as raised:
        CliRunner().invoke(program(), list(words), catch_exceptions=False)
    return str(raised.value)


def test_the_list_has_every_runbook_once_with_its_subject() -> None:
    lines = output("runbook").splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(RUNBOOKS)
    assert "process-crash               A process crashed or was stopped" in lines
    assert "MwatchStalled               The run hangs" in lines
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("name", RUNBOOKS)
def test_a_runbook_is_printed_as_it_is_and_its_links_are_names(name: str) -> None:
    text = RUNBOOKS[name].read_text("utf-8")
    assert output("runbook", name) == text
    for link in LINK.findall(text):
        assert output("runbook", link).startswith("# ")


@pytest.mark.parametrize("name", ["process-crash.md", "runbooks/process-crash.md", "PROCESS-crash"])
def test_a_path_out_of_json_or_a_link_names_a_runbook(name: str) -> None:
    assert output("runbook", name) == output("runbook", "process-crash")


def test_a_wrong_name_gets_suggestions() -> None:
    text = refusal("runbook", "stalled")
    assert text.startswith("no runbook 'stalled'; similar: MwatchStalled")
    assert text.endswith("'mwatch runbook' lists all")
    assert refusal("runbook", "../" * 40).startswith("no runbook")


@pytest.mark.parametrize("kind", Kind)
def test_export_writes_the_files_of_a_kind_and_names_them(kind: Kind, tmp_path: Path) -> None:
    target = tmp_path / "a folder" / "deep"
    text = output("export", kind, str(target))
    found = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert found == {str(name) for name in contents(kind)}
    assert f"{len(found)} files new" in text
    assert all(f"  {Path(name).parts[0]}" in text for name in found)
    source = next(iter(files(kind).values()))
    assert not [name for name in found if name.endswith(".py") and kind is not Kind.CHARTS]
    assert source.read_bytes() in [path.read_bytes() for path in target.rglob("*.*")]


def test_export_of_charts_has_what_a_chart_needs(tmp_path: Path) -> None:
    text = output("export", "charts", str(tmp_path / "my charts"))
    charts = {path.parent.name for path in tmp_path.rglob("Chart.yaml")}
    assert charts == {path.parent.name for path in ROOT.glob("manifests/charts/*/Chart.yaml")}
    assert (tmp_path / "my charts/dataset/.helmignore").is_file()
    assert (tmp_path / "my charts/dataset/scripts/dataset_steps/hub.py").is_file()
    assert not list(tmp_path.rglob("__pycache__"))
    wrapper = tmp_path / "my charts/mwatch/files/mwatch-run.pyz"
    assert zipfile.is_zipfile(wrapper), "for the ConfigMap that training pods mount"
    assert f"next: helm install mwatch '{tmp_path}/my charts'/mwatch -n NAMESPACE" in text


def test_export_overwrites_nothing_silently(tmp_path: Path) -> None:
    output("export", "alerts", str(tmp_path))
    mine, kept = tmp_path / "stall.rules.yaml", tmp_path / "run.rules.yaml"
    mine.write_text("groups: []\n")
    kept.unlink()
    text = refusal("export", "alerts", str(tmp_path))
    assert text.startswith(f"{mine} differs") and "--force" in text
    assert mine.read_text() == "groups: []\n" and not kept.exists()
    (tmp_path / "other.yaml").write_text("other")
    text = output("export", "alerts", str(tmp_path), "--force")
    assert "1 files new, 13 unchanged, 1 replaced" in text
    assert mine.read_bytes() == (ROOT / "alerts/stall.rules.yaml").read_bytes()
    assert (tmp_path / "other.yaml").read_text() == "other"


def test_export_into_a_file_or_over_a_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot write" in refusal("export", "rbac", str(tmp_path / "file"))
    (tmp_path / "fleet.json").mkdir()
    assert "differs" in refusal("export", "dashboards", str(tmp_path))
    assert "cannot write" in refusal("export", "dashboards", str(tmp_path), "--force")
