# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/workloads, typed: all their commands, in their order, as one script.

helm, kubectl and mwatch are the real ones, against an API server. What needs a node, an image or
hours is only looked at: that the object is there which it names, or the file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from cluster.control_plane import ControlPlane
from support.repository.chart_renders import CHARTS, helm

ROOT = CHARTS.parents[1]
FOLDER = ROOT / "docs" / "workloads"
_BLOCK = re.compile(r"(?ms)^```sh\n(.*?)^```")
_SECONDS = 600
_KUBECTL = """
case $1 in
wait | logs | port-forward | cp | rollout)
    for word; do
        case $word in
        job/* | pod/* | service/* | deployment/* | pytorchjob/*)
            "$REAL" get "$word" >/dev/null || exit 1
            ;;
        *:/*) "$REAL" get pod "${word%%:*}" >/dev/null || exit 1 ;;
        esac
    done
    echo "looked at: kubectl $*"
    ;;
create)
    "$REAL" "$@" || exit 1
    # As a controller would, which does not run here.
    [ "$2" != namespace ] || "$REAL" create serviceaccount default -n "$3" 2>/dev/null || true
    ;;
*) exec "$REAL" "$@" ;;
esac
"""
_DOCKER = """
echo "looked at: docker $*"
while [ $# -gt 0 ]; do
    case $1 in
    -f) file=$2; [ -r "$file" ] || exit 1 ;;
    --build-arg) names="$names ${2%%=*}" ;;
    esac
    shift
done
for name in $names; do grep -q "^ARG $name=" "$file" || exit 1; done
"""
_MWATCH = """
[ "$1" != top ] || set -- "$@" --count 1
"$REAL" -m mwatch "$@" </dev/null
code=$?
# 1 a finding, 3 it cannot be seen: there are no pods here. 2 would be a command that is wrong.
[ $code -le 1 ] || [ $code -eq 3 ]
"""


def script_of(page: str, namespace: str) -> str:
    """With a namespace of the test's own."""
    text = "".join(_BLOCK.findall((FOLDER / f"{page}.md").read_text("utf-8")))
    return re.sub(r"(namespace|-n) (hyperpod-)?training\b", rf"\1 {namespace}", text)


def type_all(plane: ControlPlane, page: str, namespace: str, folder: Path) -> str:
    """What was printed. AssertionError at the first command that fails."""
    (folder / "manifests").symlink_to(ROOT / "manifests")
    kubeconfig = folder / "kubeconfig"
    shutil.copy(plane.kubeconfig("admin"), kubeconfig)
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script_of(page, namespace)],
        cwd=folder,
        env={
            "PATH": f"{_programs(plane, folder)}:{os.environ['PATH']}",
            "HOME": str(folder),
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("sidecar", "trainer")),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def _programs(plane: ControlPlane, folder: Path) -> Path:
    found = folder / "bin"
    found.mkdir()
    (found / "helm").symlink_to(str(helm()))
    for name, real, body in (
        ("kubectl", plane.kubectl.program, _KUBECTL),
        ("docker", "none", _DOCKER),
        ("mwatch", sys.executable, _MWATCH),
    ):
        (found / name).write_text(f"#!/bin/sh\nREAL={real}\n{body}")
        (found / name).chmod(0o755)
    return found
