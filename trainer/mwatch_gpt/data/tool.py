# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m mwatch_gpt.data`: convert text into Megatron's indexed datasets, check and blend them.

Writes `PREFIX_KEY_document.bin` and `.idx`, byte for byte what Megatron-LM's preprocess_data.py
writes for the same input. Exit codes: 0 done, 1 a check found a problem, 2 bad input, 3 a fault of
the machine (a full disk, a killed worker): once that is fixed, the same command continues.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from mwatch_gpt.data import index_file
from mwatch_gpt.data.conversion import SAVE_SECONDS, ConversionJob, convert
from mwatch_gpt.data.corpus import BadInput, Disturbed, LineStart, blocks
from mwatch_gpt.data.encoding import Encoded, Encoder, EncodingOptions, documents
from mwatch_gpt.data.tokenizers import BYTES, TYPES, TokenizerChoice
from mwatch_gpt.data.writer import ConversionState, DatasetWriter, Sizes

_EXAMPLES = """examples:
  python -m mwatch_gpt.data --input corpus.jsonl.zst --output-prefix data/corpus --append-eod \\
      --tokenizer-type GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt --workers 8
  python -m mwatch_gpt.data --check data/corpus_text_document --vocab-size 50257
  python -m mwatch_gpt.data --blend weights.txt data/a_text_document=0.7 data/b_text_document=0.3

Run the same command again to continue after an interruption. Sentences are not split: use
Megatron-LM's own tool for BERT and T5. Exit codes: 0 done, 1 --check found a problem, 2 bad input,
3 a fault of the machine (full disk, killed worker): run the same command again when that is
fixed.
"""


def parse(argv: Sequence[str] | None, sample: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m mwatch_gpt.data",
        description="Convert text to Megatron's indexed datasets (.bin and .idx).",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_conversion(parser, sample)
    _add_tokenizer(parser.add_argument_group("tokenizer"))
    others = parser.add_argument_group("existing datasets")
    others.add_argument("--check", action="store_true", help="check the datasets PREFIX ...")
    others.add_argument(
        "--vocab-size", type=_tokens, metavar="N", help="with --check: also check the tokens"
    )
    others.add_argument("--blend", metavar="FILE", help="write a blend of PREFIX[=WEIGHT] ...")
    others.add_argument("prefixes", nargs="*", metavar="PREFIX")
    args = parser.parse_args(argv)
    reads = bool(args.check or args.blend)
    if reads and not args.prefixes:
        parser.error("name one dataset or more: its path without .bin and .idx")
    if args.prefixes and not reads:
        parser.error(f"{args.prefixes[0]}: a PREFIX goes with --check or --blend")
    if args.vocab_size is not None and not args.check:
        parser.error("--vocab-size goes with --check")
    if not reads and not args.output_prefix:
        parser.error("--output-prefix is needed")
    return args


def _add_conversion(parser: argparse.ArgumentParser, sample: str) -> None:
    parser.add_argument(
        "--input",
        nargs="+",
        default=[sample],
        metavar="FILE",
        help="JSON lines or plain text, also .gz or .zst (default: the sample text)",
    )
    parser.add_argument(
        "--output-prefix", metavar="PATH", help="path of the dataset, without extension"
    )
    parser.add_argument(
        "--json-keys",
        nargs="+",
        default=["text"],
        metavar="KEY",
        help="fields to convert (default: text)",
    )
    parser.add_argument(
        "--append-eod",
        action="store_true",
        help="append the end-of-document token to each document",
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--workers", type=_count, default=cores, help=f"processes (default: {cores})"
    )
    parser.add_argument(
        "--save-seconds",
        type=float,
        default=SAVE_SECONDS,
        metavar="N",
        help="save progress every N seconds (default: %(default)g)",
    )
    parser.add_argument("--skip-bad", action="store_true", help="skip and count invalid lines")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace other data at the output prefix"
    )


