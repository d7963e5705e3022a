# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a secret looks like in the output of a training job: one rule a kind.

A rule is asked only about lines that hold one of its needles (lower case, looked for in the line
in lower case). Its pattern names the part to take out `secret`. It cannot know a secret without a
known shape and without a name before it; for those there are the user's own patterns.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Pattern


class Rule(NamedTuple):
    name: str
    needles: tuple[bytes, ...]
    pattern: Pattern[bytes]


def _rule(name: str, needles: str, pattern: str, flags: int = 0) -> Rule:
    words = tuple(each.encode() for each in needles.split())
    return Rule(name, words, re.compile(pattern.encode(), flags | re.VERBOSE))


def _token(name: str, needles: str, shape: str) -> Rule:
    """A word that is recognised by its own beginning and length."""
    pattern = rf"(?<![A-Za-z0-9_-]) (?P<secret> {shape} ) (?![A-Za-z0-9])"
    return _rule(name, needles, pattern)


# What stands after the name of a secret: `=`, `:`, JSON's `": "`, Megatron's row of dots, a flag's
# blank. The values that no secret has: nothing, a truth, a variable, what is scrubbed already.
_SET = r"""\\*["']? (?: \s* [=:] \s* | \s+ \.{2,} \s+ ) (?:[bB]?\\*["'])?"""
_NO_VALUE = r"""(?! (?: none|null|nil|true|false|undefined|unset|set|yes|no|\*+|x{3,} ) (?![\w.-])
    | [$<{\[(%] )"""
_NO_NUMBER = r"(?! [-+]? [0-9.]+ (?:e[-+]?[0-9]+)? (?![\w]) )"
_WORD = r"""(?: [^\s"',;&)}\]\\] | \\(?!["']) )"""  # JSON inside JSON: its quotes stay
_STRONG = r"""(?: pass(?:word|wd|phrase) | secret (?:[_-]?access)? [_-]?key | (?:api|account|access|
    shared[_-]?access|signing|encryption|storage|subscription) [_-]?key | apikey )"""
_MIXED = r"(?=[A-Za-z_.+/=~-]*[0-9]) (?=[0-9_.+/=~-]*[A-Za-z])"  # letters and digits

