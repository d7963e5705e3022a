# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Train, validation and test data: Megatron's GPTDataset, and which samples come next.

The seed and the number of iterations fix the order of the samples. The position is the number of
samples consumed, which is in the checkpoint, so a resumed run continues with the same samples.
"""

from __future__ import annotations

import argparse
import atexit
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import get_blend_from_list
from megatron.core.rerun_state_machine import RerunDataIterator

from mwatch_gpt.console import print_rank_0
from mwatch_gpt.data import tool
from mwatch_gpt.data.tokenizers import ByteTokenizer


class _Observed(torch.utils.data.Dataset):  # type: ignore[misc]
    """A dataset that reports which sample is read, and wraps around at its end."""

    def __init__(self, inner: Any, before: Callable[[int], None]) -> None:
        self._inner = inner
        self._before = before

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> Any:
        self._before(index)
        return self._inner[index % len(self._inner)]


def _batches(args: argparse.Namespace, consumed: int) -> Iterator[list[int]]:
    """Yield the indices of this rank's samples for each forward pass, endlessly."""
    size, ranks = args.micro_batch_size, args.data_parallel_size
    first = consumed + parallel_state.get_data_parallel_rank() * size
    while True:
        yield list(range(first, first + size))
        first += size * ranks


def build_iterators(
    args: argparse.Namespace, before_sample: Callable[[int], None]
) -> tuple[Any, Any, Any]:
    print_rank_0("> building train, validation, and test datasets ...")
    evaluations = args.train_iters // args.eval_interval + 1
    sizes = [steps * args.global_batch_size for steps in _steps(args, evaluations)]
    print_rank_0(" > datasets target sizes (minimum size):")
    for name, size in zip(("train:     ", "validation:", "test:      "), sizes, strict=True):
        print_rank_0(f"    {name} {size}")
    print_rank_0("> building train, validation, and test datasets for GPT ...")
    # Every rank loads its own batches, those of a tensor-parallel group the same ones.
    datasets = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, _config(args)).build()
    print_rank_0("> finished creating GPT datasets ...")
    consumed = (args.consumed_train_samples, args.consumed_valid_samples, 0)
    watchers = (before_sample, _nothing, _nothing)
    return tuple(  # type: ignore[return-value]
        None if dataset is None else _iterator(args, _Observed(dataset, watcher), start)
        for dataset, watcher, start in zip(datasets, watchers, consumed, strict=True)
    )


def _nothing(_: int) -> None:
    return


def _steps(args: argparse.Namespace, evaluations: int) -> tuple[int, int, int]:
    return args.train_iters, evaluations * args.eval_iters, args.eval_iters


def _iterator(args: argparse.Namespace, dataset: Any, consumed: int) -> Any:
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_sampler=_batches(args, consumed),
        num_workers=args.num_workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=args.num_workers > 0,
        # A loader draws a number from its generator at its start. From the global one it would
        # shift the dropout of a resumed run.
        generator=torch.Generator(),
    )
    return RerunDataIterator(iter(loader))


def _config(args: argparse.Namespace) -> Any:
    paths = args.data_path or [_sample(args)]
    config = GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        blend=get_blend_from_list(paths),
        split=args.split,
        path_to_cache=args.data_cache_path,
        tokenizer=ByteTokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    _refuse_an_empty_part(config)
    return config


def _refuse_an_empty_part(config: Any) -> None:
    """Exit if a split is empty: Megatron would draw samples from it forever."""
    for prefix in config.blend[0]:
        if not IndexedDataset.exists(prefix):
            sys.exit(f"mwatch_gpt: no dataset at {prefix}: there is no .bin or no .idx")
        documents = len(IndexedDataset(prefix).document_indices) - 1
        for part in config.split_matrix:
            if part and round(part[0] * documents) >= round(part[1] * documents):
                sys.exit(
                    f"mwatch_gpt: --split {config.split} leaves a part without a document: "
                    f"{prefix} has {documents}"
                )


def _sample(args: argparse.Namespace) -> str:
    """Return the bundled text, indexed beside the checkpoints by rank 0."""
    found: list[str | None] = [None]
    if args.rank == 0:
        folder = (
            str(Path(args.save).absolute().parent / "data") if args.save else _temporary_folder()
        )
        prefix = f"{folder}/sample{tool.SUFFIX}"
        if not Path(f"{prefix}.idx").exists():
            tool.build(tool.read(tool.SAMPLE, "text"), prefix)
        found = [prefix]
    torch.distributed.broadcast_object_list(found, 0)
    assert found[0] is not None
    return found[0]


def _temporary_folder() -> str:
    folder = tempfile.mkdtemp(prefix="mwatch_gpt-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
