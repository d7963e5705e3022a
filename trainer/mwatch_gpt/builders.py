# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the parts of a run with Megatron: process groups, model, optimizer, schedule, datasets.

The seed and the number of iterations fix the order of the samples. The position is the number of
samples consumed, which is in the checkpoint, so a resumed run continues with the same samples.
"""

from __future__ import annotations

import argparse
import atexit
import importlib.util
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import get_blend_from_list
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel, gpt_layer_specs
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.rerun_state_machine import (
    RerunDataIterator,
    RerunMode,
    initialize_rerun_state_machine,
)
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

from mwatch_gpt.console import print_rank_0
from mwatch_gpt.data import tool
from mwatch_gpt.data.tokenizers import VOCABULARY, ByteTokenizer


def initialize(args: argparse.Namespace, device: torch.device) -> None:
    init_num_microbatches_calculator(
        args.rank, None, args.global_batch_size, args.micro_batch_size, args.data_parallel_size
    )
    initialize_rerun_state_machine(mode=RerunMode(args.rerun_mode), **_tracker_functions())
    print_rank_0("> initializing torch distributed ...")
    _join(args, device)
    parallel_state.initialize_model_parallel(
        args.tensor_model_parallel_size, distributed_timeout_minutes=_timeout_seconds(args) / 60
    )
    print_rank_0(f"> initialized tensor model parallel with size {args.tensor_model_parallel_size}")
    print_rank_0("> initialized pipeline model parallel with size 1")
    print_rank_0(f"> setting random seeds to {args.seed} ...")
    random.seed(args.seed)
    numpy.random.seed(args.seed)
    torch.manual_seed(args.seed)
    if device.type == "cuda":
        tensor_parallel.model_parallel_cuda_manual_seed(args.seed)


def _join(args: argparse.Namespace, device: torch.device) -> None:
    backend = args.distributed_backend or ("nccl" if device.type == "cuda" else "gloo")
    # Without a launcher there are no peers: an in-process store needs no port.
    alone = {} if "MASTER_ADDR" in os.environ else {"store": torch.distributed.HashStore()}
    torch.distributed.init_process_group(
        backend,
        rank=args.rank,
        world_size=args.world_size,
        timeout=timedelta(seconds=_timeout_seconds(args)),
        **alone,
    )


def _timeout_seconds(args: argparse.Namespace) -> float:
    return float(args.distributed_timeout_seconds or 60 * args.distributed_timeout_minutes)


def _tracker_functions() -> dict[str, object]:
    """Return functions that save and restore Megatron's per-rank random state for step reruns."""
    tracker = tensor_parallel.get_cuda_rng_tracker

    def save() -> dict[str, object]:
        return {"rng_tracker_states": tracker().get_states()}

    def restore(state: dict[str, object]) -> None:
        if state["rng_tracker_states"]:
            tracker().set_states(state["rng_tracker_states"])

    return {"state_save_func": save, "state_restore_func": restore}


