# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What an exception or a line that the catalogue does not list is about, by its words.

Programs word their faults alike: something is lost, refused, not found, out of memory. Lines are
the last resort for recorded logs: one counts if it complains (`COMPLAINS`) and is no mere notice
(`_MILD`). Of several, the strongest family leads, then the first line: a GPU that broke explains
the connections that were lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from mwatch.model.cause import Cause

MAX_LINE = 600
COMPLAINS = re.compile(
    r"\^C|error|fail|fatal|panic|critical|abort|exception|can(?:'|no)t|could ?n[o']t|unable"
    r"|denied|refused|invalid|unrecogni|not found|no such|timed? ?out|killed|evict|preempt"
    r"|reclaim|lost"
    r"|unreachable|unresponsive|stuck|hang|hung|exceed|insufficient|unschedul|not ready"
    r"|notready|unhealthy|BackOff|shut ?down|dead|ECC|Xid|corrupt|warning +[A-Z]\w+ "
    r"|NCCL WARN|out of memory|oom|fault|terminat|drain|\bdown\b|interrupt|waiting for"
    r"|pending|NotAvail|not enough|exhaust|fallen|unavailable|mismatch|OutOf[a-z]|no progress"
    r"|\bstall",
    re.I,
)
_MILD = re.compile(
    r"\b(?:INFO|DEBUG|NOTICE|TRACE)\b|(?<!NCCL )\bWARN(?:ING)?\b|\[W[ \d]|^W\d{3,4} |\[I[ \d]"
    r"|^I\d{3,4} |NeMo [IWD] |\b(?:Future|Deprecation|User|Runtime|Syntax|Resource)Warning\b"
    r"|level=(?:info|debug|warn)|<(?:info|warn)>|\b[Ww]arn(?:ing)?: |\b[Rr]etry(?:ing)?\b"
    r"|\b[Ff]alling back\b|\b[Ss]kipp(?:ed|ing)\b|\bignor(?:ed|ing)\b|\b[Ee]rrors?\W{1,3}0\b"
    r"|\b(?:0|[Nn]o)(?: \w{1,20}){0,3} errors?\b|error_file|\bNormal\b|^wandb: |^\s*[$#] "
    r"|\b(?:may|might|can|could) (?:even|cause|lead|result|also)\b|\b(?:to|can) avoid\b|\bif you\b"
    r"|\brecommended\b"
    r"|\bwill (?:error|fail)\b|\bpossibly\b|\blikely due\b|NoExecute|\(success\)"
    r"|potential root causes|can happen because|\be\.g\.|\d: [WIDN] [\w/]|connection error code"
    r"|failed or timed out|^ls: |^\s*File \"|^\s*\|.{0,200}\|\s*$"
    r"|\.py in \w+\(|frame #\d|^(?:-+>)?\s*\d+ {2,}|\(1\) .{1,400}\(2\) |^\s+(?:raise|return"
    r"|assert|if|with|for|self\.) ?"
)
_FIRM = re.compile(
    r"\^C|\(XID \d{2,3}\)"
    r"|^\W{0,4}(?:\S{1,12}\s+(?:\(x\d+ over \S+\)\s+)?)?Warning\s+[A-Z][A-Za-z]{3,40}\s"
)
"""Ctrl-C, a row of a table of Kubernetes events, and what a monitor of GPUs publishes."""


_LISTED = re.compile(
    r"^\s*[a-z0-9][\w.-]{2,80}\s+(?:\d+/\d+\s+[A-Z][\w:-]{2,60}\s+\d+\b"
    r"|(?:Not)?Ready\S*\s+[\w<>,/-]{1,80}\s+\d+[smhdy])"
)
"""A row of `kubectl get` of pods or nodes: its status is of now, wherever it was pasted."""
_PROMPT = re.compile(r"\S{0,80}[$#] ")
_FRAME = re.compile(r"\bFile \"[^\"]{1,300}\", line \d+")
_STARTED = re.compile(r"\bStarted container\b|\bCreated container\b")
"""The pod came up after all."""
_BEFORE_START = (Cause.UNSCHEDULABLE, Cause.VOLUME, Cause.IMAGE)


class _Family(NamedTuple):
    tier: int
    cause: Cause
    pattern: str


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
    """A trainer gives up because of its loss or gradient; None: it does not say so."""
    if _NOT_FINITE.search(text):
        return Cause.NAN
    return Cause.LOSS_SPIKE if _JUMPED.search(text) else None


def _family(tier: int, cause: Cause, *parts: str) -> _Family:
    return _Family(tier, cause, "|".join(parts))


