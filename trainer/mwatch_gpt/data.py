# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m mwatch_gpt.data --input FILE --output-prefix PREFIX`: text into an indexed dataset.

Writes `PREFIX_text_document.bin` and `.idx`, Megatron's own format, one token a byte. The input is
JSON lines (`--json-keys` names the field) or plain text, where each line is a document; without
`--input` it is the small text that comes with this package. Exit codes: 0 done, 2 bad input.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mwatch_gpt.tokens import tokenize

SAMPLE = Path(__file__).with_name("sample.txt")
SUFFIX = "_text_document"


class BadInput(ValueError):
    """What is wrong with the input, for the user."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mwatch_gpt.data",
        description="Makes an indexed dataset (.bin and .idx) for mwatch_gpt out of text.",
        epilog="Example: python -m mwatch_gpt.data --input corpus.jsonl --output-prefix corpus",
    )
    parser.add_argument("--input", help="JSON lines, or plain text (default: a text of ours)")
    parser.add_argument("--json-keys", default="text", help="field of the text (default: text)")
    parser.add_argument("--output-prefix", required=True, help="path without an ending")
    args = parser.parse_args(argv)
    source = Path(args.input) if args.input else SAMPLE
    prefix = args.output_prefix + SUFFIX
    from mwatch_gpt import device

    device.prepare()
    try:
        documents, tokens = build(read(source, args.json_keys), prefix)
    except (BadInput, OSError) as error:
        print(f"mwatch_gpt.data: {error}", file=sys.stderr)
        return 2
    print(f"{documents} documents, {tokens} tokens: train with --data-path {prefix}")
    return 0


def read(source: Path, key: str) -> Iterator[str]:
    """The documents in `source`. Raises BadInput."""
    is_json = source.suffix in {".json", ".jsonl"}
    with source.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _text_of(line, key, f"{source}:{number}") if is_json else line.rstrip("\n")


def _text_of(line: str, key: str, where: str) -> str:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise BadInput(f"{where}: not a JSON object") from None
    text = document.get(key) if isinstance(document, dict) else None
    if not isinstance(text, str):
        raise BadInput(f"{where}: no text under {key!r}")
    return text


def build(documents: Iterable[str], prefix: str) -> tuple[int, int]:
    """Writes the dataset; both files appear only when they are whole."""
    import numpy
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    Path(prefix).absolute().parent.mkdir(parents=True, exist_ok=True)
    parts = {ending: f"{prefix}.{os.getpid()}.tmp{ending}" for ending in (".bin", ".idx")}
    count = tokens = 0
    try:
        builder = IndexedDatasetBuilder(parts[".bin"], dtype=numpy.uint16)
        for text in documents:
            sequence = tokenize(text)
            builder.add_document(sequence, [len(sequence)])
            count, tokens = count + 1, tokens + len(sequence)
        if not count:
            raise BadInput("the input has no text")
        builder.finalize(parts[".idx"])
        for ending, part in parts.items():
            os.replace(part, prefix + ending)
    finally:
        for part in parts.values():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
    return count, tokens


if __name__ == "__main__":
    sys.exit(main())
