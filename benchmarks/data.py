# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How fast text becomes Megatron's datasets: `python -m mwatch_gpt.data`, against Megatron's way.

The text is the source code of this Python's own library, a document a file: it has more rare words
than prose, and rare words are what costs. Both sides get the same vocabulary, learnt from it, and
their files must be equal. Both run in one process, so that what is measured is the work.
"""

from __future__ import annotations

import json
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import ChildFailed, python, run
from benchmarks.row import Row
from benchmarks.ten_fields import Disagreement

_END = "<|endoftext|>"
_VOCABULARY = 16_000
_LEARNT_BYTES = 3_000_000
_ENDINGS = ("bin", "idx")
_TURNS = 2
"""The other side loads torch each time, which takes longer than the work."""
TARGET = 1.5


def row(size: int) -> Row:
    """Of about `size` bytes of text."""
    with tempfile.TemporaryDirectory(prefix="mwatch-data-") as name:
        folder = Path(name)
        texts = list(_texts(size))
        _learn(folder, texts)
        _write(folder / "all.jsonl", texts)
        _write(folder / "one.jsonl", ["x"])
        ours = _seconds(folder, "ours")
        theirs = _seconds(folder, "theirs")
        for ending in _ENDINGS:
            files = [folder / f"all-{side}_text_document.{ending}" for side in ("ours", "theirs")]
            if files[0].read_bytes() != files[1].read_bytes():
                raise Disagreement(f"data: two different .{ending} of the same text")
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
    return Row(
        "data",
        f"{megabytes / ours:.1f} MB/s",
        f"{megabytes / theirs:.1f} MB/s",
        ratio=theirs / ours,
        target=f"{TARGET} x",
        met=theirs / ours >= TARGET,
        note=f"best of {_TURNS}, {megabytes:.0f} MB; other: tokenizers and IndexedDatasetBuilder",
    )


def _texts(size: int) -> Iterator[str]:
    folder, left = Path(sysconfig.get_path("stdlib")), size
    for path in sorted(folder.glob("**/*.py")):
        if "site-packages" in path.parts or left <= 0:
            continue
        text = path.read_text("utf-8", errors="ignore")
        if text:
            left -= len(text)
            yield text


def _learn(folder: Path, texts: list[str]) -> None:
    """A vocabulary and merges of GPT-2's kind."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    learner = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel
    learner.pre_tokenizer = level(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[_END],
        initial_alphabet=level.alphabet(),
        show_progress=False,
    )
    few = max(1, len(texts) * _LEARNT_BYTES // max(1, sum(map(len, texts))))
    learner.train_from_iterator(texts[:few], trainer)
    learner.model.save(str(folder))


def _write(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")


def _seconds(folder: Path, side: str) -> float:
    """Of CPU, without the start."""
    return _cost(folder, side, "all") - _cost(folder, side, "one")


def _cost(folder: Path, side: str, name: str) -> float:
    files = [str(folder / each) for each in (f"{name}.jsonl", "vocab.json", "merges.txt")]
    prefix = str(folder / f"{name}-{side}")
    if side == "ours":
        words = ["-m", "mwatch_gpt.data", "--tokenizer-type", "GPT2BPETokenizer", "--append-eod"]
        words += ["--input", files[0], "--vocab-file", files[1], "--merge-file", files[2]]
        words += ["--output-prefix", prefix, "--workers", "1"]
    else:
        words = ["-m", "benchmarks.data_peer", *files, prefix]
    costs = []
    for _ in range(_TURNS):
        for path in folder.glob(f"{name}-{side}*"):
            path.unlink()
        costs.append(run(python(*words)).cpu_seconds)
    if not Path(f"{prefix}_text_document.idx").exists():
        raise ChildFailed(f"{' '.join(words)} wrote nothing")
    return min(costs)
