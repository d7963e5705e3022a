# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Charts, rendered by the real helm: the one on PATH, or the one that `make test` builds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from support.debian_tools import user_cache

CHARTS = Path(__file__).resolve().parents[3] / "manifests" / "charts"
MEGATRON = CHARTS / "megatron-training"
KUBERNETES = "1.34.4"
"""The charts look at the version; a helm built from modules has none of its own to tell."""
NO_HELM = "there is no helm: put one on PATH, or install Go and let `make test` build it"
_SECONDS = 60
_SENTENCE = re.compile(r"execution error at \([^)]*\): (.*)")


class Refused(ValueError):
    """With the sentence that the chart says."""


@cache
def helm() -> Path | None:
    """None where there is none, and nobody asked for one to be built (some minutes)."""
    found = shutil.which("helm")
    if found is not None:
        return Path(found)
    if os.environ.get("MWATCH_CLUSTER_TESTS"):
        from cluster import binaries

        return binaries.helm()
    built = sorted((user_cache().parent / "cluster").glob("helm-*/helm"))
    return built[-1] if built else None


def rendered(
    chart: Path, *words: str, name: str = "gpt", namespace: str = "training"
) -> list[dict[str, Any]]:
    """The objects. Refused where the chart says no."""
    return objects_in(rendered_text(chart, *words, name=name, namespace=namespace))


def objects_in(text: str) -> list[dict[str, Any]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [each for each in yaml.load_all(text, loader) if each is not None]


@cache
def rendered_text(chart: Path, *words: str, name: str = "gpt", namespace: str = "training") -> str:
    """Once for the same words: helm takes a quarter of a second."""
    program = helm()
    assert program is not None, NO_HELM
    command = [str(program), "template", name, str(chart), "--namespace", namespace]
    done = subprocess.run(
        [*command, *(() if "--kube-version" in words else ("--kube-version", KUBERNETES)), *words],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        # A render is over before collecting garbage could pay.
        env={**os.environ, "HELM_CACHE_HOME": "/nonexistent", "GOGC": "off"},
    )
    if done.returncode:
        sentence = _SENTENCE.search(done.stderr)
        raise Refused(sentence.group(1) if sentence else done.stderr.strip())
    return done.stdout


def sets(*pairs: str) -> list[str]:
    """Words of the command line for `key=value`; JSON where the value looks like it."""
    found = []
    for each in pairs:
        flag = "--set-json" if re.search(r"=[\[{]", each) else "--set"
        found += [flag, each]
    return found


def values_file(platform: str, chart: Path = MEGATRON) -> list[str]:
    """Words for the file of a platform; none for `generic`."""
    return [] if platform == "generic" else ["-f", str(chart / f"values-{platform}.yaml")]


def only(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def pods(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod templates of a PyTorchJob."""
    return [each["template"] for each in job["spec"]["pytorchReplicaSpecs"].values()]


def trainer(job: dict[str, Any]) -> dict[str, Any]:
    (found,) = [each for each in pods(job)[0]["spec"]["containers"] if each["name"] == "pytorch"]
    return dict(found)


def arguments(job: dict[str, Any]) -> list[str]:
    """Of the script, the script first."""
    return [str(each) for each in trainer(job)["args"]]