class CausalAttention(torch.nn.Module):  # type: ignore[misc]
    """Attention with PyTorch's kernel for Megatron layers without a GPU; the result is the same.

    Megatron's own core attention allocates a CUDA buffer when tensor parallelism is on.
    """

    def __init__(self, config: Any, attention_dropout: float | None = None, **_: Any) -> None:
        super().__init__()
        given = attention_dropout
        self.dropout: float = config.attention_dropout if given is None else given

    def forward(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        """Compute attention. Inputs are [sequence, batch, heads, channels], as in Megatron."""
        heads_first = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        mixed = torch.nn.functional.scaled_dot_product_attention(
            *heads_first, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        return mixed.permute(2, 0, 1, 3).flatten(2)


def build_model(args: argparse.Namespace, device: torch.device) -> tuple[Any, Any]:
    print_rank_0("building GPT model ...")
    config = _config(args, device)
    model = GPTModel(
        config=config,
        transformer_layer_spec=_layer(args, device),
        vocab_size=_padded_vocabulary(args),
        max_sequence_length=args.max_position_embeddings,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type="learned_absolute",
    )
    tensor_rank = parallel_state.get_tensor_model_parallel_rank()
    if parallel_state.get_data_parallel_rank() == 0:
        count = sum(parameter.nelement() for parameter in model.parameters())
        place = f"({tensor_rank}, 0)"
        what = "number of parameters on (tensor, pipeline) model parallel rank"
        print(f" > {what} {place}: {count}", flush=True)
    model = model.to(device)
    if args.fp16 or args.bf16:
        model = Float16Module(config, model)
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=args.fp16 or args.bf16,
        overlap_grad_reduce=False,
        use_distributed_optimizer=False,
        check_for_nan_in_grad=args.check_for_nan_in_loss_and_grad,
    )
    return DistributedDataParallel(config, ddp_config, model), config


def _config(args: argparse.Namespace, device: torch.device) -> Any:
    dtype = getattr(torch, args.params_dtype.removeprefix("torch."))
    return TransformerConfig(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        ffn_hidden_size=args.ffn_hidden_size,
        num_attention_heads=args.num_attention_heads,
        hidden_dropout=args.hidden_dropout,
        attention_dropout=args.attention_dropout,
        init_method_std=args.init_method_std,
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        fp16=args.fp16,
        bf16=args.bf16,
        fp8=args.fp8,
        use_cpu_initialization=device.type == "cpu",
        # Fused kernels need CUDA.
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
    )


def _layer(args: argparse.Namespace, device: torch.device) -> Any:
    if args.transformer_impl == "transformer_engine":
        return gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec()
    layer = gpt_layer_specs.get_gpt_layer_local_spec()
    if device.type == "cpu":
        layer.submodules.self_attention.submodules.core_attention = CausalAttention
    return layer


def check_implementation(args: argparse.Namespace, device: torch.device) -> None:
    """Exit with a one-line message if the choice cannot run, before any process group is joined."""
    if args.transformer_impl == "transformer_engine":
        if device.type == "cpu":
            sys.exit("mwatch_gpt: --transformer-impl transformer_engine needs a GPU")
        if importlib.util.find_spec("transformer_engine") is None:
            sys.exit(
                "mwatch_gpt: transformer_engine is not installed: pip install 'mwatch[demo,gpu]'"
            )
    elif args.fp8:
        sys.exit("mwatch_gpt: --fp8 needs --transformer-impl transformer_engine (extra gpu)")


def _padded_vocabulary(args: argparse.Namespace) -> int:
    multiple = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
    padded: int = -(-VOCABULARY // multiple) * multiple
    print_rank_0(
        f" > padded vocab (size: {VOCABULARY}) with {padded - VOCABULARY} dummy tokens "
        f"(new size: {padded})"
    )
    args.padded_vocab_size = padded
    return padded


def build_optimizer(args: argparse.Namespace, model: Any) -> tuple[Any, Any]:
    config = OptimizerConfig(
        optimizer="adam",
        lr=args.lr,
        min_lr=args.min_lr,
        weight_decay=args.weight_decay,
        adam_beta1=args.adam_beta1,
        adam_beta2=args.adam_beta2,
        adam_eps=args.adam_eps,
        clip_grad=args.clip_grad,
        fp16=args.fp16,
        bf16=args.bf16,
        params_dtype=getattr(torch, args.params_dtype.removeprefix("torch.")),
        loss_scale=args.loss_scale,
        initial_loss_scale=args.initial_loss_scale,
        min_loss_scale=args.min_loss_scale,
        loss_scale_window=args.loss_scale_window,
        hysteresis=args.hysteresis,
        log_num_zeros_in_grad=args.log_num_zeros_in_grad,
    )
    optimizer = get_megatron_optimizer(config, [model])
    _initialize_adam(optimizer)
    batch = args.global_batch_size
    schedule = OptimizerParamScheduler(
        optimizer,
        init_lr=args.lr_warmup_init,
        max_lr=args.lr,
        min_lr=args.min_lr,
        lr_warmup_steps=args.lr_warmup_iters * batch,
        lr_decay_steps=args.lr_decay_iters * batch,
        lr_decay_style=args.lr_decay_style,
        start_wd=args.weight_decay,
        end_wd=args.weight_decay,
        wd_incr_steps=args.train_iters * batch,
        wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=False,
        override_opt_param_scheduler=False,
    )
    return optimizer, schedule


def _initialize_adam(optimizer: Any) -> None:
    """Create Adam's state now instead of at the first step that is not skipped.

    Half precision skips the first steps; a checkpoint saved before that could not be loaded.
    """
    for part in optimizer.chained_optimizers:
        if not isinstance(part.optimizer, torch.optim.Adam):
            continue
        for group in part.optimizer.param_groups:
            for parameter in group["params"]:
                part.optimizer.state[parameter] = {
                    "step": torch.tensor(0.0),
                    "exp_avg": torch.zeros_like(parameter.data),
                    "exp_avg_sq": torch.zeros_like(parameter.data),
                }


class _Observed(torch.utils.data.Dataset):  # type: ignore[misc]
    """A dataset that reports each sample number before reading it and wraps around at its end."""

    def __init__(self, inner: Any, before: Callable[[int], None]) -> None:
        self._inner = inner
        self._before = before

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> Any:
        self._before(index)
        return self._inner[index % len(self._inner)]


def _batches(args: argparse.Namespace, consumed: int) -> Iterator[list[int]]:
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
    steps = (args.train_iters, evaluations * args.eval_iters, args.eval_iters)
    sizes = [each * args.global_batch_size for each in steps]
    print_rank_0(" > datasets target sizes (minimum size):")
    for name, size in zip(("train:     ", "validation:", "test:      "), sizes, strict=True):
        print_rank_0(f"    {name} {size}")
    print_rank_0("> building train, validation, and test datasets for GPT ...")
    # Every rank loads its own batches; ranks of a tensor-parallel group load the same ones.
    datasets = BlendedMegatronDatasetBuilder(
        GPTDataset, sizes, lambda: True, _dataset_config(args)
    ).build()
    print_rank_0("> finished creating GPT datasets ...")
    consumed = (args.consumed_train_samples, args.consumed_valid_samples, 0)
    watchers = (before_sample, lambda _: None, lambda _: None)
    return tuple(  # type: ignore[return-value]
        None if dataset is None else _iterator(args, _Observed(dataset, watcher), start)
        for dataset, watcher, start in zip(datasets, watchers, consumed, strict=True)
    )


def _iterator(args: argparse.Namespace, dataset: Any, consumed: int) -> Any:
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_sampler=_batches(args, consumed),
        num_workers=args.num_workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=args.num_workers > 0,
        # A loader draws a number from its generator when it starts. With the global generator, that
        # would shift the dropout of a resumed run.
        generator=torch.Generator(),
    )
    return RerunDataIterator(iter(loader))


def _dataset_config(args: argparse.Namespace) -> Any:
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
    """Return the bundled text's dataset prefix; rank 0 indexes it beside the checkpoints."""
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
