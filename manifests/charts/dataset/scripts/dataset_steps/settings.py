# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the chart asks for: one JSON file that its template writes."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from dataset_steps.problem import Settled


class Retry(NamedTuple):
    attempts: int = 8
    first_seconds: float = 2.0
    most_seconds: float = 300.0
    read_seconds: float = 60.0
    """Without a byte: the connection is dead."""


class Settings(NamedTuple):
    source: str
    name: str
    """Of the folder, and of the files in it."""
    root: str
    """Where the claim is mounted."""
    files: list[dict[str, Any]]
    """Where it comes from: {hub, folders, ending} or {url} or {path}."""
    sample: int
    """How many files; 0: all."""
    per_output: int
    endpoint: str
    revision: str
    tokenizer: dict[str, str]
    preprocess: dict[str, Any]
    mds: dict[str, Any]
    workers: int
    keep: bool
    """Of what lies between the first and the last step."""
    retry: Retry
    pod: int = 0
    pods: int = 1
    token: str = ""

    @property
    def folder(self) -> str:
        return os.path.join(self.root, self.name)

    @property
    def tokenizing(self) -> dict[str, Any]:
        """What changes the tokens of a text, and not how they are made."""
        kept = ("tokenizerType", "tokenizerModel", "jsonKey", "appendEod")
        return {**{key: self.preprocess.get(key) for key in kept}, "files": self.tokenizer}

    @property
    def state(self) -> str:
        return os.path.join(self.folder, ".state")


def read_settings(path: str) -> Settings:
    """Settled where the file is not what the chart writes."""
    try:
        with open(path, encoding="utf-8") as file:
            given = json.load(file)
        return _settings(given)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Settled(f"{path}: no settings ({error!r}); was it written by the chart?") from None


def _settings(given: dict[str, Any]) -> Settings:
    retry = given.get("retry", {})
    return Settings(
        source=str(given["source"]),
        name=str(given.get("name") or given["source"]),
        root=str(given["root"]),
        files=list(given.get("files") or []),
        sample=int(given.get("sample") or 0),
        per_output=max(1, int(given.get("perOutput") or 1)),
        endpoint=str(given.get("endpoint") or "").rstrip("/"),
        revision=str(given.get("revision") or "main"),
        tokenizer=dict(given.get("tokenizer") or {}),
        preprocess=dict(given.get("preprocess") or {}),
        mds=dict(given.get("mds") or {}),
        workers=max(1, int(given.get("workers") or 4)),
        keep=bool(given.get("keepIntermediate")),
        retry=Retry(
            max(1, int(retry.get("attempts", 8))),
            float(retry.get("firstWaitSeconds", 2)),
            float(retry.get("maxWaitSeconds", 300)),
            float(retry.get("readTimeoutSeconds", 60)),
        ),
        # Of an Indexed Job; one pod has all of the work.
        pod=int(os.environ.get("JOB_COMPLETION_INDEX") or 0),
        pods=max(1, int(given.get("parallelism") or 1)),
        token=os.environ.get("HF_TOKEN", "").strip(),
    )
