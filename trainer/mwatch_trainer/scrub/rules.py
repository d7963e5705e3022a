# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The table of secrets that are recognized by their own shape, regardless of their name.

Every pattern takes linear time: it begins with fixed text or a small set of characters, has no
repeat inside a repeat, and each repeat either is bounded or cannot match what follows it. Patterns
marked `lowered` are matched against the lower-case line.
"""

from __future__ import annotations

import base64
import binascii
import re
from functools import lru_cache, partial
from typing import Callable, NamedTuple, Pattern

from mwatch_trainer.scrub.names import looks_random


class ScrubRule(NamedTuple):
    """A rule is applied only to lines with one of its needles; it removes its group `secret`.

    A lower-case needle matches case-insensitively, one with a capital letter only exactly.
    """

    name: str
    needles: tuple[bytes, ...]
    source: bytes
    is_lowered: bool = False
    accepts: Callable[[bytes], bool] | None = None

    @property
    def pattern(self) -> Pattern[bytes]:
        return _compiled(self.source)


@lru_cache(maxsize=None)
def _compiled(source: bytes) -> Pattern[bytes]:
    """Compile on first use: compiling all patterns would double the startup time."""
    return re.compile(source, re.VERBOSE)


def _rule(
    name: str, needles: str, pattern: str, accepts: Callable[[bytes], bool] | None = None
) -> ScrubRule:
    encoded = tuple(each.encode() for each in needles.split())
    return ScrubRule(name, encoded, pattern.encode(), False, accepts)


def _needled(name: str, needles: tuple[bytes, ...], pattern: str) -> ScrubRule:
    """Make a rule whose needles contain blanks."""
    return ScrubRule(name, needles, pattern.encode())


def _lowered(
    name: str, needles: str, pattern: str, accepts: Callable[[bytes], bool] | None = None
) -> ScrubRule:
    return _rule(name, needles, pattern, accepts)._replace(is_lowered=True)


def _token(name: str, prefixes: str, rest: str, least: int) -> list[ScrubRule]:
    """Make rules for words with a known prefix; those shorter than `least` must look random."""

    def accepts(size: int, secret: bytes) -> bool:
        return len(secret) - size >= least or looks_random(secret[size:], 8)

    rules = []
    for each in prefixes.split():
        text = re.escape(each)
        pattern = rf"{text} (?<![A-Za-z0-9_-]{text}) {rest}{{8,}}"
        check = partial(accepts, len(each))
        rules.append(_rule(name, each, f"(?P<secret> {pattern} )", check))
    return rules


def _fixed(name: str, needles: str, shape: str) -> ScrubRule:
    """Make a rule for a word of an exact shape."""
    return _rule(name, needles, rf"(?P<secret> {shape} ) (?![A-Za-z0-9])")


_ALNUM, _WORD, _DOTTED = "[A-Za-z0-9]", "[A-Za-z0-9_-]", "[A-Za-z0-9_.-]"
_HAS_DIGIT = re.compile(rb"[0-9]")


def _has_digit(secret: bytes) -> bool:
    return _HAS_DIGIT.search(secret) is not None


def _is_login(secret: bytes) -> bool:
    """Whether this is the base64 of `user:password`."""
    try:
        plain = base64.b64decode(secret + b"=" * (-len(secret) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False
    return b":" in plain and plain.isascii() and all(32 <= each < 127 for each in plain)


def _encoded(prefixes: str) -> list[ScrubRule]:
    """Make rules for base64-encoded tokens: their first characters are fixed too."""
    rules = []
    for each in prefixes.split():
        code = base64.b64encode(each.encode() + b"\0\0")[: len(each) * 8 // 6].decode()
        text = re.escape(code)
        pattern = (
            rf"(?P<secret> {text} (?<![A-Za-z0-9_+/-]{text}) [A-Za-z0-9+/_-]{{16,}} ={{0,2}} )"
        )
        rules.append(_rule("encoded-token", code, pattern))
    return rules


# "Password" in other languages; without capital letters, the needles match case-insensitively.
_OTHER_WORDS = (
    "contrase\u00f1a", "has\u0142o", "\u043f\u0430\u0440\u043e\u043b\u044c",
    "\u5bc6\u7801", "\u5bc6\u78bc", "\u53e3\u4ee4", "\u30d1\u30b9\u30ef\u30fc\u30c9",
    "\ube44\ubc00\ubc88\ud638",
)  # fmt: skip
_WIDE_COLON = "\uff1a"

RULES: tuple[ScrubRule, ...] = (
    _fixed("aws-key", "AKIA ASIA", r"A[KS]IA (?<![A-Za-z0-9_-].{4}) [A-Z0-9]{16}"),
    _rule(
        "aws-secret",
        "AKIA ASIA",
        r"""(?:AKIA|ASIA)[A-Z0-9]{16} [^A-Za-z0-9+]{1,8}
        (?:[A-Za-z_ ]{0,32} [=:]\s?)? ["']? (?P<secret> [A-Za-z0-9+/]{40} ) (?![A-Za-z0-9+/])""",
    ),
    *_token("google-key", "AIza", _WORD, 35),
    *_token("google-token", "ya29. GOCSPX- 1//0", _DOTTED, 20),
    *_token("hugging-face", "hf_ api_org_", _ALNUM, 30),
    *_token("github", "ghp_ gho_ ghu_ ghs_ ghr_", _ALNUM, 30),
    *_token("github", "github_pat_", "[A-Za-z0-9_]", 22),
    *_token("gitlab", "glpat- gldt- glrt- glcbt-", _DOTTED, 20),
    *_token(
        "slack", "xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xoxc- xoxd- xapp- xoxe.", _DOTTED, 10
    ),
    _rule("api-key", "sk-", rf"(?P<secret> sk- (?<![A-Za-z0-9_-]sk-) {_WORD}{{20,}} )", _has_digit),
    *_token(
        "api-key",
        "sk_live_ sk_test_ rk_live_ rk_test_ whsec_ pk-lf- sk-lf- pcsk_ lsv2_pt_"
        " lsv2_sk_ rpa_ fw_ sbp_ ntn_ figd_ tgp_v1_ csk- jina_ lin_api_ lin_oauth_ r8_ gsk_ xai-"
        " pplx- tskey- squ_ sqp_ sqa_ PMAK- NRAK- NRJS- HRKU- sntrys_ sntryu_ rubygems_ xkeysib-"
        " shpat_ shpss_ shpca_ sq0atp- sq0csp- ATATT3 ATBB ATCTT3 oy2 AKCp sgp_ EAAAE ops_"
        " exa_ nfp_ vercel_ fo1_ fm2_ tvly- secret_ ltxp_ dor_v1_ key- ABSK",
        _DOTTED,
        999,
    ),
    _fixed("databricks", "dose", r"dose (?<![A-Za-z0-9_]dose) [0-9a-f]{32}"),
    _fixed("cloudflare", "v1.0-", r"v1\.0- [0-9a-f]{24} - [0-9a-f]{64,256}"),
    *_token("digitalocean", "dop_v1_ doo_v1_", "[0-9a-f]", 40),
    *_token("sendgrid", "SG.", _DOTTED, 32),
    *_token("grafana", "glsa_ glc_ eyJrIjoi", "[A-Za-z0-9_+/=]", 24),
    *_token("nvidia", "nvapi- nvaie-", _WORD, 30),
    *_token("wandb", "wandb_v1_ local-wandb_v1_ wandb_v2_", _WORD, 20),
    *_token("databricks", "dapi", "[0-9a-f]", 32),
    *_token("registry", "dckr_pat_ dckr_oat_ pypi- npm_", _WORD, 24),
    *_token("vault", "hvs. hvb. hvr. dp.pt. dp.st.", _DOTTED, 24),
    *_token("alibaba", "LTAI AKID AKLT", _ALNUM, 99),
    *_token("age", "AGE-SECRET-KEY-1", "[A-Z0-9]", 20),
    _fixed("mailgun", "-us", r"(?<![0-9a-z]) [0-9a-f]{32}-us[0-9]{1,2}"),
    _rule("twilio", "SK", r"(?P<secret> SK (?<![A-Za-z0-9_]SK) [0-9a-f]{32} ) (?![\w])"),
    _rule("telegram", ":AA", r"(?P<secret> [0-9]{8,10} :AA [A-Za-z0-9_-]{32,33} ) (?![\w])"),
    _rule("terraform", ".atlasv1.", r"(?P<secret> [A-Za-z0-9]{8,20} \.atlasv1\. [\w-]{40,} )"),
    _rule("ceph", "AQ", r"(?P<secret> AQ (?<![A-Za-z0-9+/]AQ) [A-Za-z0-9+/]{36}== ) (?![=\w])"),
    _fixed(
        "azure-client",
        "Q~",
        r"(?<![A-Za-z0-9_~.-]) [A-Za-z0-9_~.-]{3} [78]Q~"
        r" [A-Za-z0-9_~.-]{31,34}",
    ),
    _rule("azure-key", "==", r"(?<![A-Za-z0-9+/]) (?P<secret> [A-Za-z0-9+/]{86}== ) (?![=\w])"),
    _rule(
        "jwt",
        "eyJ",
        r"(?P<secret> eyJ (?<![A-Za-z0-9_-]eyJ) [\w-]{8,} \. eyJ [\w-]{4,}"
        r" \.? [\w-]* )",
    ),
    *_token("neptune", "eyJhcGlf", "[A-Za-z0-9+/=]", 40),
    _rule(
        "private-key", "MII", r"(?P<secret> MII (?<![A-Za-z0-9+/]MII) [A-Za-z0-9+/]{40,} ={0,2} )"
    ),
    _lowered(
        "webhook",
        "hook",
        r"""(?: hooks\.slack\.com/(?:services|workflows|triggers)/
        | /api/webhooks/ | /webhookb2/ | /incomingwebhook/ | hooks\.zapier\.com/hooks/ )
        (?P<secret> [\w@/.-]{12,} )""",
    ),
    _lowered(
        "webhook", "api.telegram.org/bot", r"api\.telegram\.org/bot (?P<secret> [\w:-]{12,} )"
    ),
    _rule("wandb", "wandb", r"(?<![\w/.-]) (?P<secret> [0-9a-f]{40} ) (?![\w/.-])"),
    _lowered(
        "signature",
        "sig= x-amz- x-goog-",
        r"""(?: sig (?<![a-z0-9]sig)
        | x-(?:amz|goog)-(?:signature|security-token|credential) ) (?: = | %3d )
        (?P<secret> [a-z0-9%+/=_.~-]{12,} )""",
    ),
    _lowered(
        "signature",
        "signature=",
        r"""(?: access | [?&;,\s] ) signature=
        (?P<secret> [a-z0-9%+/=_.~-]{16,} )""",
    ),
    _lowered(
        "signature",
        "awsaccesskeyid= googleaccessid= ?code= &code=",
        r"""(?: awsaccesskeyid
        | googleaccessid | [?&]code ) = (?P<secret> [a-z0-9%+/=_.~-]{16,} )""",
    ),
    _lowered(
        "registry",
        "auth",
        r"""["'] (?:_?auth|identitytoken|registrytoken) \\*["'] \s? : \s?
        \\*["'] (?P<secret> [a-z0-9+/_.-]{8,}={0,2} )""",
    ),
    _lowered("registry", ":_auth", r":_auth(?:token|) \s? = \s? ['\"]? (?P<secret> [^\s'\"]{6,} )"),
    _lowered(
        "cookie",
        "cookie",
        r"""cookie \s{0,8} ["']? : \s{0,8} ["']?
        (?P<secret> [^\s=;,'"]{1,128}=[^'"]{8,} )""",
    ),
    _lowered(
        "flag",
        "curl wget",
        r"""\s (?:-[a-z]{0,8}[ua]|--user|--proxy-user|--auth) (?:\s{1,4}|=)?
        ["']? [^\s:'"/-][^\s:'"/]{0,63} : (?P<secret> [^\s'"/][^\s'"]* )""",
    ),
    _needled(
        "flag",
        (b" -P", b"'-P", b'"-P'),
        r"""\b(?:ipmitool|mosquitto_[ps]ub|unzip|zip|sqlcmd|bcp)\b (?:\s{1,4}(?!-P)\S{1,64}){0,10}?
        \s{1,4} -P \s{0,4} ['"]? (?P<secret> [^\s'"-][^\s'"]+ )""",
    ),
    _needled(
        "flag",
        (b" -w ", b"'-w'", b'"-w"'),
        r"""\bldap[a-z]{3,10}\b (?:\s{1,4}(?!-w)\S{1,64}){0,10}? \s{1,4} -w \s{1,4} ['"]?
        (?P<secret> [^\s'"-][^\s'"]+ )""",
    ),
    _rule("flag", "-U", r"-U \s{0,4} ['\"]? [\w.\\/-]{1,64} % (?P<secret> [^\s'\"]{2,} )"),
    _lowered(
        "flag",
        "alias",
        r"""\bmc \s{1,4} alias \s{1,4} set (?:\s{1,4}\S{1,256}){3} \s{1,4} ['"]?
        (?P<secret> [^\s'"]{4,} )""",
    ),
    _lowered(
        "flag",
        "d_user pass",
        r"""(?:\badd_user \s{1,4} \S{1,64} | \bhtpasswd (?:\s{1,4}-[a-z]{1,4}){1,3}
        (?:\s{1,4}\S{1,256}){2}) \s{1,4} ['"]? (?P<secret> [^\s'"-][^\s'"]+ )""",
    ),
    _lowered(
        "flag",
        "echo",
        r"""echo \s{1,4} (?:-[ne]{1,2}\s{1,4})? ['"]? (?P<secret> [^\s'"|]{2,128} ) ['"]?
        \s{0,4} \| \s{0,4} (?:sudo\s{1,4}-s|su\b|kinit|passwd|chpasswd|cryptsetup|gpg|vault
        |(?:docker|podman|helm|oras|crane|skopeo)\s{1,4}(?:registry\s{1,4})?login)""",
    ),
    _lowered(
        "login",
        "auth login",
        r"""(?: auth \s? = \s? \( | auth \( | login \( ) \s? ["'] [^"']{0,64} ["'] \s? , \s?
        (?:password\s?=\s?)? ["'] (?P<secret> [^"']{2,128} ) ["']""",
    ),
    _lowered(
        "code",
        "code",
        r"""(?:one-time|verification|recovery|2fa|mfa)
        [\s_-](?:pass)?code \s? (?:is|:|=) \s? (?P<secret> [\w-]{4,64} )""",
    ),
    _rule(
        "pgpass",
        ":5432: :*:*:",
        r"""\A\s{0,4} [\w.-]{1,64} : [0-9]{2,5} : [\w*-]{1,64} : [\w*-]{1,64} :
        (?P<secret> [^\s:]{4,128} ) \s{0,4} \Z""",
    ),
    _lowered(
        "password",
        "identified",
        r"""identified \s{1,4} (?:with\s{1,4}\S{1,64}\s{1,4})? (?:by|as) \s{1,4}
        (?:(?:password|values)\s{1,4})? ['"] (?P<secret> [^'"]{2,256} ) ['"]""",
    ),
    _rule(
        "password",
        " ".join(_OTHER_WORDS),
        rf"""(?:{"|".join(_OTHER_WORDS)}) \s{{0,4}} (?:[:=]|{_WIDE_COLON}) \s{{0,4}}
        (?P<secret> [^\s]{{3,}} )""",
    ),
    _lowered("flag", "pass", r"sshpass \s{1,4} -p \s{0,4} ['\"]? (?P<secret> [^\s'\"]+ )"),
    _lowered(
        "flag",
        "mysql mariadb psql",
        r"""\b(?:mysql|mysqldump|mysqladmin|mariadb|mongo
        |mongosh|psql)\b (?:\s{1,4}(?!-p)\S{1,64}){0,6}? \s{1,4} -p \s? ['"]?
        (?P<secret> [^\s'"]{2,} )""",
    ),
    _lowered(
        "flag",
        "login redis-cli",
        r"""(?:\slogin\b|redis-cli) (?:\s{1,4}\S{1,64}){0,6}?
        \s{1,4} (?:-p|-a) \s{1,4} ['"]? (?P<secret> [^\s'"]{2,} )""",
    ),
    _lowered("flag", "pass", r"-pass(?:in|out)? \s{1,4} ['\"]?pass: (?P<secret> [^\s'\"]+ )"),
    _lowered(
        "flag", "secret", r"--from-literal[\s=]{1,4} ['\"]? [\w.-]{1,64}= (?P<secret> [^\s'\"]+ )"
    ),
    _lowered(
        "flag", "_secret_access_key", r"_secret_access_key \s{1,4} (?P<secret> [a-z0-9+/]{16,} )"
    ),
    _lowered(
        "netrc",
        "passw",
        r"""login \s{1,8} \S{1,128} \s{1,8} password \s{1,8}
        (?P<secret> (?:(?!\\{0,4}["'][,\]}])\S){3,} )""",
    ),
    _lowered(
        "htpasswd",
        "$apr1$ $2y$ $2b$ $2a$ $6$ $5$",
        r"""(?P<secret>
        \$(?:apr1|2[yab]|[56]) \$ [a-z0-9./$=]{16,} )""",
    ),
    _lowered(
        "header",
        "authorization",
        r"""authorization \\*["']? \s{0,8} (?: [=:,]|=> ) \s{0,8}
        (?:b?\\*["'])? (?: (?:bearer|basic|token|digest|negotiate|apikey|bot|aws4-hmac-sha256)
        [\s:]{1,4} )? (?P<secret> (?![<{\[$]) [^\s"',;&)}\]\\]{8,} )""",
    ),
    _lowered("header", "bearer", r"bearer [\s:]{1,8} (?P<secret> [\w.~+/=-]{16,} )", _has_digit),
    _rule(
        "header", "basic", r"[Bb]asic [\s:]{1,8} (?P<secret> [A-Za-z0-9+/]{6,}={0,2} )", _is_login
    ),
    _lowered("hotp", "otp", r"otpauth://[^\s?]{1,256}\?[^\s]{0,64}?secret= (?P<secret> \w+ )"),
    *_encoded(
        "hf_ ghp_ gho_ glpat- AKIA sk-ant- sk-proj xoxb- github_pat nvapi- -----BEGIN eyJhbG"
        " password secret_ token: AIza wandb"
    ),
)
