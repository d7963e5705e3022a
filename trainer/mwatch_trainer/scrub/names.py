# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Classifies names of settings, variables and flags by whether their value is a secret, and values
by whether they look random.

A name is split into its parts: `hfToken`, `HF_TOKEN`, `--hf-token` and `logger.hf_token` are the
same. STRONG: the value is always removed. WEAK: it is removed if it looks random. `eos_token`,
`sort_key`, `forward_pass` and the paths, names and counts of secrets (`key_file`, `token_count`)
are harmless.
"""

from __future__ import annotations

import re
from functools import lru_cache

HARMLESS, WEAK, STRONG, PASSWORD = 0, 1, 2, 3


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PASSWORDS = words("password passwords passwd passphrase passcode pwd pw passwort secret secrets")
_STRONG = words(
    "apikey authkey secretkey accesskey privatekey credential credentials cred creds connstr jwt"
    " connectionstring dockerconfigjson authtoken accesstoken sastoken pat sas dsn netrc licence"
    " license psk htpasswd"
)
_ENDINGS = ("password", "passwd", "passphrase", "secret")
_STRONG_ENDINGS = ("apikey", "accesskey", "secretkey", "authtoken", "accesstoken", "credentials")
_WEAK = words("auth cookie cookies signature sig webhook session bearer otp totp sessionid csrf")
_PASS_OWNERS = words(
    "db database user admin root mysql pg postgres smtp redis mail mongo ftp proxy http https ssh"
    " keystore store truststore rabbitmq login my basic service ldap key sudo vnc kafka es elastic"
    " clickhouse mlflow registry docker"
)
_PLAIN_PASSES = words(
    "forward backward fwd bwd first second third last next final initial single one two three multi"
    " per each every num n max min warmup dry full render compiler optimization fusion lowering"
    " test tests did must the this a of in by to no not prompt loss train eval validation data"
)
_KEYS = words(
    "api access account secret private auth ssh encryption signing master subscription license"
    " licence integration routing deploy service storage shared session client server wandb openai"
    " hf hub anthropic aws azure gcp google nvidia ngc comet neptune mlflow s3 host decryption ceph"
    " sas kms application app token admin root write read user pagerduty datadog dd sendgrid stripe"
)
_PLAIN_KEYS = words(
    "sort primary foreign partition group join cache query lookup dict map config metric image text"
    " label input output target index column data feature batch state field hash shard model"
    " monitor log num max min per head heads kv value attention q k v first last missing unexpected"
    " same any each every this the a param parameter module layer prompt loss dataset public"
)
_PLAIN_TOKENS = words(
    "bos eos pad unk mask cls sep special stop start end begin image video audio img vision per"
    " next last first max min new num prompt fim mm think thinking eod eot eom sot unknown padding"
    " sentinel sentencepiece single one each every any this the a current previous prefix suffix"
    " middle extra additional target source input output generated predicted word text number total"
    " separator mean avg average loss byte unexpected invalid illegal control role language lang"
    " cls1 user_defined newline bad"
)
_TAILS = words(
    "value val b64 base64 json data text string str raw enc encoded prod dev test staging default"
    " old new primary secondary main backup plain env 1 2 3"
)
_ELSEWHERE = words(
    "file files path paths dir folder name names host port uri count counts size length len type"
    " types index limit num number format ttl expiry expires expiration timeout version manager"
    " store sock socket error errors policy rotation ids enabled required min max prefix provider"
    " algorithm method mode status exists ref"
)
_PARTS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@lru_cache(maxsize=4096)
def kind_of(name: str) -> int:
    """Classify the name of a setting, variable or flag by how likely its value is a secret."""
    parts = [each.lower() for each in _PARTS.split(name[:256]) if each]
    kinds = [
        _with_tail(_kind(part.rstrip("0123456789") or part, parts[:at]), part, parts[at + 1 :])
        for at, part in enumerate(parts)
    ]
    return max(kinds, default=HARMLESS)


def _kind(part: str, before: list[str]) -> int:
    last = before[-1] if before else ""
    if part in _PASSWORDS or part.endswith(_ENDINGS):
        return PASSWORD
    if part in _STRONG or part.endswith(_STRONG_ENDINGS):
        return STRONG
    if part == "pass":
        return PASSWORD if last in _PASS_OWNERS else HARMLESS if last in _PLAIN_PASSES else WEAK
    if part == "key":
        return STRONG if last in _KEYS else HARMLESS if last in _PLAIN_KEYS else WEAK
    if part == "token":
        return HARMLESS if last in _PLAIN_TOKENS else STRONG if last else WEAK
    if last == "connection" and part == "string":
        return STRONG
    return WEAK if part in _WEAK else HARMLESS


def _with_tail(kind: int, part: str, tail: list[str]) -> int:
    """Adjust for the parts that follow: `api_key_b64` is a key, `key_file` is not."""
    rest = [each for each in tail if each not in _TAILS]
    if not kind or not rest:
        return kind
    if rest == ["id"] and part != "token":
        return kind
    if rest == ["url"] and part == "webhook":
        return STRONG
    if kind is PASSWORD and _ELSEWHERE.isdisjoint(rest) and "key" not in rest:
        return WEAK
    return HARMLESS


_CHOSEN = re.compile(
    rb"(?=[^A-Za-z]{0,64}[A-Za-z])(?=[^0-9!@#$%^&*?]{0,64}[0-9!@#$%^&*?])[^\s=]{6,}"
)
_JOINED = re.compile(rb"[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)+")


def is_pass(name: str) -> bool:
    """Whether the name ends in `pass`, which may also mean a training pass or a passed test."""
    return name.lower().endswith("pass")


def looks_chosen(word: bytes) -> bool:
    """Whether this looks like a chosen password: letters mixed with digits or symbols."""
    return _CHOSEN.fullmatch(word) is not None and _JOINED.fullmatch(word) is None


_SWITCHES = re.compile(rb"[a-z](?=[A-Z0-9])|[A-Z](?=[0-9])|[0-9](?=[A-Za-z])")
_LOOKED_AT = 256


def looks_random(word: bytes, least: int = 16) -> bool:
    """Whether upper case, lower case and digits alternate as in a key, unlike in a name."""
    word = word[:_LOOKED_AT]
    return len(word) >= least and 4 * len(_SWITCHES.findall(word)) >= len(word)


_MIN_OPAQUE, _MIN_KINDS, _MIN_DIGITS = 20, 11, 2


def is_opaque(word: bytes) -> bool:
    """Whether upper case, lower case and digits are mixed more than a person would write them."""
    digits = sum(48 <= each <= 57 for each in word)
    is_mixed = digits >= _MIN_DIGITS and not word.islower() and not word.isupper()
    is_varied = len(set(word)) >= _MIN_KINDS
    return is_mixed and is_varied and looks_random(word, _MIN_OPAQUE)
