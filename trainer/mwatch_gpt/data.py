# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m mwatch_gpt.data`: text into Megatron's indexed datasets, checks of them, and blends.

Writes `PREFIX_KEY_document.bin` and `.idx`, byte for byte what Megatron-LM's preprocess_data.py
writes of the same input. Exit codes: 0 done, 1 a check found something, 2 bad input, 3 the
machine's doing (a full disk, a killed worker): the same command goes on when that is mended.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mwatch_gpt import blend, data_arguments, index_file
from mwatch_gpt.bad_input import BadInput, Disturbed
from mwatch_gpt.conversion import Job, convert
from mwatch_gpt.corpus import Place, blocks
from mwatch_gpt.data_progress import Screen
from mwatch_gpt.dataset_writer import DatasetWriter
from mwatch_gpt.encoding import Encoded, Encoder, Wanted
from mwatch_gpt.tokenizer_files import Choice
from mwatch_gpt.unfinished import Sizes

SAMPLE = Path(__file__).with_name("sample.txt")
SUFFIX = "_text_document"

__all__ = ["SAMPLE", "SUFFIX", "BadInput", "build", "main", "read"]


def main(argv: Sequence[str] | None = None) -> int:
    args = data_arguments.parse(argv, str(SAMPLE))
    try:
        if args.check:
            return _check(args.prefixes, args.vocab_size)
        if args.blend:
            return _blend(Path(args.blend), args.prefixes)
        return _convert(data_arguments.job(args))
    except BadInput as error:
        print(f"mwatch_gpt.data: {error}", file=sys.stderr)
        return 2
    except (Disturbed, OSError, MemoryError) as error:
        text = str(error) or "there is not enough memory"
        print(f"mwatch_gpt.data: {text}; the same command goes on from here", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("mwatch_gpt.data: stopped; the same command goes on from here", file=sys.stderr)
        return 130


def _convert(job: Job) -> int:
    screen = Screen(job.inputs)
    told = convert(job, screen.show)
    if told.was_done:
        print("already made of this input with these settings")
    elif told.resumed_at is not None:
        place = told.resumed_at
        print(f"went on at {job.inputs[place.file]}:{place.line}")
    if told.state.left_out:
        print(f"{told.state.left_out} bad lines left out")
    found = f"{told.state.documents} documents, {told.state.tokens} tokens"
    print(f"{found}: train with --data-path {' '.join(job.prefixes)}")
    return 0


def _check(prefixes: Sequence[str], vocabulary: int | None) -> int:
    is_bad = False
    for name in prefixes:
        prefix = name.removesuffix(".bin").removesuffix(".idx")
        found = index_file.check(prefix, vocabulary)
        for problem in found.problems:
            print(problem)
        is_bad = is_bad or bool(found.problems)
        if not found.problems:
            counts = f"{found.documents} documents, {found.sequences} sequences"
            print(f"{prefix}: whole: {counts}, {found.tokens} tokens")
    return int(is_bad)


def _blend(path: Path, names: Sequence[str]) -> int:
    found = blend.shares(names)
    blend.write(path, found)
    for each in found:
        print(f"{each.weight:.9g} {each.prefix} ({each.tokens} tokens)")
    print(f"train with --data-args-path {path}")
    return 0


def read(source: Path, key: str) -> Iterator[str]:
    """The documents in `source`, of which a list of texts is one. Raises BadInput."""
    from mwatch_gpt.encoding import documents

    for block in blocks([str(source)], Place()):
        yield from documents(block, key)


def build(texts: Iterable[str], prefix: str) -> tuple[int, int]:
    """A small dataset of bytes at once; both files appear only when they are whole."""
    wanted = Wanted(Choice())
    encoder = Encoder(wanted)
    writer = DatasetWriter(prefix, "H")
    count = tokens = 0
    try:
        writer.open(Sizes())
        for text in texts:
            encoded: Encoded = encoder.document([text])
            writer.add(encoded)
            count, tokens = count + 1, tokens + len(encoded.tokens) // 2
        if not count:
            raise BadInput("the input has no text")
        writer.sync()
        writer.finish()
    finally:
        writer.close()
        writer.clear()
    return count, tokens


if __name__ == "__main__":
    sys.exit(main())