_FAMILIES = (
    _family(
        0,
        Cause.PREEMPTED,
        r"\b(?:is|was|been|be|by|gets?|because of|due to|:) preempt(?:ed|ing|ion)?\b",
        r"\bpreempted\b", r"\bspot\b.{0,60}\b(?:interrupt|reclaim|terminat|taken|stop)",
        r"\b(?:instance|machine|capacity|vm|node)\b.{0,40}\breclaim",
    ),
    _family(
        0,
        Cause.OOM,
        r"\bout of (?:host |device |gpu |system )?memory\b", r"\boom\b", r"oom[-_ ]?kill",
        r"cannot allocate memory", r"bad_alloc",
        r"memory (?:limit|pressure)|low on memory|request(?:ed)? memory",
        r"insufficient memory for",
        r"(?:not enough|unable to allocate|failed to allocate|exhausted).{0,40}\b(?:memory|GiB"
        r"|MiB|bytes)\b",
        r"ALLOC_FAILED", r"RESOURCE_EXHAUSTED",
    ),
    _family(
        0,
        Cause.OOM,
        r"(?:\bshm\b|shared memory|/dev/shm|posix_fallocate).{0,160}(?:no space|fail|error|full)",
    ),
    _family(
        0,
        Cause.HARDWARE,
        r"\bECC\b", r"\bXid\b", r"\bHW (?:exception|error|fault)",
        r"hardware (?:error|fault|failure)", r"uncorrectable", r"fallen off the bus",
        r"\bgpu\b.{0,30}\b(?:is lost|lost|reset|unhealthy|hang)\b", r"row[- ]?remap",
        r"\bnvlink\b.{0,60}\b(?:error|fail|down|inactive)", r"\bMCE\b|machine check",
        r"\bPCIe?\b.{0,40}\b(?:error|link down|fatal)", r"nvidia-smi has failed",
        r"unable to determine the device handle",
        r"\b(?:overheat|thermal (?:shutdown|violation|trip))",
        r"fabric ?manager.{0,60}(?:error|fail|not)",
        r"\bnvml\b.{0,60}\b(?:unknown error|driver not loaded)",
    ),
    _family(
        1,
        Cause.UNSCHEDULABLE,
        r"FailedScheduling", r"unschedulable",
        r"\bOutOf(?:cpu|memory|pods|ephemeral|nvidia)", r"didn't have enough resource",
        r"\b\d+/\d+ nodes? (?:are|is) (?:available|unavailable)",
        r"insufficient (?:cpu|memory|resources?|quota|capacity|gpus?|[\w./-]+/[\w.-]*gpu|rdma)",
        r"exceeded quota|quota exceeded", r"untolerated taint",
        r"\b(?:not enough|no) (?:\w+ ){0,3}(?:nodes?|gpus?|resources|capacity) (?!found\b)(?:are "
        r"|is )?(?:available|free|left)?",
        r"(?<!queued and )\bwaiting for (?:\w+ ){0,3}(?:resources|quota|capacity|gpus|gang)\b",
        r"\b(?:resource|flavor|quota)\b(?! temporarily).{0,60}\b(?:unavailable|insufficient"
        r"|exceeded)\b",
        r"PodsReadyTimeout|InsufficientInstanceCapacity|\bno capacity\b",
        r"(?:tasks|pods?) in gang unsch", r"UnexpectedAdmissionError|TopologyAffinityError",
        r"\bReqNodeNotAvail\b",
    ),
    _family(
        1,
        Cause.IMAGE,
        r"ErrImage|ImagePull(?!Policy|Secret)|InvalidImageName",
        r"(?:failed|unable) to pull (?:and unpack )?image",
        r"manifest (?:unknown|for)", r"pull access denied",
        r"\bimage\b.{0,60}\b(?:not found|does not exist|cannot be)",
    ),
    _family(
        1,
        Cause.VOLUME,
        r"FailedMount|FailedAttachVolume|MountVolume|FailedBinding|ProvisioningFailed",
        r"unable to (?:attach or )?mount", r"persistentvolumeclaim.{0,60}not found",
        r"\bmount(?:ing)?\b.{0,40}\b(?:failed|exit status)",
    ),
    _family(
        1,
        Cause.DRAINED,
        r"\bKill task failed\b", r"\bnode\b.{0,60}\bstate set to DRAIN",
    ),
    _family(
        1,
        Cause.LOST_POD,
        r"\bnodes?\b.{0,60}\b(?:not ready|lost|unreachable|gone|died|dead|rebooted|went down"
        r"|is down|failure|shut ?down)\b",
        r"Node(?:Lost|NotReady|Failure|Shutdown)", r"NODE_FAIL",
        r"\bpods?\b.{0,60}\b(?:evicted|deleted|lost|disappeared)\b", r"\bevict(?:ed|ing|ion)\b",
        r"^\s*[a-z0-9][\w.-]{2,80}\s+NotReady\b",
        r"\b(?:agent|host|instance|machine)\b.{0,50}\b(?:lost|died|dead|disconnected|gone"
        r"|disappeared|terminated)\b",
        r"\b(?:lost|missed)\b.{0,30}\b(?:heartbeat|agent|host|worker|peer|node)s?\b",
    ),
    _family(
        1,
        Cause.FABRIC,
        r"(?-i:\bNET/\w+|\bIBV?\b|\bibv_\w+|\bRoCE\b|\bRDMA\b|\bUCX\b|\buct_\w+|OFI_|\bOFI\b"
        r"|\bEFA\b|\blibfabric\b|\bmlx\d\w*|\bQP\b|\bCQ\b).{0,100}(?:error|fail|unable|could"
        r"|cannot|timed out|down|not found|invalid|unresponsive|\bno )",
        r"transport/(?!p2p)\w+\.cc:\d+ NCCL WARN ",
    ),
    _family(
        1,
        Cause.STORAGE,
        r"no space left", r"disk quota", r"read-only file system", r"stale (?:nfs )?file handle",
        r"input/output error", r"\bI/O error", r"nfs: server", r"transport endpoint",
        r"disk (?:is )?full", r"remote i/o error",
        r"\b(?:lustre|ceph|gpfs|nfs|csi|s3fs|gcsfuse|blobfuse)\w*\b.{0,60}\b(?:error|fail"
        r"|not responding|evict)",
        r"SlowDown\b|RequestTimeTooSkewed",
    ),
    _family(
        1,
        Cause.CHECKPOINT,
        r"\b(?:checkpoint|ckpt|state_?dict|safetensors|distcp)\b.{0,120}\b(?:corrupt|damaged"
        r"|truncated|not found|missing|mismatch|incomplete|invalid|does not|cannot"
        r"|failed to load|unable to load)",
        r"\b(?:cannot|could not|couldn't|failed to|unable to|error) (?:\w+ ){0,3}(?:load"
        r"|restore|resume|read|find|loading|reading|restoring)\b.{0,60}\b(?:checkpoint|ckpt"
        r"|state_?dict|safetensors)",
        r"size mismatch for ",
    ),
    _family(
        1,
        Cause.USER_ERROR,
        r"unrecogni[sz]ed|unknown (?:option|flag|argument|command|parameter|key|field|shorthand)",
        r"^\s{0,4}usage: ", r"command not found", r"No module named",
        r"cannot open (?:shared object )?file|can't open file|no such (?:file|command|option)",
        r"could not load (?:the )?\w{1,20} library",
        r"permission denied",
        r"\binvalid (?:usage|argument|value|choice|option|config|device|parameter|syntax|type"
        r"|credential|token|reference|name|format)",
        r"undefined symbol|undefined reference", r"GLIBC\w*_[\d.]+",
        r"not (?:supported|implemented|compiled|built|installed|compatible|allowed|permitted"
        r"|authorized|divisible|defined|initialized)\b",
        r"unsupported", r"incompatible", r"\bmismatch",
        r"\bmust (?:be|have|match|set|specify|not)\b", r"\brequire[sd]?\b",
        r"\bexpected\b.{0,80}\b(?:but|got)\b", r"unauthorized|forbidden|\b40[13]\b",
        r"does not (?:exist|match|support)", r"already (?:exists|in use)",
        r"compil(?:er|ation|e|ing)\b.{0,40}\b(?:error|fail|terminated)", r"\bld returned",
        r"ninja: build stopped", r"syntax error", r"is not defined|has no attribute",
        r"out of range|out of bounds",
        r"\bversion\b.{0,40}\b(?:insufficient|too old|too new|older|newer|mismatch|differ)",
        r"no kernel image|invalid device|device-side assert", r"duplicate GPU",
        r"missing (?:required )?(?:key|argument|field|config|option|module|file|package"
        r"|operator)",
        r"admission webhook.{0,80}denied",
        r"(?:validation|configuration|config|argument|parse|parsing) error",
        r"NOT_SUPPORTED|INVALID_VALUE|ARCH_MISMATCH|INVALID_ARGUMENT",
    ),
    _family(
        2,
        Cause.UNSCHEDULABLE,
        r"^\s*[a-z0-9][\w.-]{2,80}\s+0/\d+\s+Pending\s+0\s",
    ),
    _family(
        2,
        Cause.FABRIC,
        r"connect(?:ion)?\b.{0,60}\b(?:refused|reset|closed|aborted|timed out|lost|broken"
        r"|failed|error)",
        r"(?:failed|unable|could not|couldn't|cannot) (?:to )?(?:connect|resolve|reach|bind"
        r"|open (?:AV|connection|device))",
        r"no route to host|network is unreachable|unreachable|host is down",
        r"name (?:or service not known|resolution)",
        r"socket (?:error|closed|timed out)|peer (?:closed|reset)",
        r"completion (?:from|with|error)|completed with error", r"retry (?:count|exc)",
        r"\bucx\b.{0,20}\berror", r"transport retry|link (?:is )?down|port .{0,20}down",
        r"rendezvous|bootstrap\w* .{0,60}(?:fail|error|timed)",
        r"remote (?:process|peer|error|access)", r"unhandled system error",
        r"(?:TCPStore|socket|gloo|grpc|rpc)\b.{0,80}\b(?:error|fail|timed out|unavailable"
        r"|deadline)",
        r"(?-i:DEADLINE_EXCEEDED|UNAVAILABLE)",
    ),
    _family(
        2,
        Cause.HANG,
        r"\^C", r"tim(?:ed?|ing) ?out", r"\bstuck\b", r"\bhang(?:s|ing|ed)?\b|\bhung\b",
        r"deadlock", r"no progress", r"not respond", r"waiting (?:for|on)\b",
        r"blocked for more than \d+ seconds", r"soft lockup", r"stall(?:ed|s)\b",
    ),
    _family(
        3,
        Cause.KILLED,
        r"(?<!died or was )\bkilled\b|SIGKILL|SIGTERM|signal (?:9|15)\b",
        r"\bterminated\b(?! with exception| after throwing)", r"\bcancel(?:l?ed)?\b",
        r"time limit|walltime|wall clock", r"deadline",
    ),
    _family(
        3,
        Cause.CRASH,
        r"\b(?:worker|raylet|executor|actor|process|container)\b.{0,50}\b(?:died|dead|crashed"
        r"|failed)\b",
        r"segmentation fault|SIGSEGV|core dumped|\bbus error\b|illegal instruction"
        r"|general protection",
        r"\babort(?:ed)?\b|SIGABRT", r"panic", r"assert", r"internal error|internal server error",
        r"CrashLoopBackOff|BackOff", r"unhandled|uncaught",
        r"memory access fault|page fault|illegal memory|launch fail|unspecified", r"\bfatal\b",
        r"exit(?:ed)?\b.{0,20}\b(?:code|status)\b.{0,4}[1-9]",
    ),
)  # fmt: skip


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
"""What the name and message of an exception that the catalogue does not list are about."""


