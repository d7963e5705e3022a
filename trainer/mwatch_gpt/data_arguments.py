# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The arguments of `python -m mwatch_gpt.data`, under the names that Megatron's tool has."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from mwatch_gpt.conversion import SAVE_SECONDS, Job
from mwatch_gpt.encoding import Wanted
from mwatch_gpt.tokenizer_files import BYTES, TYPES, Choice

_EXAMPLES = """examples:
  python -m mwatch_gpt.data --input corpus.jsonl.zst --output-prefix data/corpus --append-eod \\
      --tokenizer-type GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt --workers 8
  python -m mwatch_gpt.data --check data/corpus_text_document --vocab-size 50257
  python -m mwatch_gpt.data --blend weights.txt data/a_text_document=0.7 data/b_text_document=0.3

The same command again goes on where a killed one stopped. Sentences are not split: BERT and T5
need Megatron-LM's own tool for that. Exit codes: 0 done, 1 --check found something, 2 bad input,
3 the machine's doing (a full disk, a killed worker): the same command goes on when that is mended.
"""


def parse(argv: Sequence[str] | None, sample: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m mwatch_gpt.data",
        description="Makes Megatron's indexed datasets (.bin and .idx) out of text.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_conversion(parser, sample)
    _add_tokenizer(parser.add_argument_group("tokenizer"))
    others = parser.add_argument_group("datasets that are there")
    others.add_argument("--check", action="store_true", help="say what is wrong with PREFIX ...")
    others.add_argument(
        "--vocab-size", type=_tokens, metavar="N", help="with --check: read the tokens too"
    )
    others.add_argument("--blend", metavar="FILE", help="write the weights of PREFIX[=WEIGHT] ...")
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
        help="JSON lines or plain text, .gz or .zst too (default: a text of ours)",
    )
    parser.add_argument("--output-prefix", metavar="PATH", help="without an ending")
    parser.add_argument(
        "--json-keys", nargs="+", default=["text"], metavar="KEY", help="fields (default: text)"
    )
    parser.add_argument("--append-eod", action="store_true", help="end each document")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--workers", type=_count, default=cores, help=f"processes (default: {cores})"
    )
    parser.add_argument(
        "--save-seconds",
        type=float,
        default=SAVE_SECONDS,
        metavar="N",
        help="how much work a kill may cost (default: %(default)g)",
    )
    parser.add_argument(
        "--skip-bad", action="store_true", help="leave bad lines out, and count them"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="start over where something else is there"
    )


def _add_tokenizer(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--tokenizer-type", choices=TYPES, default=BYTES)
    group.add_argument("--tokenizer-model", metavar="FILE", help="tokenizer.json, or its folder")
    group.add_argument("--vocab-file", metavar="FILE", help="vocab.json of GPT-2")
    group.add_argument("--merge-file", metavar="FILE", help="merges.txt of GPT-2")
    group.add_argument("--eod-token", metavar="TEXT", help="where the files do not name it")
    group.add_argument(
        "--add-special-tokens",
        action="store_true",
        help="what the tokenizer puts around a text, as Megatron's --legacy-tokenizer does",
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


def job(args: argparse.Namespace) -> Job:
    tokenizer = Choice(
        args.tokenizer_type,
        args.tokenizer_model,
        args.vocab_file,
        args.merge_file,
        args.eod_token,
        args.add_special_tokens,
    )
    keys = tuple(args.json_keys)
    wanted = Wanted(tokenizer, keys, args.append_eod, args.skip_bad)
    prefixes = tuple(f"{args.output_prefix}_{key}_document" for key in keys)
    return Job(tuple(args.input), prefixes, wanted, args.workers, args.overwrite, args.save_seconds)
