# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a run print between two iteration lines: nothing of it is an event.

64 ranks on 8 hosts. Each template gets 64 random bits, takes its numbers out of them and returns
one line, or two where a warning quotes its source line.
"""

from __future__ import annotations

import random
from collections.abc import Callable

Template = Callable[[int, str], str]
"""Random bits and the time of day to the line, with its newline."""

_PATH = "/opt/megatron/megatron/core"
_SITE = "/usr/local/lib/python3.12/dist-packages"
_WARNINGS = (
    f"{_SITE}/torch/nn/modules/module.py:1784: UserWarning: Full backward hook is firing when "
    "gradients are computed with respect to module outputs since no inputs require gradients.\n"
    "  warnings.warn(\n",
    f"{_SITE}/torch/optim/lr_scheduler.py:209: UserWarning: Detected call of `lr_scheduler.step()` "
    "before `optimizer.step()`.\n  return func(*args, **kwargs)\n",
    f"{_PATH}/tensor_parallel/layers.py:687: UserWarning: When using async grad allreduce it is "
    "recommended to set CUDA_DEVICE_MAX_CONNECTIONS to 1 for maximum speedup\n  warnings.warn(\n",
    f"{_PATH}/transformer/moe/token_dispatcher.py:412: FutureWarning: `torch.cuda.amp.custom_fwd"
    "(args...)` is deprecated. Use `torch.amp.custom_fwd` instead.\n  @custom_fwd\n",
)


def _nccl(bits: int) -> str:
    rank = bits & 63
    pid = 2100 + (rank & 7)
    return f"gpt-worker-{rank >> 3}:{pid}:{pid + 900 + (bits >> 6 & 127)} [{rank & 7}] NCCL INFO "


def _p2p(bits: int, _now: str) -> str:
    rank, peer = bits & 63, bits >> 16 & 63
    channel, count = bits >> 24 & 15, bits >> 30 & 1
    return (
        f"{_nccl(bits)}Channel {channel:02d}/{count} : {rank}[{rank & 7}] -> {peer}[{peer & 7}] "
        "via P2P/CUMEM/read\n"
    )


def _network(bits: int, _now: str) -> str:
    rank, peer = bits & 63, bits >> 16 & 63
    way = "send" if bits >> 31 & 1 else "receive"
    return (
        f"{_nccl(bits)}Channel {bits >> 24 & 15:02d}/0 : {rank}[{rank & 7}] -> {peer}[{peer & 7}] "
        f"[{way}] via NET/IB/{bits >> 40 & 7}/GDRDMA\n"
    )


def _collective(bits: int, _now: str) -> str:
    name = ("AllReduce", "ReduceScatter", "AllGather", "Broadcast")[bits >> 20 & 3]
    return (
        f"{_nccl(bits)}{name}: opCount {bits >> 22 & 0xFFFF:x} sendbuff 0x7f{bits >> 24:010x} "
        f"recvbuff 0x7f{bits >> 25:010x} count {bits >> 40} datatype 9 op 0 root 0 "
        f"comm 0x55{bits >> 30:x} [nranks=8] stream 0x55{bits >> 31:x}\n"
    )


def _communicator(bits: int, _now: str) -> str:
    rank = bits & 63
    return (
        f"{_nccl(bits)}ncclCommSplit comm 0x55{bits >> 20:x} rank {rank & 7} nranks 8 "
        f"cudaDev {rank & 7} nvmlDev {rank & 7} busId {0x18000 + (rank & 7) * 0x11000:x} "
        f"parent 0x55{bits >> 21:x} splitCount {bits >> 50 & 15} color {rank >> 3} - Init done\n"
    )


def _channels(bits: int, _now: str) -> str:
    return (
        f"{_nccl(bits)}{16 + (bits >> 13 & 1) * 8} coll channels, 16 collnet channels, "
        "0 nvls channels, 16 p2p channels, 2 p2p channels per peer\n"
    )


def _tree(bits: int, _now: str) -> str:
    rank = bits & 63
    return (
        f"{_nccl(bits)}Trees [0] {rank + 1}/-1/-1->{rank}->{rank - 1} "
        f"[1] {rank + 1}/{bits >> 20 & 63}/-1->{rank}->-1 [2] -1/-1/-1->{rank}->{rank - 1}\n"
    )


def _memory(bits: int, _now: str) -> str:
    used = 41000 + (bits >> 20 & 0xFFF)
    return (
        f"[Rank {bits & 63}] (after {(bits >> 6 & 0x3FFF) * 10} iterations) memory (MB) | "
        f"allocated: {used}.{bits >> 33 & 63:02d} | max allocated: {used + 9000}.12 | "
        f"reserved: {used + 12000}.00 | max reserved: {used + 12000}.00\n"
    )


def _buckets(bits: int, _now: str) -> str:
    return (
        "INFO:megatron.core.distributed.param_and_grad_buffer:Number of buckets for gradient "
        f"all-reduce / reduce-scatter: {1 + (bits & 31)}\n"
    )


def _dataset(bits: int, _now: str) -> str:
    return (
        "INFO:megatron.core.datasets.gpt_dataset:Load the GPTDataset train indices: shard "
        f"{bits & 0xFFF:05d}-of-04096, {bits >> 12 & 0xFFFFF} samples, "
        f"{1 + (bits >> 33 & 3)} epochs\n"
    )


def _loader(bits: int, now: str) -> str:
    return (
        f"{now},{bits >> 6 & 511:03d} - DEBUG - rank {bits & 63} - data_iterator: fetched batch "
        f"{bits >> 15 & 0xFFFFF} in {bits >> 36 & 15}.{bits >> 40 & 7} ms "
        f"(queue {bits >> 43 & 7}/8)\n"
    )


def _tokenizer(bits: int, _now: str) -> str:
    return (
        "Token indices sequence length is longer than the specified maximum sequence length for "
        f"this model ({4097 + (bits & 0x3FFF)} > 4096). Running this sequence through the model "
        "will result in indexing errors\n"
    )


def _upload(bits: int, _now: str) -> str:
    return (
        'DEBUG:urllib3.connectionpool:https://tracking.example.com:443 "POST /files/gpt/'
        f'pretrain/{bits >> 32:08x}/file_stream HTTP/1.1" 200 None\n'
    )


def _tracker(bits: int, now: str) -> str:
    return (
        f"{now},{bits & 511:03d} DEBUG   SenderThread:{4100 + (bits >> 9 & 63)} "
        f"[sender.py:send():{300 + (bits >> 16 & 127)}] send: stats, "
        f"{bits >> 24 & 0xFFFF} records in queue\n"
    )


def _nvtx(bits: int, _now: str) -> str:
    name = ("forward_step", "backward_step", "optimizer_step", "p2p_comm")[bits >> 8 & 3]
    return (
        f"[default{bits & 7}]:NVTX rank {bits & 63} pop range {name} depth {bits >> 10 & 7} "
        f"elapsed {bits >> 16 & 0xFFFF}.{bits >> 40 & 7} us, stream {bits >> 44 & 15}\n"
    )


def _collector(bits: int, _now: str) -> str:
    return (
        f"gc: done, {bits & 0xFFFF} unreachable, 0 uncollectable, 0.{bits >> 16 & 0xFFF:04d}s "
        f"elapsed (generation {bits >> 28 & 1}, rank {bits >> 30 & 63})\n"
    )


def _attention(bits: int, _now: str) -> str:
    return (
        f"[default{bits & 7}]:DEBUG:DotProductAttention:Selected backend = FusedAttention "
        f"(sub-backend {bits >> 8 & 1}), max_seqlen_q {1 << (9 + (bits >> 9 & 3))}, rank "
        f"{bits & 63}\n"
    )


def _inductor(bits: int, now: str) -> str:
    return (
        f"V0301 {now[11:]}.{bits & 0x7FFF:06d} {2100 + (bits >> 16 & 7)} torch/_inductor/"
        f"codecache.py:{1000 + (bits >> 20 & 511)}] [{bits >> 30 & 7}/0] fx graph cache hit for "
        f"key f{bits >> 34:x}\n"
    )


def _warning(bits: int, _now: str) -> str:
    return _WARNINGS[bits & 3]


def _parameter(bits: int, _now: str) -> str:
    part = ("mlp.linear_fc1.weight", "mlp.linear_fc2.bias", "self_attention.linear_qkv.weight")
    return f"\tmodule.decoder.layers.{bits & 63}.{part[bits >> 8 & 1]}\n"


def _samples(bits: int, _now: str) -> str:
    return f"> total number of samples: {bits & 0xFFFFFF}, epochs: {bits >> 30 & 3}\n"


def _size(bits: int, _now: str) -> str:
    return f"Number of parameters in layer {bits & 63} in billions: {bits >> 8 & 7}.{bits & 63}\n"


def _queue(bits: int, _now: str) -> str:
    return f"rank {bits & 63}: prefetch queue {bits >> 8 & 7}/8\n"


def _kernel(bits: int, _now: str) -> str:
    return f"> compiling fused kernel {bits & 63} done in {bits >> 8 & 31}.{bits >> 16 & 7} s\n"


_SHORT = (_parameter, _parameter, _samples, _size, _queue, _queue, _kernel)
# Lines of 187 real logs are 68 bytes long on average, half of them under 58.
_TEMPLATES: tuple[Template, ...] = (
    *(_SHORT * 8),
    *(_p2p, _p2p, _p2p, _network, _network, _network, _collective, _collective, _collective),
    *(_communicator, _channels, _tree, _memory, _memory, _buckets, _dataset, _dataset),
    *(_loader, _loader, _loader, _loader, _tokenizer, _upload, _upload, _tracker, _tracker),
    *(_nvtx, _nvtx, _collector, _attention, _inductor, _warning),
)


def noise(chance: random.Random, now: str, lines: int) -> list[str]:
    """Exactly that many lines; `now` is the date and time to the second."""
    texts: list[str] = []
    bits = chance.getrandbits
    while len(texts) < lines:
        draw = bits(80)
        made = _TEMPLATES[(draw & 0xFFFF) % len(_TEMPLATES)](draw >> 16, now)
        texts.extend(made.splitlines(keepends=True))
    return texts[:lines]