def cause_of_exception(text: str) -> Cause | None:
    """`text`: its name and message."""
    return next((cause for pattern, cause in _OF_EXCEPTIONS if pattern.search(text)), None)


def is_listed(text: str) -> bool:
    return _LISTED.match(text) is not None


def listed_again(lines: Iterable[tuple[int, str]]) -> set[int]:
    """Rows of `kubectl get` whose pod or node another one shows later: they are of the past."""
    found: set[int] = set()
    last: dict[str, int] = {}
    for number, text in lines:
        if is_listed(text):
            name = text.split(maxsplit=1)[0]
            found |= {last[name]} if name in last else set()
            last[name] = number
    return found


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Few logs need them, and compiling them all takes as long as reading a log."""
    return re.compile(pattern, re.I)


def _family_of(text: str) -> _Family | None:
    return next((each for each in _FAMILIES if _compiled(each.pattern).search(text)), None)


def is_typed(text: str) -> bool:
    """A command or a remark of who pasted the log, behind a prompt."""
    return _PROMPT.match(text) is not None


def family_of(text: str) -> Cause | None:
    """What a line that complains is about, even if it only warns; None: nothing that is known."""
    found = _family_of(text) if COMPLAINS.search(text) else None
    return found.cause if found else None


class Complaint(NamedTuple):
    cause: Cause
    line: int
    text: str


def worst_complaint(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """What the numbered lines complain of; None: of nothing that is known."""
    best: tuple[int, Complaint] | None = None
    is_code = False
    for number, line in lines:
        text = line[:MAX_LINE]
        was_frame, is_code = is_code, _FRAME.search(text) is not None
        if was_frame:
            continue  # the code of the frame, as the traceback quotes it
        if best and best[1].cause in _BEFORE_START and _STARTED.search(text):
            best = None
        if not COMPLAINS.search(text) or (_MILD.search(text) and not _FIRM.search(text)):
            continue
        found = _family_of(text)
        if found and (best is None or found.tier < best[0]):
            best = found.tier, Complaint(found.cause, number, line.strip())
    return best[1] if best else None
