# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The software bill of materials: the wheel with all that it depends on, as CycloneDX.

The tool lists what is installed in a virtual environment. This one has many more packages than a
user gets, so it is shown one with the metadata of the wheel's dependencies only, without extras.
Their versions are those that the release was built and tested with.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import mwatch

_PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
_SECONDS = 600


def write_sbom(wheel: Path, target: Path, surroundings: Mapping[str, str]) -> None:
    """Raises CalledProcessError, PackageNotFoundError if a dependency is not installed."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=False, symlinks=True)
        (packages,) = Path(folder).glob("lib/python3*/site-packages")
        with ZipFile(wheel) as archive:
            metadata = [name for name in archive.namelist() if ".dist-info/" in name]
            archive.extractall(packages, metadata)
        (own,) = packages.glob("*.dist-info")
        root = PathDistribution(own)
        version = root.version
        for each in closure(root):
            _copy_metadata(each, packages)
        _write(target, version, surroundings, "environment", str(Path(folder, "bin", "python")))


def write_lock_sbom(lock: Path, target: Path, surroundings: Mapping[str, str]) -> None:
    """Of the Python packages in the image, with their hashes. Raises CalledProcessError."""
    _write(target, mwatch.__version__, surroundings, "requirements", str(lock))


def locked_versions(lock: Path) -> dict[str, str]:
    """Of each package, by its name."""
    pins = re.findall(r"^([\w.-]+)==(\S+)", lock.read_text("utf-8"), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pins}


def _write(
    target: Path, version: str, surroundings: Mapping[str, str], kind: str, source: str
) -> None:
    words = [sys.executable, "-m", "cyclonedx_py", kind, "--output-reproducible"]
    words += ["--pyproject", str(_PYPROJECT), source]
    done = subprocess.run(
        words, env=surroundings, capture_output=True, timeout=_SECONDS, check=True
    )
    listed = json.loads(done.stdout)
    listed["metadata"]["component"]["version"] = version  # pyproject.toml does not have it
    target.write_text(json.dumps(listed, indent=2, sort_keys=True) + "\n", "utf-8")


def closure(root: Distribution) -> Iterator[Distribution]:
    """What `pip install` brings beside the root."""
    found: dict[str, Distribution] = {}
    waiting = _needed(root, [""])
    for name, extras in waiting:  # grows in the loop
        if name not in found:
            found[name] = distribution(name)
            yield found[name]
        more = _needed(found[name], ["", *extras])
        waiting += [each for each in more if each not in waiting]


def _needed(package: Distribution, extras: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Name and extras of each requirement that holds on this machine."""
    return [
        (canonicalize_name(each.name), tuple(sorted(each.extras)))
        for each in map(Requirement, package.requires or ())
        if each.marker is None or any(each.marker.evaluate({"extra": one}) for one in extras)
    ]


def _copy_metadata(package: Distribution, packages: Path) -> None:
    """Only what describes the package; a record of how it came here stays here."""
    folder = packages / f"{package.name}-{package.version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(package.read_text("METADATA") or "", "utf-8")
