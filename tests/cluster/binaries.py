# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of a cluster, built from the Go module proxy into the user's cache.

The whole of Kubernetes is one program that runs the component it is called as, so that what the
components share is compiled and kept once. Nothing is downloaded that is not a Go module.
`cluster.programs` says which tests need which program.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from support.debian_tools import locked, user_cache

VERSION = "1.34.4"
OPERATOR = "1.8.1"
OLD_OPERATOR = "1.7.0"
"""Of HyperPod: it knows no native sidecars."""
OPERATOR_MODULE = "github.com/kubeflow/training-operator"
MODULES = (
    (OPERATOR_MODULE, OLD_OPERATOR),
    (OPERATOR_MODULE, OPERATOR),
    (OPERATOR_MODULE, "1.9.2"),
    ("sigs.k8s.io/jobset", "0.10.1"),
    ("github.com/kubeflow/trainer/v2", "2.1.0"),
    ("sigs.k8s.io/kueue", "0.14.0"),
    ("github.com/prometheus-operator/prometheus-operator", "0.85.0"),
)
"""Whose CRDs and manifests the tests use."""
_SOURCE = Path(__file__).parent / "kube"
_COMPONENTS = (
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet",
    "kubectl", "coredns",
)  # fmt: skip
_BUILD_SECONDS = 3600.0
_TRIES = 3
_NEWS_SECONDS = 30.0
_GO = (1, 25)


class GoMissing(RuntimeError):
    """There is no Go, or one that is too old; the message names the fix."""


def kubernetes() -> Path:
    """Folder with every component of Kubernetes, kubectl and CoreDNS."""
    return built("kubernetes", kubernetes_key(), _build_kubernetes)


def helm() -> Path:
    """Alone, as the tests of the charts need nothing else of a cluster."""

    def build(folder: Path) -> None:
        _build_of_source(folder, "helm.sh/helm/v3/cmd/helm")

    return built("helm", kubernetes_key(), build) / "helm"


def training_operator(version: str = OPERATOR) -> Path:
    """Kubeflow's operator for PyTorchJob, as one file."""
    package = f"{OPERATOR_MODULE}/cmd/training-operator.v1"

    def build(folder: Path) -> None:
        _go(["install", "-trimpath", "-ldflags", "-s -w", f"{package}@v{version}"], folder, folder)

    folder = built("training-operator", version, build)
    return folder / "training-operator.v1"


def program_of(name: str, module: str, version: str, package: str) -> Path:
    """A program of a module that the proxy does not list, so that it cannot be installed by name
    and version."""

    def build(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as work:
            source = Path(work)
            wants = f"module {name}\ngo 1.24\nrequire {module} v{version}\n"
            (source / "go.mod").write_text(wants)
            (source / "main.go").write_text("package main\n\nfunc main() {}\n")
            uses = f'//go:build tools\n\npackage main\n\nimport _ "{package}"\n'
            (source / "tools.go").write_text(uses)
            _tidy(folder, source)
            words = ["build", "-trimpath", "-ldflags", "-s -w", "-o", str(folder / name)]
            _go([*words, package], folder, source)

    return built(name, version, build) / name


def fetch_modules() -> None:
    """Before the tests leave the network for that of their cluster."""
    for module, version in MODULES:
        module_folder(module, version)


@cache
def module_folder(module: str, version: str) -> Path:
    """Where the sources of a Go module lie: its CRDs and manifests are among them."""
    done = subprocess.run(
        [go_program(), "mod", "download", "-json", f"{module}@v{version}"],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
        cwd="/",
    )
    line = next(each for each in done.stdout.splitlines() if '"Dir"' in each)
    return Path(line.split('"')[3])


def kubernetes_key() -> str:
    digest = hashlib.sha256(VERSION.encode())
    for path in sorted(_SOURCE.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _build_kubernetes(folder: Path) -> None:
    _build_of_source(folder, ".")
    for name in _COMPONENTS:
        (folder / name).symlink_to("kube")


def _build_of_source(folder: Path, package: str) -> None:
    major, minor, _ = VERSION.split(".")
    stamp = "k8s.io/component-base/version"
    named = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    flags = " ".join(f"-X {stamp}.{name}={value}" for name, value in named.items())
    with tempfile.TemporaryDirectory() as work:
        source = Path(work) / "kube"
        shutil.copytree(_SOURCE, source)
        _tidy(folder, source)
        words = ["build", "-trimpath", "-ldflags", f"-s -w {flags}", "-o", f"{folder}/"]
        _go([*words, package], folder, source)


def home() -> Path:
    """Of what was built, one folder each."""
    return user_cache().parent / "cluster"


def built(what: str, key: str, build: Callable[[Path], None], how: str = "from Go modules") -> Path:
    """Built aside, then renamed: the folder is whole or not there."""
    folder = home() / f"{what}-{key}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{what}.lock"), _BUILD_SECONDS):
        if not folder.is_dir():
            print(f"mwatch: building {folder.name} {how}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".build-") as aside:
                target = Path(aside) / "bin"
                target.mkdir()
                build(target)
                target.rename(folder)
    return folder


def _tidy(folder: Path, work: Path) -> None:
    """Fetch the modules. A proxy may cut a connection; what was fetched before that is kept."""
    for left in reversed(range(_TRIES)):
        try:
            _go(["mod", "tidy"], folder, work)
            return
        except RuntimeError as error:
            if not left:
                raise
            reason = str(error).splitlines()[-1]
            print(
                f"mwatch: go mod failed and is tried again: {reason}", file=sys.stderr, flush=True
            )


def _go(words: Sequence[str], folder: Path, work: Path) -> None:
    """With a line now and then for who waits; its own output only when it fails."""
    # Without the C library: these programs also run in images that have none.
    environment = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(folder)}
    with tempfile.TemporaryFile() as output:
        began = time.monotonic()
        child = subprocess.Popen(
            ["nice", go_program(), *words],  # tests may run beside it
            cwd=work,
            env=environment,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
        )
        while True:
            try:
                code = child.wait(_NEWS_SECONDS)
                break
            except subprocess.TimeoutExpired:
                seconds = time.monotonic() - began
                print(f"mwatch: go {words[0]}, {seconds:.0f} s", file=sys.stderr, flush=True)
                if seconds > _BUILD_SECONDS:
                    child.kill()
            except BaseException:
                child.kill()
                child.wait()
                raise
        if code:
            output.seek(0)
            tail = output.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"go {words[0]} ended with {code}:\n{tail}")


def go_program() -> str:
    found = shutil.which("go")
    if found is None:
        raise GoMissing(f"no Go: install Go {_GO[0]}.{_GO[1]} or newer and put it on PATH")
    said = subprocess.run(
        [found, "env", "GOVERSION"], capture_output=True, text=True, timeout=20, cwd="/"
    ).stdout.strip()
    numbers = tuple(int(each) for each in said.removeprefix("go").split(".")[:2] if each.isdigit())
    if numbers < _GO:
        raise GoMissing(f"{found} is {said or 'unknown'}: install Go {_GO[0]}.{_GO[1]} or newer")
    return found


def main() -> int:
    """`python -m cluster.binaries`: build helm where there is none, before the tests of the charts
    ask for it."""
    try:
        if shutil.which("helm") is None:
            helm()
    except (GoMissing, RuntimeError, OSError) as error:
        print(f"mwatch: the tests of the charts are skipped: no helm on PATH, {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
