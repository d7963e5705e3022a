# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The container image, built without a registry: `manifests/docker/mwatch.Dockerfile` by buildah.

The base is a Debian that mmdebstrap makes. The wheels are downloaded here, by the lock files: the
settings of pip on this machine count, and the build itself needs no network.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import mwatch

ROOT = Path(__file__).resolve().parents[1]
NAME = f"localhost/mwatch:{mwatch.__version__}"
"""The name of the image in its archive."""
SUITE = "bookworm"
PYTHON = "3.11"
"""Of that Debian."""
RECIPE = ROOT / "manifests/docker/mwatch.Dockerfile"
LOCKS = (ROOT / "manifests/docker/requirements.lock", ROOT / "manifests/docker/build.lock")
# hyperscan is linked with libstdc++; maintenance windows have time zones.
_PACKAGES = "python3,python3-venv,ca-certificates,libstdc++6,tzdata"
_WITHOUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_BASE = "localhost/debian-python:latest"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_COPY = re.compile(r"^COPY (?!--)(.+) \S+$", re.MULTILINE)
_LEFT_OUT = re.compile(r"__pycache__|\.egg-info")
_SECONDS = 900.0
"""For each step, on a busy machine."""
_POLICY = '{"default": [{"type": "insecureAcceptAnything"}]}'
"""Nothing is pulled; without a policy buildah refuses to commit."""


class ImageTools(NamedTuple):
    buildah: Path
    mmdebstrap: Path
    environment: Mapping[str, str]


class ImageError(OSError):
    """A step failed; the message has its last lines."""


def installed_tools(
    environment: Mapping[str, str], *, search_path: str | None = None
) -> ImageTools:
    """ImageError names what is missing and the fix. `search_path` stands for PATH."""
    tools = ("buildah", "mmdebstrap")
    found = {name: shutil.which(name, path=search_path) for name in tools}
    if missing := [name for name, path in found.items() if path is None]:
        names = " and ".join(missing)
        raise ImageError(f"the image needs {names}: apt-get install {' '.join(missing)}")
    return ImageTools(Path(str(found["buildah"])), Path(str(found["mmdebstrap"])), environment)


def file_name() -> str:
    machine = platform.machine()
    return f"mwatch-image-{mwatch.__version__}-{_MACHINES.get(machine, machine)}.tar"


def sources_key() -> str:
    """Of all that the image is made of, but the packages of Debian."""
    digest = hashlib.sha256(f"{SUITE} {_PACKAGES} {PYTHON}".encode())
    for path in (Path(__file__), RECIPE, *_copied()):
        digest.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _copied() -> Iterator[Path]:
    names = (name for words in _COPY.findall(RECIPE.read_text("utf-8")) for name in words.split())
    for top in (ROOT / name for name in names):
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and not _LEFT_OUT.search(str(path.relative_to(ROOT))):
                yield path


def build_image(target: Path, cache: Path, tools: ImageTools, epoch: int) -> None:
    """Write the archive (OCI). Base and wheels are kept in `cache`, and used again where they lie
    there. ImageError."""
    base = _kept(cache, f"base-{_key(SUITE, _PACKAGES, *_WITHOUT)}.tar")
    if not base.exists():
        _make_base(base, tools, epoch)
    wheels = _kept(cache, f"wheels-{_key(PYTHON, *(each.read_text('utf-8') for each in LOCKS))}")
    if not wheels.is_dir():
        _download_wheels(wheels, tools)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".image-", ignore_cleanup_errors=True) as at:
        folder = Path(at)
        (folder / "policy.json").write_text(_POLICY)
        buildah = _opened(folder, tools)
        buildah("add", "--quiet", "base", str(base), "/")
        buildah("commit", "--quiet", "--rm", "base", _BASE)
        buildah(
            "build", "--pull=never", "--isolation=chroot", f"--timestamp={epoch}",
            f"--volume={wheels}:/wheels:ro", f"--build-arg=PYTHON={_BASE}",
            "--build-arg=PIP_NO_INDEX=1", "--build-arg=PIP_FIND_LINKS=/wheels",
            f"--tag={NAME}", f"--file={RECIPE}", str(ROOT),
        )  # fmt: skip
        buildah("push", "--quiet", NAME, f"oci-archive:{folder / 'image.tar'}:{NAME}")
        shutil.move(folder / "image.tar", target)


class _Buildah:
    """With storage of its own, so that nothing is left on the machine."""

    def __init__(self, folder: Path, tools: ImageTools, driver: str) -> None:
        where = (f"--root={folder / driver}", f"--runroot={folder / driver}-run")
        self._words = [str(tools.buildah), f"--storage-driver={driver}", *where]
        self._policy = f"--signature-policy={folder / 'policy.json'}"
        self._environment = {**tools.environment, "TMPDIR": str(folder)}

    def __call__(self, command: str, *words: str) -> None:
        policy = [] if command == "add" else [self._policy]
        _run([*self._words, command, *policy, *words], self._environment)


def _opened(folder: Path, tools: ImageTools) -> _Buildah:
    """With an empty container `base`. vfs works everywhere, and copies all for each layer."""
    try:
        buildah = _Buildah(folder, tools, "overlay")
        buildah("from", "--name", "base", "scratch")
    except ImageError:
        buildah = _Buildah(folder, tools, "vfs")
        buildah("from", "--name", "base", "scratch")
    return buildah


def _make_base(target: Path, tools: ImageTools, epoch: int) -> None:
    half = target.with_suffix(".half")
    options = [f'--dpkgopt=path-exclude="{each}"' for each in _WITHOUT]
    words = ["--quiet", "--variant=essential", f"--include={_PACKAGES}", *options]
    # It calls a second program of its package by name, which is on no PATH if it was only unpacked.
    path = tools.environment.get("PATH", os.defpath)
    path = os.pathsep.join([str(tools.mmdebstrap.parent), path])
    environment = {**tools.environment, "PATH": path, "SOURCE_DATE_EPOCH": str(epoch)}
    _run([str(tools.mmdebstrap), *words, "--format=tar", SUITE, str(half)], environment)
    half.rename(target)


def _download_wheels(target: Path, tools: ImageTools) -> None:
    """Of the Python of the base, which need not be the one that runs here."""
    half = target.with_suffix(".half")
    shutil.rmtree(half, ignore_errors=True)
    for lock in LOCKS:
        words = ["download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        words += ["--require-hashes", "--only-binary=:all:", f"--python-version={PYTHON}"]
        words += ["--dest", str(half), "--requirement", str(lock)]
        _run([sys.executable, "-m", "pip", *words], tools.environment)
    half.rename(target)


def _kept(cache: Path, name: str) -> Path:
    """Where it is to lie; older ones of its kind are removed."""
    cache.mkdir(parents=True, exist_ok=True)
    for other in cache.glob(f"{name.partition('-')[0]}-*"):
        if other.name != name:
            shutil.rmtree(other) if other.is_dir() else other.unlink()
    return cache / name


def _key(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:12]


def _run(words: Sequence[str], environment: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", timeout=_SECONDS, cwd="/",
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ImageError(f"{words[0]} took longer than {_SECONDS:.0f} s") from error
    if done.returncode != 0:
        raise ImageError(f"{Path(words[0]).name} failed:\n{done.stdout[-4000:]}")
