# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Classify an exception that the catalogue does not list, by its name and message.

Programs describe similar faults in similar words: lost, refused, not found, out of memory.
"""

from __future__ import annotations

import re

from mwatch.model.cause import Cause

_NOT_FINITE = re.compile(
    r"found (?:NaN|Inf)\b|unexpected result (?:nan|-?inf)|\bnan loss\b|\bnon-?finite\b"
    r"|\b(?:loss|grad(?:ient)?s?|norm|logits|weights|outputs?|activations?)\b.{0,40}"
    r"\b(?:nan|inf|infinite|not finite)\b"
    r"|\b(?:nan|inf|infinite)s?\b.{0,30}\b(?:detected|encountered|found|loss|grad(?:ient)?s?)\b"
    r"|\b(?:contains?|has|have|became|becomes?|turned) (?:a |all |only )?(?:nan|inf)s?\b"
    r"|\bnan or inf\b",
    re.I,
)
_JUMPED = re.compile(
    r"\b(?:loss|grad(?:ient)?s?(?:[ _]norm)?)\b.{0,30}\b(?:spik|explod|diverg)\w{1,5}\b"
    r"|\btraining (?:has )?diverged\b",
    re.I,
)


def cause_of_numbers(text: str) -> Cause | None:
    """Return the cause if a trainer gave up because of its loss or gradient; None otherwise."""
    if _NOT_FINITE.search(text):
        return Cause.NAN
    return Cause.LOSS_SPIKE if _JUMPED.search(text) else None


_OF_EXCEPTIONS = (
    (re.compile(r"uncorrectable|\bECC\b|hardware (?:error|fault|failure|stack error)|\bXid\b"
                r"|fallen off the bus|\bgpu is lost\b|nvlink error|system not yet initialized",
                re.I), Cause.HARDWARE),
    (re.compile(r"killed by signal: (?:Killed|Bus error)|ALLOC_FAILED|ERROR_OUT_OF_MEMORY"
                r"|cudaErrorMemoryAllocation|(?:cuda|hip) \w{1,20}.{0,20}\bout of memory"),
     Cause.OOM),
    (re.compile(r"no kernel image|invalid device (?:ordinal|function|symbol)|device-side assert"
                r"|(?:PTX|cubin|named symbol).{0,40}(?:not found|unsupported|toolchain|error)"
                r"|invalid configuration argument|driver version is insufficient"
                r"|\b(?:NOT_SUPPORTED|ARCH_MISMATCH|ARCH_UNSUPPORTED|BAD_PARAM)\b"
                r"|STATUS_(?:NOT_SUPPORTED|ARCH_MISMATCH|INVALID_VALUE|BAD_PARAM)"
                r"|\bncclInvalidUsage\b|NCCL error[^\n]{0,200}\binvalid (?:usage|argument)\b"
                r"|torch\.utils\.checkpoint|\bgated repo\b|\(40[13]\)"
                r"|\b40[13] (?:Client|Forbidden|Unauth)"
                r"|AccessDenied|InvalidAccessKey|ExpiredToken"
                r"|mismatch between collectives|same model across all ranks"), Cause.USER_ERROR),
    (re.compile(r"memory allocation of \d+ bytes|bad_alloc|cannot allocate memory"
                r"|(?:exceed\w*|over) (?:\w+ ){0,4}memory limit|not enough (?:host |system )?memory"
                r"|unable to allocate", re.I), Cause.OOM),
    (re.compile(r"loss[- ]scale.{0,40}(?:minimum|too small|cannot|below)|minimum loss[- ]scale"
                r"|\b(?:consecutive|in a row)\b.{0,60}\boverflows?\b"
                r"|\boverflow(?:s|ed)?\b.{0,60}\b(?:consecutive|in a row|times)\b", re.I),
     Cause.LOSS_SCALE_COLLAPSE),
    (re.compile(r"\bna[nN]s?\b.{0,40}\b(?:occur|detect|found|encounter|appear)"
                r"|\b(?:occur\w*|detect\w*|found|encounter\w*)\b.{0,40}\bna[nN]s?\b", re.I),
     Cause.NAN),
    (re.compile(r"preempt(?:ed|ion)|pre-empt|spot (?:instance|machine|vm)\b", re.I),
     Cause.PREEMPTED),
    (re.compile(r"PytorchStreamReader|zip archive|safetensor\w{0,10}.{0,80}(?:header|incomplete)"
                r"|Missing key in checkpoint|\bsaved torch\.Size"
                r"|\bno (?:\w+ ){0,3}checkpoints?\b|checkpoint.{0,80}(?:not found|does not exist)"
                r"|No such file or directory: '[^']{0,300}(?:/(?:tmp-)?(?:iter_\d|global_step|ckpt"
                r"|checkpoint)|\.(?:pth|ckpt|safetensors|distcp|nemo)')"
                r"|can(?:'t|not|not be) (?:find|resume|resumed)\b.{0,60}checkpoint", re.I),
     Cause.CHECKPOINT),
    (re.compile(r"no space left|quota|read-only file system|stale file handle|input/output error"
                r"|requested and \d+ written|short write|file write failed|disk (?:is )?full"
                r"|remote i/o error|transport endpoint|bad address|host is down|file too large"
                r"|communication error on send|structure needs cleaning|basic_ios::clear"
                r"|device or resource busy|file name too long|\[Errno (?:22|95)\]"
                r"|\(os error (?!2\)|11\)|13\)|9[89]\)|1(?:0[0-8]|1[0-5])\))\d"
                r"|software caused connection abort|error writing local file", re.I),
     Cause.STORAGE),
    (re.compile(r"\bbotocore\.|\boci\.exceptions|\bazure\.core\.|\bgoogle\.(?:api_core|cloud)\."
                r"|FSTimeoutError|\bs3fs\.|EndpointConnectionError|S3UploadFailed|ObjectStore\w{0,20}Error|NoSuch(?:Bucket|Key)\b"
                r"|\bobject[_ ]?stor(?:e|age)\b",
                re.I), Cause.STORAGE),
    (re.compile(r"\b5\d\d (?:Server|Internal|Bad|Service|Gateway)|HTTP Error (?:429|5\d\d)"
                r"|gateway time-?out|bad gateway|service unavailable|too many requests"
                r"|IncompleteRead|connection broken|(?:actor|server) is (?:temporarily )?unavail"
                r"|internal error in RPC|deadline exceeded"
                r"|keepalive watchdog|rpc_code: 14|StatusCode\.UNAVAILABLE|connection to raylet"
                r"|read (?:operation )?timed out", re.I), Cause.FABRIC),
    (re.compile(r"(?:unexpected end|premature end|truncated).{0,200}"
                r"(?:\bpipe:|\b(?:https?|s3|gs)://)", re.I), Cause.STORAGE),
    (re.compile(r"index file .{0,200}(?:empty|corrupt|truncated)"
                r"|tarfile\.|pyarrow\.|parquet|snappy|webdataset|datasets\.|DatasetGeneration"
                r"|\bshard\b.{0,60}(?:corrupt|hash|checksum|missing)"
                r"|(?:zstd|lz4|gzip|bz2)\b.{0,60}(?:corrupt|error|invalid)"
                r"|tokenizer(?! is not init)|sentencepiece"
                r"|buffer is too small for requested array"
                r"|unexpected end of (?:data|stream)|image file is truncated|cannot identify image"
                r"|compressed (?:data|file) ended|Incorrect .{0,20}checksum|sample index", re.I),
     Cause.DATA),
    (re.compile(r"\bworkers? (?:process(?:es)? )?"
                r"(?:failure|(?:has |have )?(?:failed|died|crashed))\b", re.I), Cause.CRASH),
    (re.compile(r"no route to host|name or service not known|temporary failure in name resolution"
                r"|network is unreachable|connect.{0,40}(?:aborted|refused|reset|closed|timed out)"
                r"|remote end closed|failed to (?:resolve|connect)|max retries exceeded"
                r"|unhandled system error|remote process exited|timed out.{0,60}\bconnect"
                r"|socket timeout|server socket has failed|Rendezvous\w*Error"
                r"|\[SSL: |EOF occurred in violation of protocol|SSL validation failed"
                r"|peer (?:closed|reset)|RuntimeError: broken pipe"
                r"|host(?:name)? .{0,60}(?:not found|unreachable)|\w_waiting response is expected"
                r"|address already in use", re.I),
     Cause.FABRIC),
    (re.compile(r"(?:timed out|timeout|bailing out).{0,80}(?:\bwait|not ready|barrier"
                r"|\brank|collective)|\b(?:collective|barrier)\b.{0,40}timed out"
                r"|\bwait\w* (?:for|on|until) .{0,60}(?:\brank|barrier|worker|peer|collective)",
                re.I), Cause.HANG),
)  # fmt: skip
"""Cause by pattern in the name and message of an exception; the first match applies."""


def cause_of_exception(text: str) -> Cause | None:
    """Classify an exception by `text`, its name and message; None if no pattern matches."""
    return next((cause for pattern, cause in _OF_EXCEPTIONS if pattern.search(text)), None)
