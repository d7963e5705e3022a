# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The files of a release, built once; the wheel is installed and used where no checkout is.

Its dependencies, and nothing else, are links to those of this environment: no torch, no extras.
The commands of the README run there too.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tarfile
import termios
from contextlib import suppress
from email import message_from_bytes
from email.message import Message
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from readme_renderer import markdown

import mwatch
from mwatch.shipped import Kind, files
from release.build import build
from release.image import LOCKS
from release.sbom import closure, locked_versions
from support.repository.chart_renders import NO_HELM, helm, rendered
from support.repository.readme_examples import README, README_COLUMNS, Example, examples

ROOT = Path(__file__).resolve().parents[2]
CHARTS = sorted(path.parent for path in ROOT.glob("manifests/charts/*/Chart.yaml"))
LOG = ROOT / "tests/corpus/hang-nccl-timeout/trainer.log"


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    surroundings = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return subprocess.run(
        words, cwd=cwd, env=surroundings, capture_output=True, text=True, timeout=150
    )


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("release")
    build(target, with_image=False)
    return target


@pytest.fixture(scope="module")
def wheel(release: Path) -> Path:
    (built,) = release.glob("*.whl")
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
    (own,) = packages.glob("mwatch-*.dist-info")
    for package in closure(PathDistribution(own)):
        for name in {Path(each).parts[0] for each in package.files or ()} - {"..", "__pycache__"}:
            (packages / name).symlink_to(Path(str(package.locate_file(name))))
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


@pytest.mark.parametrize("name", ["mwatch", "megatron"])
def test_an_image_is_built_from_all_that_the_wheel_is_built_from(name: str) -> None:
    recipe = (ROOT / f"manifests/docker/{name}.Dockerfile").read_text("utf-8")
    copied = re.findall(r"^COPY (?!--)(.+) /source/\S*$", recipe, re.MULTILINE)
    paths = {ROOT / word for words in copied for word in words.split()}
    needed = {ROOT / each for each in ("setup.py", "pyproject.toml", "README.md", "LICENSE")}
    needed |= {ROOT / "sidecar/mwatch", ROOT / "trainer/mwatch_trainer"}
    needed |= {path for kind in Kind for path in files(kind).values()}
    assert [each for each in needed if not paths & {each, *each.parents}] == []


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
    exported.remove(Path("charts/mwatch/files/mwatch-run.pyz"))  # made, not tracked
    assert exported == {Path("charts", name) for name in files(Kind.CHARTS)}
    for path in exported:
        assert (tmp_path / path).read_bytes() == (ROOT / "manifests" / path).read_bytes()

    verdict = output("mwatch", "diagnose", str(LOG), code=1)
    assert verdict.startswith("HANG since iteration 25")
    (command,) = re.findall(r"^runbook +mwatch (runbook .+)$", verdict, re.MULTILINE)
    assert output("mwatch", *command.split()).startswith("# ")


# One needs a cluster, two a checkout, one a browser; the wheel is installed by a fixture.
NOT_RUN = {"mwatch diagnose gpt -n training", "make demo", "make test", "pip install mwatch"}
NOT_RUN |= {"mwatch ui"}
FAKES = {
    "kubectl": """case "$*" in
"logs -l training.kubeflow.org/job-name=gpt --prefix --tail=-1")
    sed 's|^|[pod/gpt-worker-0/pytorch] |' "$LOG" ;;
"apply -n training -f -") cat > applied.yaml ;;
*) echo "unexpected: $*" >&2; exit 64 ;;
esac""",
    "helm": 'test "$1 $2 $4 $5" = "install mwatch -n training" && test -e "$3/Chart.yaml"',
    "torchrun": 'exec python -m mwatch_gpt.stand_in --train-iters 6 --log-interval 1 "--save" ckpt',
}


class Ran(NamedTuple):
    example: Example
    code: int
    output: str
    errors: str


