# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""An environment that can be shown: a value goes where its name or its shape says secret.

Stricter than in a log, for here a name is a name: `HF_TOKEN=x` is a secret however short it is.

The words of a command line, without its secrets.
"""

from __future__ import annotations

import re
from typing import Mapping, Sequence

from mwatch_trainer.scrub.scrubber import Scrubber

MAX_VARIABLES = 1024
MAX_VALUE_CHARS = 4096
_MAX_NAME_CHARS = 256
_BY_NAME = "[scrubbed by its name]"
# Words of the name. A tokenizer is none, and neither is where a file or a program lies.
_SECRET = re.compile(
    r"(?:^|_)(?:[A-Z0-9]*(?:PASSWORD|PASSWD|PASSPHRASE|SECRETS?|CREDENTIALS?|APIKEY)|TOKEN|PAT|PWD"
    r"|AUTH|KEY|SAS|COOKIE|SIGNATURE|WEBHOOK|DSN|LICENSE|CONNECTION_?STRING|NETRC|DOCKERCONFIGJSON)"
    r"(?:_(?:VALUE|B64|BASE64|JSON|DATA|ID))?[0-9]*$"
)
_PLAIN = re.compile(r"^(?:PWD|OLDPWD)$|_(?:FILE|PATH|DIR|NAME|HOST|PORT|URI)$")
_IS_PLAIN_VALUE = re.compile(r"(?:|[01]|true|false|yes|no|none)", re.IGNORECASE)


def scrubbed_environment(environ: Mapping[str, str], scrubber: Scrubber) -> dict[str, str]:
    """In the order of names; bounded, the rest is left out."""
    found: dict[str, str] = {}
    for name in sorted(environ)[:MAX_VARIABLES]:
        shown = scrubber.text(name)[:_MAX_NAME_CHARS]
        found[shown] = _value(name, environ[name], scrubber)
    return found


def is_secret_name(name: str) -> bool:
    """Of a variable, or of a flag without its dashes."""
    upper = name.upper().replace("-", "_").replace(".", "_")
    return _SECRET.search(upper) is not None and _PLAIN.search(upper) is None


def _value(name: str, value: str, scrubber: Scrubber) -> str:
    if is_secret_name(name) and not _IS_PLAIN_VALUE.fullmatch(value):
        return _BY_NAME
    before = f"{name}="
    text = scrubber.text(before + value)  # the name is part of what a rule looks at
    clean = text[len(before) :] if text.startswith(before) else scrubber.text(value)
    return clean[:MAX_VALUE_CHARS]


def scrubbed(argv: Sequence[str], scrubber: Scrubber) -> list[str]:
    """A value is looked at together with the flag before it: `--password`, `hunter2`."""
    clean: list[str] = []
    for before, word in zip(("", *argv), argv):
        text = scrubber.text(f"{before} {word}") if before.startswith("-") else ""
        is_value = text.startswith(before + " ") and text != f"{before} {word}"
        chosen = text[len(before) + 1 :] if is_value else scrubber.text(word)
        clean.append(chosen.encode("utf-8", "replace").decode("utf-8"))
    return clean