def _add_tokenizer(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--tokenizer-type", choices=TYPES, default=BYTES)
    group.add_argument("--tokenizer-model", metavar="FILE", help="tokenizer.json, or its folder")
    group.add_argument("--vocab-file", metavar="FILE", help="vocab.json of GPT-2")
    group.add_argument("--merge-file", metavar="FILE", help="merges.txt of GPT-2")
    group.add_argument(
        "--eod-token", metavar="TEXT", help="end-of-document token, if the files do not name it"
    )
    group.add_argument(
        "--add-special-tokens",
        action="store_true",
        help="keep the tokenizer's special tokens, as Megatron's --legacy-tokenizer does",
    )


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 1024:
        raise ValueError(text)
    return number


def _tokens(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def job(args: argparse.Namespace) -> ConversionJob:
    tokenizer = TokenizerChoice(
        args.tokenizer_type,
        args.tokenizer_model,
        args.vocab_file,
        args.merge_file,
        args.eod_token,
        args.add_special_tokens,
    )
    keys = tuple(args.json_keys)
    wanted = EncodingOptions(tokenizer, keys, args.append_eod, args.skip_bad)
    prefixes = tuple(f"{args.output_prefix}_{key}_document" for key in keys)
    return ConversionJob(
        tuple(args.input), prefixes, wanted, args.workers, args.overwrite, args.save_seconds
    )


class ProgressLine:
    """Prints progress to stderr; the share of the input only for uncompressed files."""

    def __init__(self, inputs: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._inputs = inputs
        self._clock = clock
        self._started = clock()
        self._first: ConversionState | None = None

    def show(self, state: ConversionState) -> None:
        print(self.line(state), file=sys.stderr, flush=True)

    def line(self, state: ConversionState) -> str:
        self._first = self._first or state
        seconds = max(self._clock() - self._started, 1e-3)
        done = state.documents - self._first.documents if state is not self._first else 0
        speed = f", {done / seconds:.0f} documents/s" if done else ""
        place = state.place
        where = f"{self._inputs[place.file]}:{place.line}"
        counts = f"{state.documents} documents, {state.tokens} tokens{speed}"
        return f"{counts}; at {where}{self._share(state)}"

    def _share(self, state: ConversionState) -> str:
        try:
            sizes = [os.path.getsize(path) for path in self._inputs]
        except OSError:
            return ""
        if any(path.endswith((".gz", ".zst")) for path in self._inputs) or not sum(sizes):
            return f" (file {state.place.file + 1} of {len(sizes)})"
        read = sum(sizes[: state.place.file]) + state.place.offset
        return f" ({read / sum(sizes):.1%})"


SAMPLE = Path(__file__).parents[1] / "sample.txt"
SUFFIX = "_text_document"


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv, str(SAMPLE))
    try:
        if args.check:
            return _check(args.prefixes, args.vocab_size)
        if args.blend:
            return _blend(Path(args.blend), args.prefixes)
        return _convert(job(args))
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


def _convert(job: ConversionJob) -> int:
    screen = ProgressLine(job.inputs)
    result = convert(job, screen.show)
    if result.was_done:
        print("already made of this input with these settings")
    elif result.resumed_at is not None:
        place = result.resumed_at
        print(f"went on at {job.inputs[place.file]}:{place.line}")
    if result.state.left_out:
        print(f"{result.state.left_out} bad lines left out")
    found = f"{result.state.documents} documents, {result.state.tokens} tokens"
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
    found = index_file.shares(names)
    index_file.write_blend(path, found)
    for each in found:
        print(f"{each.weight:.9g} {each.prefix} ({each.tokens} tokens)")
    print(f"train with --data-args-path {path}")
    return 0


def read(source: Path, key: str) -> Iterator[str]:

    for block in blocks([str(source)], LineStart()):
        yield from documents(block, key)


def build(texts: Iterable[str], prefix: str) -> tuple[int, int]:
    """Write a small byte-tokenized dataset; both files appear only when complete."""
    wanted = EncodingOptions(TokenizerChoice())
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
