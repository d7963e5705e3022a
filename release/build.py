# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Builds all files of a release: `python -m release.build DIR`.

Wheel and source distribution, the wrapper as one file, charts in the form of `helm package`, the
krew plugin with its manifest, the container image, the software bills of materials of wheel and
image, and the checksums of all of them.

The same sources and tools give the same bytes: every time in an archive is SOURCE_DATE_EPOCH, else
the time of the last commit. The image has the newest packages of its Debian, so that its bytes
change with them; it alone needs the network.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import yaml

import mwatch
from mwatch.shipped import Kind, contents, files
from mwatch_trainer import zipapp_build
from release.image import LOCKS, build_image, file_name, installed_tools
from release.sbom import write_lock_sbom, write_sbom

ROOT = Path(__file__).resolve().parents[1]
DOWNLOADS = "https://github.com/mwatch-dev/mwatch/releases/download"
SUMS = "SHA256SUMS"
_FOLDERS = ("sidecar", "trainer", "alerts", "dashboards", "manifests", "runbooks")
_FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "LICENSE")
_SECONDS = 300
_EARLIEST = 315532800
"""1980-01-01: a zip file holds no earlier time."""
_LAUNCHER = """\
#!/bin/sh
# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
# `kubectl mwatch`: starts the mwatch that is installed, which is a Python package.
command -v mwatch >/dev/null 2>&1 && exec mwatch "$@"
echo "kubectl mwatch: there is no mwatch on PATH; run: pipx install mwatch" >&2
exit 127
"""


def build(target: Path, *, with_image: bool) -> list[Path]:
    """Build all files of a release into an empty folder. Raises CalledProcessError, OSError."""
    epoch = _epoch()
    surroundings = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    if with_image:
        tools = installed_tools(surroundings)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as parts:
            build_image(target / file_name(), Path(parts), tools, epoch)
    _build_packages(target, surroundings)
    (sdist,) = target.glob("*.tar.gz")
    _repack(sdist, epoch)
    zipapp_build.build(str(target / "mwatch-run.pyz"))
    for chart in sorted({name.parts[0] for name in files(Kind.CHARTS)}):
        package_chart(chart, target, epoch)
    package_krew_plugin(target, epoch)
    (wheel,) = target.glob("*.whl")
    write_sbom(wheel, target / f"mwatch-{mwatch.__version__}.cdx.json", surroundings)
    image_sbom = target / f"mwatch-image-{mwatch.__version__}.cdx.json"
    write_lock_sbom(LOCKS[0], image_sbom, surroundings)
    built = sorted(target.iterdir())
    sums = "".join(f"{_sha256(path)}  {path.name}\n" for path in built)
    (target / SUMS).write_text(sums, "utf-8")
    return [*built, target / SUMS]


def package_chart(chart: str, target: Path, epoch: int) -> None:
    """Write NAME-VERSION.tgz, with all files under NAME/ and Chart.yaml first."""
    there = {name: data for name, data in contents(Kind.CHARTS).items() if name.parts[0] == chart}
    about = PurePosixPath(chart, "Chart.yaml")
    version = yaml.safe_load(there[about])["version"]
    names = [about, *(name for name in there if name != about and name.name != ".helmignore")]
    content = {str(name): (there[name], 0o644) for name in names}
    (target / f"{chart}-{version}.tgz").write_bytes(_tar_gz(content, epoch))


def package_krew_plugin(target: Path, epoch: int) -> None:
    """Write the archive with the launcher, and the manifest that krew installs it by."""
    version = mwatch.__version__
    archive = target / f"kubectl-mwatch-{version}.tar.gz"
    licence = (ROOT / "LICENSE").read_bytes()
    content = {"kubectl-mwatch": (_LAUNCHER.encode(), 0o755), "LICENSE": (licence, 0o644)}
    archive.write_bytes(_tar_gz(content, epoch))
    platform = {
        "selector": {"matchLabels": {"os": "linux"}},
        "uri": f"{DOWNLOADS}/v{version}/{archive.name}",
        "sha256": _sha256(archive),
        "bin": "kubectl-mwatch",
    }
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "mwatch"},
        "spec": {
            "version": f"v{version}",
            "homepage": "https://github.com/mwatch-dev/mwatch",
            "shortDescription": "Find what is wrong with Megatron-LM training",
            "description": (
                "Shows what is wrong with a Megatron-LM training job, since when and which rank, "
                "GPU or node is the culprit; pauses mwatch and restarts jobs."
            ),
            "caveats": "The plugin starts mwatch, a Python package: pipx install mwatch",
            "platforms": [platform],
        },
    }
    (target / "mwatch.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False), "utf-8")


def _build_packages(target: Path, surroundings: Mapping[str, str]) -> None:
    """From a copy without leftovers of other builds; the wheel is built from the sdist."""
    with tempfile.TemporaryDirectory() as copy:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        for name in _FOLDERS:
            shutil.copytree(ROOT / name, Path(copy, name), ignore=ignored)
        for path in [*ROOT.glob("*.md"), *(ROOT / name for name in _FILES)]:
            shutil.copy(path, copy)
        words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), copy]
        made = subprocess.run(
            words, env=surroundings, capture_output=True, text=True, timeout=_SECONDS
        )
    if made.returncode != 0:
        raise OSError(f"python -m build failed:\n{made.stdout[-4000:]}{made.stderr[-4000:]}")


def _repack(archive: Path, epoch: int) -> None:
    """The same content with the same times, owners and order."""
    content: dict[str, tuple[bytes, int]] = {}
    with tarfile.open(archive) as source:
        for member in source:
            if member.isfile() and (file := source.extractfile(member)) is not None:
                mode = 0o755 if member.mode & 0o100 else 0o644
                content[member.name] = (file.read(), mode)
    archive.write_bytes(_tar_gz(dict(sorted(content.items())), epoch))


def _tar_gz(content: Mapping[str, tuple[bytes, int]], epoch: int) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, (data, mode) in content.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(data), mode, epoch
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), mtime=epoch)


def _epoch() -> int:
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not given.isdigit():
        words = ["git", "log", "-1", "--format=%ct"]
        try:
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=_SECONDS)
            given = done.stdout.strip() or "0"
        except OSError:  # no git
            given = "0"
    return max(int(given), _EARLIEST)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Build all files of a release.")
    parser.add_argument("target", metavar="DIR", type=Path, help="folder; it is emptied first")
    parser.add_argument("--without-image", action="store_true", help="all but the image")
    given = parser.parse_args()
    target: Path = given.target.resolve()
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    try:
        built = build(target, with_image=not given.without_image)
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"cannot build the release: {error}")
    for path in built:
        print(f"{path.stat().st_size:>10,}  {path.name}")


if __name__ == "__main__":
    main()
