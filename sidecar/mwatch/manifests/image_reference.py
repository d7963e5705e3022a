# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Check an image reference: whether nodes accept it, and whether it may refer to another image.

`[REGISTRY[:PORT]/]PATH[:TAG][@sha256:DIGEST]`. The first part is a registry if it contains a dot or
a port, or is `localhost`; otherwise nodes pull from Docker Hub.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mwatch.errors import InputError

_REGISTRY = re.compile(
    r"(?:[A-Za-z0-9-]+\.)*[A-Za-z0-9-]+(?::[0-9]{1,5})?|\[[0-9a-fA-F:]+\](?::\d+)?"
)
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_NAME = 255
_FORM = "an image is REGISTRY/NAME:TAG"


class ImageReference(NamedTuple):
    registry: str
    """Empty: not given, which means Docker Hub."""
    path: str
    tag: str
    digest: str

    def warnings(self) -> list[str]:
        name = f"{self.registry}/{self.path}" if self.registry else self.path
        found = []
        if not self.registry:
            found.append(f"the image {name} names no registry: nodes look for it at docker.io")
        if not self.tag and not self.digest:
            found.append(f"the image {name} has no tag, which means latest: pods may differ")
        elif self.tag == "latest" and not self.digest:
            found.append(f"the image {name} has the tag latest, which changes: pods may differ")
        return found


def parse(text: str) -> ImageReference:
    """Parse a reference. Raises InputError if no node would accept it."""
    name, _, digest = text.partition("@")
    if digest and not _DIGEST.fullmatch(digest):
        raise _refused(text, f"{digest!r} is not sha256: and 64 hexadecimal digits")
    first, slash, rest = name.partition("/")
    has_registry = bool(slash) and (first == "localhost" or "." in first or ":" in first)
    registry, path = (first, rest) if has_registry else ("", name)
    path, colon, tag = path.partition(":")
    if has_registry and not _REGISTRY.fullmatch(registry):
        raise _refused(text, f"{registry!r} is not a registry")
    if colon and not _TAG.fullmatch(tag):
        raise _refused(text, f"{tag!r} is not a tag")
    for part in path.split("/"):
        if not _PART.fullmatch(part):
            raise _refused(text, f"{part!r} is not lower-case letters and digits")
    if len(name) > _MAX_NAME:
        raise _refused(text, f"it has over {_MAX_NAME} characters")
    return ImageReference(registry, path, tag, digest)


def _refused(text: str, why: str) -> InputError:
    return InputError(f"the image {text[:80]!r} is invalid: {why[:120]}; {_FORM}")