RULES: tuple[Rule, ...] = (
    _token("aws-key", "akia asia", r"(?:AKIA|ASIA) [A-Z0-9]{16}"),
    _token("google-key", "aiza", r"AIza [A-Za-z0-9_-]{35}"),
    _token("google-token", "ya29. gocspx-", r"ya29\. [A-Za-z0-9._-]{20,} | GOCSPX- [\w-]{20,}"),
    _token("google-token", "1//0", r"1//0 [A-Za-z0-9_-]{30,}"),
    _token("hugging-face", "hf_ api_org_", r"(?:hf|api_org)_ [A-Za-z0-9]{30,}"),
    _token("github", "ghp_ gho_ ghu_ ghs_ ghr_", r"gh[pousr]_ [A-Za-z0-9]{30,}"),
    _token("github", "_pat_", r"github_pat_ [A-Za-z0-9_]{22,}"),
    _token("gitlab", "glpat- gldt- glrt- glcbt-", r"gl (?:pat|dt|rt|cbt) - [A-Za-z0-9_.-]{20,}"),
    _token("slack", "xox xapp-", r"(?:xox[abeoprs]|xapp) - [A-Za-z0-9-]{10,}"),
    _token("api-key", "sk-", r"sk- (?=[A-Za-z_-]*[0-9]) [A-Za-z0-9_-]{20,}"),
    _token("api-key", "k_live_ k_test_", r"[sr]k_ (?:live|test)_ [A-Za-z0-9]{16,}"),
    _token("nvidia", "nvapi-", r"nvapi- [A-Za-z0-9_-]{30,}"),
    _token("wandb", "wandb", r"(?:local-)? wandb_v[0-9]+_ [A-Za-z0-9_-]{20,}"),
    _token("databricks", "dapi", r"dapi [0-9a-f]{32} (?:-[0-9]+)?"),
    _token("registry", "_pat_ pypi- npm_", r"(?:dckr_pat_|pypi-|npm_) [A-Za-z0-9_-]{24,}"),
    _token("vault", "hvs.", r"hvs\. [A-Za-z0-9_-]{24,}"),
    _token("azure-client", "q~", r"[A-Za-z0-9_~.-]{3} [78]Q~ [A-Za-z0-9_~.-]{31,34}"),
    _rule("azure-key", "==", r"(?<![A-Za-z0-9+/]) (?P<secret> [A-Za-z0-9+/]{86}== ) (?![=\w])"),
    _token("alibaba", "ltai", r"LTAI (?=[A-Za-z]*[0-9]) [A-Za-z0-9]{12,26}"),
    _token("api-key", "gsk_ xai- pplx-", r"(?:gsk_|xai-|pplx-) [A-Za-z0-9]{30,}"),
    _token("jwt", "eyj", r"eyJ [\w-]{8,} \. eyJ [\w-]{8,} \. [\w-]{8,}"),
    _token("neptune", "eyj", r"eyJhcGlf [A-Za-z0-9+/]{40,} ={0,2}"),
    _rule("webhook", "://", r"""(?:hooks\.slack\.com/(?:services|workflows)/
        |/api/webhooks/) (?P<secret> [\w/-]{20,} )"""),
    _rule("wandb", "wandb", r"""key ["']? \s* [=:] \s* ["']? (?P<secret> [0-9a-f]{40} )
        (?![0-9a-f])"""),
    _rule("wandb", "wandb", r"wandb \s login \s (?:--\S+\s)* (?P<secret> [0-9a-f]{40} )"),
    _rule("signature", "sig= x-amz- x-goog-", r"""(?: (?<![A-Za-z0-9])
        (?: sig | x-(?:amz|goog)-(?:signature|security-token|credential) ) ) =
        (?P<secret> [A-Za-z0-9%+/=_.-]{16,} )""", re.IGNORECASE),
    _rule("signature", "signature=", r"""(?: accesssignature= | [?&;]signature=
        | aws4-hmac-sha256 .{1,400} signature= ) (?P<secret> [A-Za-z0-9%+/=_.~-]{16,} )""",
        re.IGNORECASE),
    _rule("registry", '"auth"', r""""auth" \s* : \s* " (?P<secret> [A-Za-z0-9+/]{8,}={0,2} ) " """),
    _rule("cookie", "cookie", r"cookie \s* : \s* (?P<secret> [^\s=;,'\"]+=[^'\"]{8,} )",
        re.IGNORECASE),
    _rule("flag", "curl", r"""curl \s .{0,400}? \s (?:-u|--user) [\s=]? ["']? [^\s:'"]+ :
        (?P<secret> [^\s'"]+ )"""),
    _rule("netrc", "passw", r"login \s+ \S+ \s+ password \s+ (?P<secret> \S{4,} )"),
    _rule("header", "authorization", rf"""authorization {_SET}
        (?: (?:bearer|basic|token|digest) \s+ )? {_NO_VALUE} (?P<secret> {_WORD}{{8,}} )""",
        re.IGNORECASE),
    _rule("header", "bearer", r"bearer \s+ (?=[A-Za-z._~+/=-]*[0-9]) (?P<secret> [\w.~+/=-]{16,} )",
        re.IGNORECASE),
    _rule("url", "://", r"""[A-Za-z][A-Za-z0-9+.-]{0,31} :// [^\s/:@"'<>]{0,256} :
        (?P<secret> [^\s/@"'<>]{1,512} ) @ """),
    _rule("url", "://", r":// (?=[A-Za-z_-]*[0-9]) (?P<secret> [A-Za-z0-9_.~%+-]{20,512} ) @"),
    _rule("password", "passw passp key", rf"""{_STRONG} {_SET} {_NO_VALUE}
        (?P<secret> {_WORD}{{4,}} )""", re.IGNORECASE),
    _rule("secret", "secret", rf"secret {_SET} {_NO_VALUE} (?P<secret> {_WORD}{{8,}} )",
        re.IGNORECASE),
    _rule("token", "token", rf"""token (?<![A-Za-z0-9]token) {_SET} {_NO_VALUE} {_NO_NUMBER}
        {_MIXED} (?P<secret> [A-Za-z0-9_.+/=~-]{{16,}} )""", re.IGNORECASE),
    _rule("flag", "passw passp secret key token", rf"""(?<![\w-]) -- (?:[a-z0-9]+[_-]){{0,6}}
        (?: {_STRONG} | secret | (?:auth|access|api|hf|hub|bearer|sas|session)[_-]token ) \s+
        {_NO_VALUE} (?P<secret> [^\s-]\S{{3,}} )""", re.IGNORECASE),
    _rule("flag", "key token", rf"""(?<![\w-]) -- (?:[a-z0-9]+[_-]){{0,6}} (?:token|key) \s+
        {_NO_VALUE} {_MIXED} (?P<secret> [A-Za-z0-9_.+/=~-]{{16,}} )""", re.IGNORECASE),
)  # fmt: skip

KEY_BEGIN = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
KEY_END = re.compile(rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
KEY_LINE = re.compile(rb"(?P<secret>[A-Za-z0-9+/=]{16,})[\"',\s]*$")
