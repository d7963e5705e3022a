# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the image is made of: the lock files fit pyproject.toml, and a vulnerability is found.

The image itself is built, installed and injected by `make test-cluster`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from release import image
from release.image import LOCKS, ImageError, ImageTools, installed_tools, sources_key
from release.sbom import locked_versions

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS = ("data", "notify", "otlp")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_file_has_hashes_of_every_package(lock: Path) -> None:
    lines = [line.strip() for line in lock.read_text("utf-8").splitlines()]
    lines = [line for line in lines if not line.startswith("#")]
    packages = [line for line in lines if not line.startswith("--hash=sha256:")]
    assert packages and all(line.endswith("\\") and "==" in line for line in packages)
    assert len(lines) >= 2 * len(packages)


def test_the_lock_files_fit_what_the_package_and_its_extras_in_the_image_need() -> None:
    """After a change of pyproject.toml: make lock."""
    known = PROJECT["project"]
    extras = [each for name in EXTRAS for each in known["optional-dependencies"][name]]
    needed = {LOCKS[0]: [*known["dependencies"], *extras]}
    needed[LOCKS[1]] = PROJECT["build-system"]["requires"]
    for lock, requirements in needed.items():
        versions = locked_versions(lock)
        for each in map(Requirement, requirements):
            assert versions[canonicalize_name(each.name)] in each.specifier, f"make lock: {each}"
    assert not locked_versions(LOCKS[0]).keys() & {"torch", "pytest", "pip", "setuptools"}
    assert all(f"--extra {name}" in (ROOT / "Makefile").read_text("utf-8") for name in EXTRAS)


AUDITS = {
    "clean": ('{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}', 0, 0, "no known"),
    "vulnerable": (
        '{"dependencies": [{"name": "a", "version": "1", "vulns": '
        '[{"id": "CVE-1", "fix_versions": ["2"]}]}]}',
        1,
        1,
        "a 1: CVE-1; fixed in 2: make lock",
    ),
    "out of reach": ("", 1, 0, "not audited: the service did not answer"),
}


@pytest.mark.parametrize("name", AUDITS)
def test_a_known_vulnerability_fails_the_audit_and_a_service_out_of_reach_does_not(
    name: str, tmp_path: Path
) -> None:
    output, code, wanted, text = AUDITS[name]
    program = tmp_path / "pip-audit"
    error = "" if output else "echo 'the service did not answer' >&2"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n{error}\nexit {code}\n")
    program.chmod(0o755)
    words = [sys.executable, "-m", "release.audit", str(program)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == wanted, done.stderr
    assert text in done.stdout + done.stderr


def test_without_its_tools_the_image_names_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="apt-get install buildah mmdebstrap"):
        installed_tools({}, search_path=str(tmp_path))


def test_an_image_is_built_anew_when_a_source_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sources_key()
    assert re.fullmatch("[0-9a-f]{12}", before) and sources_key() == before
    real = Path.read_bytes

    def other(path: Path) -> bytes:
        return real(path) + (b"\n" if path.name == "sidecar_process.py" else b"")

    monkeypatch.setattr(Path, "read_bytes", other)
    assert sources_key() != before


def test_an_unpacked_mmdebstrap_finds_the_other_program_of_its_package(tmp_path: Path) -> None:
    programs = {
        "mmdebstrap": 'for target; do :; done\nmmtarfilter > "$target"',
        "mmtarfilter": "echo it",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o700)
    tools = ImageTools(Path("/none"), tmp_path / "mmdebstrap", {"PATH": "/usr/bin:/bin"})
    image._make_base(tmp_path / "base.tar", tools, 0)
    assert (tmp_path / "base.tar").read_text() == "it\n"