@pytest.fixture(scope="module")
def readme(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Every example that needs no cluster, one after the other, on a terminal of 95 columns."""
    folder = tmp_path_factory.mktemp("readme")
    for name, text in FAKES.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    shutil.copy(ROOT / "tests/manifests/aks.yaml", folder / "job.yaml")
    surroundings = {"PATH": f"{folder}:{installed}:/usr/bin:/bin", "LOG": str(LOG)}
    surroundings |= {"HOME": str(folder), "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    found = examples(README.read_text("utf-8"))
    assert {each.command for each in found} >= NOT_RUN
    wanted = [each for each in found if each.command not in NOT_RUN]
    return {each.command: on_terminal(each, folder, surroundings) for each in wanted}


def on_terminal(example: Example, folder: Path, surroundings: dict[str, str]) -> Ran:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, README_COLUMNS, 0, 0))
    with (folder / "errors").open("w+") as errors:
        process = subprocess.Popen(
            ["/bin/sh", "-c", example.command], cwd=folder, env=surroundings,
            stdin=subprocess.DEVNULL, stdout=theirs, stderr=errors,
        )  # fmt: skip
        os.close(theirs)
        output = b""
        with suppress(OSError):  # the end of a terminal
            while select.select([ours], [], [], 300)[0]:
                output += os.read(ours, 65536)
        os.close(ours)
        code = process.wait(60)
        errors.seek(0)
        text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", output.decode()).replace("\r\n", "\n")
        return Ran(example, code, text, errors.read())


def test_every_example_of_the_readme_ends_as_it_should(readme: dict[str, Ran]) -> None:
    for ran in readme.values():
        wanted = 1 if "diagnose -" in ran.example.command else 0
        assert ran.code == wanted, ran


def test_the_readme_shows_what_its_examples_print(readme: dict[str, Ran]) -> None:
    shown = [ran for ran in readme.values() if ran.example.output]
    assert [ran.example.command.rpartition("mwatch ")[2] for ran in shown] == ["diagnose -", "demo"]
    for ran in shown:
        wanted = comparable("\n".join(ran.example.output), is_timed="demo" in ran.example.command)
        assert comparable(ran.output, is_timed="demo" in ran.example.command) == wanted


def comparable(text: str, *, is_timed: bool) -> list[str]:
    """Without what differs from run to run, where time is real: durations, and steps within."""
    lines = [line.rstrip() for line in text.strip().splitlines()]
    if not is_timed:
        return lines
    lines = [re.sub(r"(\d+ min )?\d+(\.\d+)? s\b|\d+ steps", "#", line) for line in lines]
    return [" ".join(line.split()) for line in lines]


def test_the_demo_without_torch_says_that_its_trainer_is_a_stand_in(readme: dict[str, Ran]) -> None:
    assert "the trainer is a stand-in: it trains nothing" in readme["mwatch demo"].errors
    assert readme["mwatch demo"].output.count("recovered\n") == 3


def test_a_release_has_these_files_and_their_checksums(release: Path) -> None:
    version = mwatch.__version__
    charts = {f"{chart.name}-{version}.tgz" for chart in CHARTS}
    wanted = {f"mwatch-{version}-py3-none-any.whl", f"mwatch-{version}.tar.gz", "mwatch-run.pyz"}
    wanted |= {f"kubectl-mwatch-{version}.tar.gz", "mwatch.yaml", f"mwatch-{version}.cdx.json"}
    wanted |= {f"mwatch-image-{version}.cdx.json"}
    lines = (release / "SHA256SUMS").read_text("utf-8").splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert sums.keys() == charts | wanted
    assert {path.name for path in release.iterdir()} == sums.keys() | {"SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256((release / name).read_bytes()).hexdigest() == digest


def test_archives_hold_no_trace_of_who_built_them_and_when(release: Path) -> None:
    for path in [*release.glob("*.tgz"), *release.glob("*.tar.gz")]:
        with tarfile.open(path) as archive:
            entries = archive.getmembers()
        assert len({entry.mtime for entry in entries}) == 1
        assert {(entry.uid, entry.gid, entry.uname, entry.gname) for entry in entries} == {
            (0, 0, "", "")
        }
        assert not [entry.name for entry in entries if "__pycache__" in entry.name]


def test_the_packaged_charts_render_as_their_folders(release: Path) -> None:
    if helm() is None:
        pytest.skip(NO_HELM)
    packed = release / f"mwatch-{mwatch.__version__}.tgz"
    folder = rendered(ROOT / "manifests/charts/mwatch")
    found = rendered(packed)
    (wrapper,) = [each for each in found if each not in folder]
    assert (wrapper["kind"], wrapper["metadata"]["name"]) == ("ConfigMap", "mwatch-run")
    data = base64.b64decode(wrapper["binaryData"]["mwatch-run.pyz"])
    assert data == (release / "mwatch-run.pyz").read_bytes()
    assert [each for each in found if each != wrapper] == folder
    for chart in CHARTS:
        done = run(str(helm()), "show", "chart", release / f"{chart.name}-0.1.0.tgz", cwd=release)
        assert done.returncode == 0, done.stderr
        assert yaml.safe_load(done.stdout)["name"] == chart.name


def test_the_krew_plugin_starts_mwatch_or_names_the_fix(
    release: Path, installed: Path, tmp_path: Path
) -> None:
    spec = yaml.safe_load((release / "mwatch.yaml").read_text("utf-8"))["spec"]
    (platform,) = spec["platforms"]
    archive = release / platform["uri"].rpartition("/")[2]
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == platform["sha256"]
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    plugin = tmp_path / platform["bin"]
    for path, code, text in ((f"{installed}:/usr/bin:/bin", 0, "mwatch "), ("/nowhere", 127, "")):
        done = subprocess.run(
            ["/bin/sh", plugin, "--version"],
            env={"PATH": path},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout[:7]) == (code, text)
        assert ("pipx install mwatch" in done.stderr) == (code != 0)


def test_the_bill_of_materials_lists_what_pip_would_install(release: Path, wheel: Path) -> None:
    path = release / f"mwatch-{mwatch.__version__}.cdx.json"
    listed = json.loads(path.read_text("utf-8"))
    assert listed["bomFormat"] == "CycloneDX"
    component = listed["metadata"]["component"]
    assert (component["name"], component["version"]) == ("mwatch", mwatch.__version__)
    names = {canonicalize_name(each["name"]): each["version"] for each in listed["components"]}
    direct = [Requirement(each) for each in metadata(wheel).get_all("Requires-Dist", [])]
    for each in direct:
        if each.marker is None:
            assert names[canonicalize_name(each.name)] in each.specifier
    assert "mdurl" in names  # of markdown-it-py, of rich
    assert not names.keys() & {"torch", "pytest", "mypy", "cyclonedx-bom"}


def test_the_bill_of_materials_of_the_image_lists_its_lock_file(release: Path) -> None:
    path = release / f"mwatch-image-{mwatch.__version__}.cdx.json"
    listed = json.loads(path.read_text("utf-8"))
    names = {canonicalize_name(each["name"]): each["version"] for each in listed["components"]}
    assert names == locked_versions(LOCKS[0])
