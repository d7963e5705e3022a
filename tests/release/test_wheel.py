# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The wheel, built once and installed where no checkout is: its metadata, files and commands.

Its dependencies are those of this environment, which a `.pth` file puts on the path: the editable
mwatch of this environment needs a `.pth` file of its own, which Python does not read there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest
from readme_renderer import markdown

import mwatch
from mwatch.shipped import Kind, files

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("sidecar", "trainer", "alerts", "dashboards", "manifests", "runbooks")
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
LOG = ROOT / "tests/corpus/hang-nccl-timeout/trainer.log"


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    surroundings = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return subprocess.run(
        words, cwd=cwd, env=surroundings, capture_output=True, text=True, timeout=150
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build leaves files in its folder."""
    folder = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    words = ("-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", ".")
    done = run(sys.executable, *words, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (folder / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands."""
    folder = tmp_path_factory.mktemp("installed")
    assert run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=folder).returncode == 0
    python = folder / "venv/bin/python"
    words = ("--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    done = run(sys.executable, "-m", "pip", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    (packages,) = folder.glob("venv/lib/python3*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def test_the_metadata_names_versions_of_python_links_and_types(wheel: Path) -> None:
    fields = metadata(wheel)
    classifiers = fields.get_all("Classifier", [])
    versions = {each.rpartition(" ")[2] for each in classifiers if "Python :: 3." in each}
    assert versions == {"3.11", "3.12", "3.13"}
    links = dict(each.split(", ") for each in fields.get_all("Project-URL", []))
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= links.keys()
    with ZipFile(wheel) as archive:
        assert {"mwatch/py.typed", "mwatch_trainer/py.typed"} <= set(archive.namelist())


@pytest.mark.parametrize("kind", Kind)
def test_the_wheel_has_the_files_of(kind: Kind, wheel: Path) -> None:
    wanted = files(kind)
    assert len(wanted) >= 5
    with ZipFile(wheel) as archive:
        for path in wanted.values():
            name = f"mwatch/shipped/{path.relative_to(ROOT).as_posix()}"
            assert archive.read(name) == path.read_bytes()


def test_the_readme_renders_as_on_pypi_with_links_that_work_there(wheel: Path) -> None:
    fields = metadata(wheel)
    assert fields["Description-Content-Type"] == "text/markdown"
    text = fields.get_payload(decode=True)
    assert isinstance(text, bytes)
    page = markdown.render(text.decode("utf-8"))
    assert page is not None and ">mwatch<" in page
    targets = re.findall(r'(?:href|src)="([^"]*)"', page)
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    own = "https://github.com/mwatch-dev/mwatch/"
    paths = [each.removeprefix(own).split("/", 2) for each in targets if each.startswith(own)]
    assert ["raw", "main", "docs/live.png"] in paths
    for kind, branch, path in paths:
        assert kind in ("raw", "blob") and branch == "main"
        assert (ROOT / path.partition("#")[0]).exists()


def test_the_installed_commands_work_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    def output(*words: str, code: int = 0) -> str:
        done = run(installed / words[0], *words[1:], cwd=tmp_path)
        assert (done.returncode, done.stderr) == (code, "")
        return done.stdout

    where = output("python", "-c", "import mwatch; print(mwatch.__file__)").strip()
    assert Path(where).is_relative_to(installed.parent)
    assert output("mwatch", "--version") == f"mwatch {mwatch.__version__}\n"
    assert output("kubectl-mwatch", "--version") == f"mwatch {mwatch.__version__}\n"
    page = (ROOT / "runbooks/process-crash.md").read_text("utf-8")
    assert output("mwatch", "runbook", "process-crash") == page

    assert "helm install mwatch charts/mwatch" in output("mwatch", "export", "charts", "charts")
    exported = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert exported == {Path("charts", name) for name in files(Kind.CHARTS)}
    for path in exported:
        assert (tmp_path / path).read_bytes() == (ROOT / "manifests" / path).read_bytes()

    verdict = output("mwatch", "diagnose", str(LOG), code=1)
    assert verdict.startswith("HANG since iteration 25")
    (command,) = re.findall(r"^runbook +mwatch (runbook .+)$", verdict, re.MULTILINE)
    assert output("mwatch", *command.split()).startswith("# ")
