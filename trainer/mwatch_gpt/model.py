# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The model, its data-parallel wrapper, the optimizer and its schedule: all of them Megatron's."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel, gpt_layer_specs
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

from mwatch_gpt.console import print_rank_0
from mwatch_gpt.data.tokenizers import VOCABULARY


class CausalAttention(torch.nn.Module):  # type: ignore[misc]
    """Attention by PyTorch's kernel, for a Megatron layer without a GPU: the same result.

    Megatron's own core attention allocates a CUDA buffer as soon as tensor parallelism is on.
    """

    def __init__(self, config: Any, attention_dropout: float | None = None, **_: Any) -> None:
        super().__init__()
        given = attention_dropout
        self.dropout: float = config.attention_dropout if given is None else given

    def forward(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        """Inputs and result are [sequence, batch, heads, channels], as in Megatron."""
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
        # Fused kernels are CUDA's.
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
    """Exit with one line and code 2 before any process group is waited for."""
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
    """Create Adam's state now, not at the first step that is not skipped.

    Half precision skips the first steps; a checkpoint saved before could not be loaded again.
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
