# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The dataset chart's own steps, run as the Job's containers run them.

Each is a process of its own. All but the one that `start` gives are forked from a process that has
loaded the steps: the tests run hundreds.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from support.forked import ForkServer, Program

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "manifests/charts/dataset/scripts"
STEPS = ("download", "extract", "concatenate", "preprocess", "count")
REPO = "cerebras/SlimPajama-627B"
_SECONDS = 60

# Writes what Megatron's tool would: one token a byte, in its own format.
FAKE_TOOL = """
import argparse, json, struct
p = argparse.ArgumentParser()
for name in ("--input", "--output-prefix", "--json-keys", "--workers", "--tokenizer-type",
             "--vocab-file", "--merge-file"):
    p.add_argument(name, required=True)
p.add_argument("--append-eod", action="store_true")
a = p.parse_args()
open(a.vocab_file).close(), open(a.merge_file).close()
lengths, data = [], b""
for line in open(a.input, encoding="utf-8"):
    body = json.loads(line)[a.json_keys].encode() + (b"\\0" if a.append_eod else b"")
    data += body
    lengths.append(len(body))
FAULT
prefix = a.output_prefix + "_text_document"
open(prefix + ".bin", "wb").write(data)
with open(prefix + ".idx", "wb") as out:
    out.write(b"MMIDIDX\\0\\0" + struct.pack("<QBQQ", 1, 1, len(lengths), len(lengths) + 1))
    out.write(struct.pack(f"<{len(lengths)}i", *lengths))
    starts = [sum(lengths[:n]) for n in range(len(lengths))]
    out.write(struct.pack(f"<{len(lengths)}q", *starts))
    out.write(struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1)))
"""


class Ran(NamedTuple):
    code: int
    said: str


class Dataset:
    """A claim (a folder) and the settings that the chart would write."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.root = folder / "data"
        self.root.mkdir(parents=True, exist_ok=True)
        self.file = folder / "settings.json"
        self.megatron = folder / "megatron"
        self.tool()
        retry = {"attempts": 4, "firstWaitSeconds": 0.01, "maxWaitSeconds": 0.05}
        self.settings: dict[str, Any] = {
            "source": "slimpajama",
            "root": str(self.root),
            "perOutput": 2,
            "retry": {**retry, "readTimeoutSeconds": 5},
            "workers": 2,
            "keepIntermediate": True,
            "preprocess": {
                "engine": "megatron",
                "megatronPath": str(self.megatron),
                "workers": 1,
                "tokenizerType": "GPT2BPETokenizer",
            },
            **settings,
        }

    @property
    def folder(self) -> Path:
        return self.root / str(self.settings["source"])

    def tool(self, fault: str = "") -> None:
        path = self.megatron / "tools" / "preprocess_data.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FAKE_TOOL.replace("FAULT", fault))

    def step(self, name: str, *, pod: int = 0, token: str = "") -> Ran:
        words, environment = self._command(name, pod, token)
        program = Program(__name__, _step.__name__, words, str(Path.cwd()), environment)
        with tempfile.TemporaryFile() as out, open(os.devnull, "rb") as nothing:
            files = [nothing.fileno(), out.fileno(), out.fileno()]
            code = _server().start(program, files).ends(_SECONDS)
            out.seek(0)
            return Ran(code, out.read().decode())

    def start(
        self, name: str, *, pod: int = 0, token: str = "", site: Path | None = None
    ) -> subprocess.Popen[str]:
        """`site`: a folder whose `sitecustomize.py` each of its Pythons runs first."""
        words, environment = self._command(name, pod, token)
        if site is not None:
            environment["PYTHONPATH"] = f"{site}:{environment['PYTHONPATH']}"
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _command(self, name: str, pod: int, token: str) -> tuple[list[str], dict[str, str]]:
        """The words after `python -m`, and the environment."""
        self.file.write_text(json.dumps(self.settings))
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{SCRIPTS}:{ROOT / 'trainer'}"}
        environment |= {"JOB_COMPLETION_INDEX": str(pod), "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {"HF_TOKEN": token} if token else {}
        return ["dataset_steps", name, str(self.file)], environment

    def all_steps(self, *, pod: int = 0, steps: tuple[str, ...] = STEPS) -> Ran:
        """One after the other, as init containers are; the first that fails is the last."""
        said = ""
        for name in steps:
            ran = self.step(name, pod=pod)
            said += ran.said
            if ran.code:
                return Ran(ran.code, said)
        return Ran(0, said)


@lru_cache(maxsize=1)
def _server() -> ForkServer:
    return ForkServer(f"{__name__}:{_load.__name__}", [SCRIPTS, ROOT / "trainer", ROOT / "tests"])


def _load() -> Any:
    return importlib.import_module("dataset_steps.__main__")


def _step() -> Any:
    return _load().main(sys.argv[1:])


def hub_spec() -> dict[str, Any]:
    return {"hub": REPO, "folders": ["train/chunk1"], "ending": ".jsonl.xz"}


def lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": each}).encode() + b"\n" for each in texts)


def archive(members: dict[str, bytes]) -> bytes:
    """A .tar.xz."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:xz") as out:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            out.addfile(entry, io.BytesIO(content))
    return body.getvalue()
